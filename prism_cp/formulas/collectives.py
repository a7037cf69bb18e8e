"""Process groups on the link levels of a cluster, and the time of a collective on one.

Ranks are numbered tensor-parallel innermost, then context, data and pipeline parallel; for routed experts
expert-tensor innermost, then expert parallel, expert data parallel and pipeline parallel (Megatron-LM
``core/parallel_state.py``). So every group is a size and a stride. On a link level whose domain holds D devices such a
group has ``min(size, D/stride)`` members inside one domain; a ring collective runs level by level (reduce-scatter
inside, then between, then gather).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Integer, Max, Min, Rational, Symbol, ceiling, floor

from prism_cp.formulas import symbols as s
from prism_cp.formulas.program import Program, Template
from prism_cp.inputs.cluster import Cluster, LinkLevel

# One collective call costs this before any hop: kernel launch and protocol. Fitted with the hop latencies on published
# iteration times (NVIDIA dgxc-benchmarking, Megatron-Bridge, SimuMax B200).
CALL_LATENCY_S = Rational(20, 10**6)

# name: (size, stride)
GROUPS: dict[str, tuple[Expr, Expr]] = {
    "tp": (s.tp, Integer(1)),
    "cp": (s.cp, s.tp),
    "dp_cp": (s.dp * s.cp, s.tp),
    "etp": (s.etp, Integer(1)),
    "ep": (s.ep, s.etp),
    "edp": (s.expert_shard, s.ep * s.etp),
    "pp": (s.pp, s.tp * s.cp * s.dp),
    "ends": (1 + s.is_pipelined, s.tp * s.cp * s.dp * Max(1, s.pp - 1)),  # first and last stage
}


def rational(value: float | int) -> Rational:
    """The decimal number a user wrote, exactly."""
    return Rational(str(value))


def chord_count(largest: int) -> int:
    """Chords that `doublings` needs for numbers up to `largest`."""
    return max(1, (largest - 1).bit_length())


def doublings(n: int) -> Rational:
    """log2 of `n`, exact at powers of two and linear between them, so that the value is rational.

    The interpolation of a concave function is the least of its chords, ``power + n/2**power - 1``.
    """
    return min(power + Rational(n, 2**power) - 1 for power in range(chord_count(n)))


def _level_rates(links: Sequence[LinkLevel]) -> list[tuple[Expr, int]]:
    """Achieved one-direction bytes per second of every level, and its number of positions."""
    rates, inside = [], 1
    for level in links:
        rates.append((rational(level.bytes_per_s) * rational(level.efficiency), max(2, level.domain_size // inside)))
        inside = level.domain_size
    return rates


@dataclass(frozen=True)
class Group:
    """What collectives need to know of a group of one layout.

    Attributes
    ----------
    exists
        0 for a group of one rank, else 1.
    hop_latency_s
        Latency of one ring pass over the group (all-gather, or reduce-scatter), call latency not included.
    outer_hops_s
        The same between domains with one hop for every further domain: what a per-layer sharded gather exposes.
    ring_s_per_byte
        Seconds per byte of the gathered tensor of one ring pass.
    exchange_s_per_byte
        Seconds per byte that one rank sends in an all-to-all, its own share included; levels work at once.
    neighbour_latency_s, neighbour_s_per_byte
        Point to point between neighbours, over the widest level that any neighbours need.
    members
        Ranks of the group inside one domain of every link level, innermost first.
    """

    exists: Expr
    hop_latency_s: Expr
    outer_hops_s: Expr
    ring_s_per_byte: Expr
    exchange_s_per_byte: Expr
    neighbour_latency_s: Expr
    neighbour_s_per_byte: Expr
    members: tuple[Expr, ...]

    def ring_s(self, bytes_: Expr, passes: Expr | int = 1, calls: Expr | int = 1) -> Expr:
        """Ring collective: 1 pass is an all-gather or reduce-scatter of `bytes_`, 2 passes an all-reduce."""
        return self.exists * calls * CALL_LATENCY_S + passes * (self.hop_latency_s + bytes_ * self.ring_s_per_byte)

    def exchange_s(self, bytes_: Expr) -> Expr:
        """All-to-all of `bytes_` sent by a rank, its own share included."""
        return self.exists * CALL_LATENCY_S + self.hop_latency_s + bytes_ * self.exchange_s_per_byte

    def neighbour_s(self, bytes_: Expr) -> Expr:
        """One message to a neighbour."""
        return self.exists * (CALL_LATENCY_S + self.neighbour_latency_s + bytes_ * self.neighbour_s_per_byte)


def _members_template(links: Sequence[LinkLevel]) -> Template:
    """Members inside one domain of every level, and how often each level multiplies them (rounded up)."""
    size, stride = Symbol("size"), Symbol("stride")
    members: list[Expr] = [
        Min(size, Max(1, floor(level.domain_size / stride), evaluate=False), evaluate=False) for level in links[:-1]
    ]
    return Template("members", (size, stride), (*members, size))


def _ratio(members: Sequence[Expr], index: int) -> Expr:
    """How many domains of the level below (or ranks) the group has inside one domain of the level."""
    return ceiling(members[index] / members[index - 1]) if index else members[0]


def _group_template(links: Sequence[LinkLevel]) -> Template:
    """All fields of `Group` but the members, from the members inside every level's domain and the doublings between."""
    members = tuple(Symbol(f"members_{index}") for index in range(len(links)))
    doubled = tuple(Symbol(f"doublings_{index}") for index in range(1, len(links)))
    size = members[-1]
    hop = outer = ring = neighbour_latency = neighbour_rate = Integer(0)
    exchange: list[Expr] = []
    below: Expr = Integer(1)
    inside_before: Expr = Integer(0)
    for index, (level, (rate, positions)) in enumerate(zip(links, _level_rates(links), strict=True)):
        n = _ratio(members, index)
        latency = rational(level.latency_s)
        mesh = level.topology == "mesh"
        share = Max(1, n - 1, evaluate=False) / (positions - 1) if mesh else Integer(1)
        hop += latency * (doubled[index - 1] if index else n - 1)
        outer += latency * (n - 1) if index else 0
        ring += (n - 1) / n / below / (rate * share)
        exchange.append((members[index] - below) / size / (rate * share))
        inside = Integer(1) if index == len(links) - 1 else floor(members[index] / size)
        neighbour_latency += (inside - inside_before) * latency
        neighbour_rate += (inside - inside_before) * ((positions - 1) if mesh else 1) / rate
        below, inside_before = members[index], inside
    slowest = Max(*exchange, evaluate=False) if len(exchange) > 1 else exchange[0]
    exists = Min(1, size - 1, evaluate=False)
    return Template(
        "group", (*members, *doubled), (exists, hop, outer, ring, slowest, neighbour_latency, neighbour_rate)
    )


