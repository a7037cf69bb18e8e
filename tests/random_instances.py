"""Random tiny instances of every model feature, and their stage problems; memory is drawn so that it often decides."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from prism_cp.baselines.exhaustive import all_boundaries, count_plans
from prism_cp.breakdown import Tables
from prism_cp.errors import InstanceError
from prism_cp.formulas.evaluate import exact_function
from prism_cp.formulas.overheads import capacity_bytes
from prism_cp.formulas.strategies import strategies_for
from prism_cp.formulas.tables import LayoutCosts
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.inputs.load import instance_from_mapping
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.layouts.admissible import AdmissibleLayouts, all_layouts
from prism_cp.pipeline import get_schedule, live_vectors
from prism_cp.stage_problem import Assignment, KindCosts, StageProblem, StrategyCosts, rank_memories

MIB = 2**20
MOST_LAYOUTS = 8
MOST_PLANS = 600  # over all layouts of an instance: enumerating one takes a fifth of a millisecond
ADAM_BYTES = 18  # bf16 weight, fp32 gradient, fp32 master weight and two moments
RECOMPUTE = (("none", "full"), ("none", "full"), ("full",), ("none",), ("none", "layernorm", "full"))


def random_instance(rng: random.Random, schedules: tuple[str, ...] | None = None) -> Instance:
    """A random instance with at most `MOST_LAYOUTS` layouts and `MOST_PLANS` plans.

    `schedules`: those to search, with one or two virtual stages per rank; None: GPipe, 1F1B or both.
    """
    while True:
        num_devices = rng.choice((2, 2, 3, 4, 4, 4, 6, 8))
        hidden_size = rng.choice((256, 256, 512))
        precision = rng.choice(("bf16", "bf16", "fp8"))
        raw = {
            "name": "random",
            "model": _model(rng, hidden_size),
            "cluster": _cluster(rng, num_devices),
            "profile": {**_profile(rng), "expert_overlap": schedules is not None},
            # long sequences, so that activations weigh as much as states
            "job": {"gbs": 1, "seq_len": rng.choice((1024, 4096, 8192)), "precision": precision},
            "layout": {"recompute": list(rng.choice(RECOMPUTE))},
        }
        changed = _varied(instance_from_mapping(raw), rng, schedules)
        if changed is not None:
            return changed


def vary(instance: Instance, rng: random.Random, schedules: tuple[str, ...] | None = None) -> Instance:
    """The instance with another batch, memory, search space and units: what leaves every formula the same."""
    return _varied(instance, rng, schedules) or instance


def _varied(instance: Instance, rng: random.Random, schedules: tuple[str, ...] | None) -> Instance | None:
    """`vary`, or None when no draw is small enough."""
    for _ in range(30):
        space = random_search_space(rng, instance.cluster.num_devices)
        if schedules is not None:
            space |= {"schedule": schedules, "vpp": (1, 2)}
        elif space.get("schedule") is None:
            space["schedule"] = ("gpipe", "1f1b")
        layout = instance.layout.model_copy(update=space)
        job = instance.job.model_copy(update={"gbs": rng.choice((1, 2, 3, 4, 4, 6))})
        if schedules is not None:
            job = job.model_copy(update={"overlap_factor": rng.choice((1.0, 0.75, 0.6, 0.0))})
        cluster = instance.cluster
        device = cluster.device.model_copy(update={"memory_bytes": _memory_bytes(rng, instance)})
        changed = instance.model_copy(
            update={
                "layout": layout,
                "job": job,
                "cluster": cluster.model_copy(update={"device": device}),
                "time_unit_s": rng.choice((1e-6, 1e-5, 1e-4)),
                "memory_unit_bytes": rng.choice((1024, MIB, 8 * MIB)),
            }
        )
        try:
            if AdmissibleLayouts(changed).num_layouts <= MOST_LAYOUTS and num_plans(changed) <= MOST_PLANS:
                return changed
        except InstanceError:  # the draw left no layout
            continue
    return None


def num_plans(instance: Instance) -> int:
    """Plans of all layouts, feasible or not: what enumeration has to look at."""
    chain, kinds = instance.model.chain, instance.model.chain_kinds
    free = StrategyCosts("", 0, 0, 0, 0, 0, 0)
    table = tuple(KindCosts(kind, 0, 0, 0, 0, (free,) * len(strategies_for(kind, instance))) for kind in kinds)
    total = 0
    pieces = Counter(
        get_schedule(layout.schedule).num_pieces(layout.pp, layout.vpp) for layout in all_layouts(instance)
    )
    for pp, count in pieces.items():
        least = 0 if instance.layout.allow_empty_middle_stages else 1
        shape = StageProblem(
            schedule="1f1b",
            pp=pp,
            vpp=1,
            num_microbatches=1,
            p2p=0,
            barrier=0,
            layers=tuple(kinds.index(name) for name in chain),
            num_pieces=pp,
            min_layers=tuple(least if 0 < piece < pp - 1 else 0 for piece in range(pp)),
            max_layers=(len(chain),) * pp,
            tables=(table,),
            virtual_stages=(),
            ranks=(),
        )
        total += count * count_plans(shape)
    return total


class SharedCosts(CostModel):
    """Formulas of one instance, used again for everything `vary` makes of it; exact costs are remembered.

    A family's formulas take half a second to set up and ten milliseconds a layout; batch, search space and units are no
    part of them, and the memory of a card is one number.
    """

    def __init__(self, base: CostModel, instance: Instance) -> None:
        known: dict[Layout, LayoutCosts[Any]] = base.__dict__.setdefault("_known", {})
        self.__dict__.update(base.__dict__)
        self.instance, self._known = instance, known
        [self._capacity] = exact_function([capacity_bytes(instance)], ())()

    def evaluate(self, columns: Any) -> LayoutCosts[Any]:
        return replace(super().evaluate(columns), capacity_bytes=float(self._capacity))

    def evaluate_exact(self, layout: Layout) -> LayoutCosts[Any]:
        if layout not in self._known:
            self._known[layout] = super().evaluate_exact(layout)
        return replace(self._known[layout], capacity_bytes=self._capacity)


@dataclass(frozen=True)
class Case:
    """An instance with its formulas and every admissible layout's stage problem."""

    instance: Instance
    costs: SharedCosts
    candidates: tuple[tuple[Layout, StageProblem], ...]

    def tables(self, instance: Instance, layout: Layout) -> Tables:
        """What the plan builder and the checker ask for, without setting the formulas up again."""
        assert instance == self.instance
        return Tables(build_stage_problem(instance, layout, self.costs), self.costs.evaluate_exact(layout))


def random_cases(seed: int, count: int, schedules: tuple[str, ...] | None = None) -> Iterator[Case]:
    """A family of `count` instances of one model, cluster and profile."""
    rng = random.Random(seed)
    base = random_instance(rng, schedules)
    formulas = CostModel(base)
    for index in range(count):
        instance = base if index == 0 else vary(base, rng, schedules)
        case = make_case(instance, formulas)
        yield make_case(tighten(case, rng), formulas) if index % 4 else case


def make_case(instance: Instance, formulas: CostModel) -> Case:
    """The stage problems of an instance of the family that `formulas` belong to."""
    costs = SharedCosts(formulas, instance)
    layouts = all_layouts(instance)
    return Case(instance, costs, tuple((layout, build_stage_problem(instance, layout, costs)) for layout in layouts))


def tighten(case: Case, rng: random.Random) -> Instance:
    """The instance with just the memory that one random plan needs, or a byte less."""
    _, problem = rng.choice(case.candidates)
    plan = min((random_assignment(problem, rng) for _ in range(3)), key=lambda plan: _need(problem, plan))
    need = _need(problem, plan) * case.instance.memory_unit_bytes
    cluster = case.instance.cluster
    device = cluster.device.model_copy(update={"memory_bytes": max(1, need - rng.choice((0, 0, 0, 1)))})
    return case.instance.model_copy(update={"cluster": cluster.model_copy(update={"device": device})})