_LEAST, _N, _OFFSET, _SLOPE = (Symbol(name) for name in ("least", "n", "offset", "slope"))
# sympy compares all arguments of a long Min with each other, so the least chord of `doublings` is found step by step.
_NEXT_CHORD = Template("chord", (_LEAST, _N, _OFFSET, _SLOPE), (Min(_LEAST, _OFFSET + _N * _SLOPE, evaluate=False),))


def process_groups(cluster: Cluster, program: Program) -> dict[str, Group]:
    """Every group of `GROUPS`, its terms being symbols of the program.

    Sources: ring and hierarchical costs as in NCCL's tuning model and Calculon (``calculon/network.py``); the share of
    a full mesh that a group of g of n devices can use is (g-1)/(n-1), every pair having its own link (HCCS).
    """
    members_template, group_template = _members_template(cluster.links), _group_template(cluster.links)
    members = {name: program.call_all(members_template, *GROUPS[name]) for name in GROUPS}
    program.step()
    ratios = {
        (name, index): program.value(_ratio(inside, index))
        for name, inside in members.items()
        for index in range(1, len(inside))
    }
    program.step()
    doubled = {key: program.value(n - 1) for key, n in ratios.items()}
    for power in range(1, chord_count(cluster.num_devices)):
        for key, n in ratios.items():
            doubled[key] = program.call(_NEXT_CHORD, doubled[key], n, Integer(power - 1), Rational(1, 2**power))
        program.step()
    groups = {}
    for name, inside in members.items():
        outside = [doubled[name, index] for index in range(1, len(inside))]
        exists, hop, outer, ring, exchange, latency, rate = program.call_all(group_template, *inside, *outside)
        groups[name] = Group(exists, hop, outer, ring, exchange, latency, rate, inside)
    program.step()
    return groups


def distinct_destinations(parts: Expr, num_experts: int, top_k: int) -> Expr:
    """Expected number of distinct equal parts (ranks, nodes) that hold a token's `top_k` of `num_experts` experts.

    Uniform routing: ``parts * (1 - C(E - E/parts, k) / C(E, k))``.
    """
    missed: Expr = Integer(1)
    remaining = num_experts - num_experts / parts
    for drawn in range(top_k):  # a factor is zero where fewer than k experts lie elsewhere
        missed *= (remaining - drawn) / (num_experts - drawn)
    return parts * (1 - missed)


def deduplicated_exchange_template(
    links: Sequence[LinkLevel], num_experts: int, top_k: int, node_limit: int | None
) -> Template:
    """Seconds per byte of ONE copy of a rank's tokens when every token is sent once per destination.

    Arguments: members of the expert-parallel group inside every level's domain. Source: DeepEP (node-limited dispatch:
    one copy crosses to each destination node, and is forwarded to each destination rank inside). `node_limit` is the
    router's limit on the number of nodes, if it has one.
    """
    members = tuple(Symbol(f"members_{index}") for index in range(len(links)))
    size, terms = members[-1], []
    below: Expr = Integer(1)
    for index, (level, (rate, positions)) in enumerate(zip(links, _level_rates(links), strict=True)):
        n = members[index] / below
        share = Max(1, n - 1, evaluate=False) / (positions - 1) if level.topology == "mesh" else Integer(1)
        if index == 0:
            copies = distinct_destinations(size, num_experts, top_k) * (1 - 1 / n)
        else:
            domains = size / below
            distinct = distinct_destinations(domains, num_experts, top_k)
            copies = (Min(node_limit, distinct, evaluate=False) if node_limit else distinct) * (1 - 1 / domains)
        terms.append(copies / (rate * share))
        below = members[index]
    slowest = Max(*terms, evaluate=False) if len(terms) > 1 else terms[0]
    return Template("deduplicated_exchange", members, (slowest,))