def _need(problem: StageProblem, plan: Assignment) -> int:
    """Memory units that the fullest rank holds at its fullest moment."""
    live = live_vectors(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)
    return max(row.total for row in rank_memories(problem, plan, live))


def random_assignment(problem: StageProblem, rng: random.Random) -> Assignment:
    """Any plan of a stage problem, whether it fits or not."""
    bounds = rng.choice(list(all_boundaries(problem)))
    prefix = problem.prefix_counts
    counts = []
    for piece in range(problem.num_pieces):
        rows = []
        for kind, costs in enumerate(problem.tables[0]):
            row = [0] * len(costs.strategies)
            for _ in range(prefix[kind][bounds[piece + 1]] - prefix[kind][bounds[piece]]):
                row[rng.randrange(len(row))] += 1
            rows.append(tuple(row))
        counts.append(tuple(rows))
    return Assignment(bounds, tuple(counts))


# -- parts -------------------------------------------------------------------------------------------------------------


def _model(rng: random.Random, hidden_size: int) -> dict[str, Any]:
    kinds = [_kind(rng, f"kind-{index}", hidden_size) for index in range(rng.choice((1, 1, 2, 2, 3)))]
    num_layers = rng.randint(1, 6)
    names = [rng.choice(kinds)["name"] for _ in range(num_layers)]
    if rng.random() < 0.5:
        names.sort()
    model = {
        "name": "random",
        "hidden_size": hidden_size,
        "vocab_size": rng.choice((1000, 8000, 32000)),
        "kinds": kinds,
        "layers": [{"kind": name, "count": 1} for name in names],
        "norm": rng.choice(("rmsnorm", "layernorm")),
        "tied_embeddings": rng.random() < 0.3,
    }
    if rng.random() < 0.2:
        model |= {"num_mtp_layers": rng.randint(1, 2), "mtp_kind": rng.choice(names)}
    return model


def _kind(rng: random.Random, name: str, hidden_size: int) -> dict[str, Any]:
    attention, feed_forward = _attention(rng, hidden_size), _feed_forward(rng, hidden_size)
    if rng.random() < 0.15:  # hybrids keep mixers and feed-forwards in layers of their own
        return {"name": name, "num_norms": 1, **rng.choice(({"attention": attention}, {"feed_forward": feed_forward}))}
    return {"name": name, "attention": attention, "feed_forward": feed_forward}


def _attention(rng: random.Random, hidden_size: int) -> dict[str, Any]:
    heads = hidden_size // 64
    kind = rng.choice(("self", "self", "self", "latent", "delta", "mamba"))
    if kind == "latent":
        return {
            "type": "latent_attention",
            "num_attention_heads": heads,
            "q_lora_rank": rng.choice((None, hidden_size // 2)),
            "kv_lora_rank": 128,
            "qk_nope_head_dim": 64,
            "qk_rope_head_dim": 32,
            "v_head_dim": 64,
        }
    if kind == "delta":
        sizes = {"num_key_heads": heads // 2, "num_value_heads": heads, "key_head_dim": 64, "value_head_dim": 64}
        return {"type": "gated_delta_net", **sizes, "conv_kernel_dim": 4}
    if kind == "mamba":
        sizes = {"num_heads": 2 * heads, "head_dim": 64, "num_groups": 4, "state_dim": 64}
        return {"type": "mamba2", **sizes, "conv_kernel_dim": 4}
    return {
        "type": "self_attention",
        "num_attention_heads": heads,
        "num_key_value_heads": rng.choice((1, 2, heads)),
        "head_dim": 64,
        "window": rng.choice((None, None, 256)),
        "qk_norm": rng.random() < 0.3,
    }


def _feed_forward(rng: random.Random, hidden_size: int) -> dict[str, Any]:
    if rng.random() < 0.5:
        return {"type": "dense", "intermediate_size": rng.choice((2, 3, 4)) * hidden_size, "gated": rng.random() < 0.7}
    return {
        "type": "moe",
        "num_experts": rng.choice((4, 6, 8)),
        "top_k": rng.choice((1, 2)),
        "intermediate_size": hidden_size,
        "shared_intermediate_size": rng.choice((0, 0, hidden_size)),
    }


def _cluster(rng: random.Random, num_devices: int) -> dict[str, Any]:
    inner = {"name": "inner", "bytes_per_s": rng.choice((1e11, 4e11)), "latency_s": 5e-6}
    links = [{**inner, "domain_size": "all"}]
    if num_devices % 2 == 0 and num_devices > 2 and rng.random() < 0.5:
        outer = {"name": "outer", "bytes_per_s": rng.choice((5e9, 2.5e10)), "latency_s": 2e-5, "domain_size": "all"}
        links = [{**inner, "domain_size": num_devices // 2}, outer]
    return {"name": "random", "num_devices": num_devices, "device": {"like": "h100", "name": "card"}, "links": links}


def _profile(rng: random.Random) -> dict[str, Any]:
    return {
        "like": "megatron",
        "allocator_efficiency": 1.0,  # so that a capacity can be set to the byte
        "memory_margin": 0.0,
        "context_bytes": 0,
        "communicator_bytes": rng.choice((0, 16 * MIB)),
        "workspace_bytes": 0,
        "dummy_weight_gradients": rng.random() < 0.7,
        "overlap_grad_reduce": rng.random() < 0.5,
        "overlap_param_gather": rng.random() < 0.5,
        "tp_overlap": rng.random() < 0.3,
        "dispatcher": rng.choice(("alltoall", "allgather", "deepep")),
        "host_launch_floor_s": rng.choice((0.0, 0.0, 1e-4)),  # a high floor makes all layers cost the same
        "moe_host_sync_s": rng.choice((0.0, 1e-4)),
        "optimizer_step_bytes": rng.choice((0, 0, 64 * MIB)),
        "bucket_parameters": rng.choice((1_000_000, 40_000_000)),
        "flash_attention": rng.random() < 0.8,
    }


def random_search_space(rng: random.Random, num_devices: int) -> dict[str, Any]:
    """Lists that leave only a few layouts, and still every field open now and then."""
    sizes = [size for size in (1, 2, 3, 4, 6, 8) if num_devices % size == 0]
    few = sizes[: rng.randint(1, 3)]
    return {
        "tp": rng.choice((None, (1,), tuple(few))),
        "sp": rng.choice((None, (False,), (True,))),
        "cp": rng.choice((None, (1,), (1,), (1, 2))),
        "cp_comm": rng.choice((None, ("p2p",), ("p2p", "a2a"))),
        "ep": rng.choice((None, (1,), (1, 2))),
        "etp": rng.choice((None, (1,), (1,))),
        "dp": rng.choice((None, None, (1,), (1, 2))),
        "pp": rng.choice((None, None, tuple(sizes[1:]), tuple(sizes[:2]))),
        "mbs": rng.choice((None, (1,), (1,), (1, 2))),
        "zero": rng.choice(((0,), (1,), (1,), (1, 2), (0, 3), (2, 3))),
        "schedule": rng.choice((None, ("gpipe",), ("1f1b",), ("1f1b",))),
        "tp_within_domain": rng.random() < 0.8,
        "allow_empty_middle_stages": rng.random() < 0.3,
    }


def _memory_bytes(rng: random.Random, instance: Instance) -> int:
    """Around what states and a few micro-batches' activations take on a device: too little, tight, or plenty."""
    model, job = instance.model, instance.job
    width, layers = model.hidden_size, len(model.chain)
    parameters = 2 * model.vocab_size * width + 20 * layers * width * width
    states = ADAM_BYTES * parameters / instance.cluster.num_devices
    activations = 40 * layers * width * job.seq_len + 4 * model.vocab_size * job.seq_len
    return int((states + activations) * 2 ** rng.uniform(-1, 2))
