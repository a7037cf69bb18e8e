"""One layout's stage problem in integers: the only thing solvers, baselines and heuristics see.

The chain of layers is cut into `num_pieces` contiguous pieces. Every piece is executed by one or more *virtual stages*
(exactly one, except where a schedule keeps mirrored copies of the parameters). A virtual stage lives on a rank.
Within a piece, layers of a kind are interchangeable, so only the number of layers per (kind, strategy) matters.

All times count `time_unit_s` of the instance, all memory `memory_unit_bytes`. Every number was rounded up once, when
its table entry was made; nothing is rounded in here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class StrategyCosts:
    """What one layer of one kind costs under one strategy (recomputation, later offloading)."""

    name: str
    forward: int  # time per micro-batch
    input_grad: int  # time per micro-batch, recomputation included
    weight_grad: int  # time per micro-batch
    hideable: int  # part of one micro-batch's backward under which gradient reduction can hide
    activation: int  # memory per live micro-batch
    transient: int  # memory while this layer's backward runs


@dataclass(frozen=True, slots=True)
class KindCosts:
    """What one layer of a kind costs under every strategy, and what does not depend on the strategy.

    `deferred` is never less than any strategy's activation: while the input gradient of a micro-batch runs, the layers
    it has not reached yet still hold their activations, so the entry covers every moment up to the weight gradient.
    """

    kind: str
    static: int  # weights, gradients, optimizer states
    optimizer_step: int  # memory that exists only while the optimizer steps
    head: int  # time before the rank's first forward: optimizer update and exposed parameter gather
    reduce: int  # time of the gradient reduction, exposed or hidden
    strategies: tuple[StrategyCosts, ...]
    deferred: int = 0  # memory per micro-batch from its input gradient to its weight gradient, where these are split

    def __post_init__(self) -> None:
        largest = max((strategy.activation for strategy in self.strategies), default=0)
        object.__setattr__(self, "deferred", max(self.deferred, largest))


@dataclass(frozen=True, slots=True)
class EndCosts:
    """What a virtual stage carries besides chain layers (embedding, output head and loss, nothing).

    `deferred` as in `KindCosts`.
    """

    forward: int = 0
    input_grad: int = 0
    weight_grad: int = 0
    hideable: int = 0
    activation: int = 0
    transient: int = 0
    static: int = 0
    optimizer_step: int = 0
    head: int = 0
    reduce: int = 0
    deferred: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "deferred", max(self.deferred, self.activation))


@dataclass(frozen=True, slots=True)
class VirtualStage:
    """One (piece, rank) pair in forward order."""

    rank: int
    piece: int
    table: int  # which of StageProblem.tables its layers are costed with (devices may differ by stage)
    ends: EndCosts = EndCosts()


@dataclass(frozen=True, slots=True)
class RankCosts:
    """What a rank has whatever layers it holds."""

    capacity: int  # memory
    fixed: int = 0  # memory: context, communicators, workspaces
    head: int = 0  # time before the first forward
    last_bucket: int = 0  # time of the part of the gradient reduction that nothing can hide


@dataclass(frozen=True, slots=True)
class SharedBuffer:
    """Memory a rank pays once if it holds a layer of any of `kinds`, or an end of any of `virtual_stages`."""

    memory: int
    kinds: frozenset[int]
    virtual_stages: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class StageProblem:
    """Integer tables of one layout.

    Attributes
    ----------
    schedule, pp, vpp, num_microbatches
        What the pipeline room needs to give op orders, live vectors and cuts.
    p2p : int
        Time of one transfer between virtual stages of different ranks.
    barrier : int
        Time of the gradient-norm all-reduce; a constant added to the pipeline time.
    layers : tuple of int
        Kind index of every chain item, in order.
    min_layers, max_layers : tuple of int
        Least and most chain items of every piece.
    tables : tuple of (tuple of KindCosts, one per kind)
    virtual_stages : tuple of VirtualStage
        In forward order. For mirrored schedules both directions are listed.
    """

    schedule: str
    pp: int
    vpp: int
    num_microbatches: int
    p2p: int
    barrier: int
    layers: tuple[int, ...]
    num_pieces: int
    min_layers: tuple[int, ...]
    max_layers: tuple[int, ...]
    tables: tuple[tuple[KindCosts, ...], ...]
    virtual_stages: tuple[VirtualStage, ...]
    ranks: tuple[RankCosts, ...]
    buffers: tuple[SharedBuffer, ...] = ()
    labels: dict[str, Any] = field(default_factory=dict, compare=False, hash=False)

    @property
    def num_kinds(self) -> int:
        """Layer kinds of the chain."""
        return len(self.tables[0])

    @property
    def prefix_counts(self) -> tuple[tuple[int, ...], ...]:
        """``prefix_counts[kind][p]``: layers of `kind` among the first `p` chain items."""
        rows = []
        for kind in range(self.num_kinds):
            row = [0]
            for layer in self.layers:
                row.append(row[-1] + (layer == kind))
            rows.append(tuple(row))
        return tuple(rows)

    def replace(self, **changes: Any) -> StageProblem:
        """A copy with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Assignment:
    """A solution: where the chain is cut and how many layers of each kind use each strategy.

    Attributes
    ----------
    boundaries : tuple of int
        ``num_pieces + 1`` non-decreasing positions, first 0, last the chain's length.
    counts : nested tuples of int
        ``counts[piece][kind][strategy]``.
    """

    boundaries: tuple[int, ...]
    counts: tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True, slots=True)
class StageTimes:
    """Integer times of an assignment: what any simulator of the schedule needs."""

    forward: tuple[int, ...]  # per virtual stage
    input_grad: tuple[int, ...]
    weight_grad: tuple[int, ...]
    head: tuple[int, ...]  # per rank
    tail: tuple[int, ...]
    p2p: int


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Integer memory of one rank under one live vector (or during the optimizer step: `live` empty)."""

    rank: int
    live: tuple[int, ...]  # as in `live_counts`
    static: int
    activation: int
    transient: int
    buffers: int
    fixed: int
    capacity: int

    @property
    def total(self) -> int:
        """Sum of all terms."""
        return self.static + self.activation + self.transient + self.buffers + self.fixed


def structure_errors(problem: StageProblem, assignment: Assignment) -> list[str]:
    """What makes the assignment no partition of the chain, as sentences; empty when it is one."""
    errors: list[str] = []
    bounds, total = assignment.boundaries, len(problem.layers)
    if len(bounds) != problem.num_pieces + 1 or bounds[0] != 0 or bounds[-1] != total:
        return [f"boundaries {bounds} do not cut {total} chain items into {problem.num_pieces} pieces"]
    if len(assignment.counts) != problem.num_pieces:
        return [f"strategy counts for {len(assignment.counts)} pieces, expected {problem.num_pieces}"]
    prefix = problem.prefix_counts
    for piece in range(problem.num_pieces):
        size = bounds[piece + 1] - bounds[piece]
        if not problem.min_layers[piece] <= size <= problem.max_layers[piece]:
            errors.append(
                f"piece {piece} holds {size} layers, allowed {problem.min_layers[piece]}..{problem.max_layers[piece]}"
            )
            if size < 0:
                return errors
        counts = assignment.counts[piece]
        if len(counts) != problem.num_kinds:
            errors.append(f"piece {piece} has strategy counts for {len(counts)} kinds, expected {problem.num_kinds}")
            continue
        for kind, row in enumerate(counts):
            have = prefix[kind][bounds[piece + 1]] - prefix[kind][bounds[piece]]
            if len(row) != len(problem.tables[0][kind].strategies) or any(n < 0 for n in row) or sum(row) != have:
                errors.append(f"piece {piece}, kind {problem.tables[0][kind].kind}: counts {row} for {have} layers")
    return errors


def stage_times(problem: StageProblem, assignment: Assignment) -> StageTimes:
    """Times of every virtual stage and rank under an assignment that `structure_errors` accepts."""
    forward, input_grad, weight_grad = [], [], []
    head = [rank.head for rank in problem.ranks]
    reduce = [0] * len(problem.ranks)
    hideable = [0] * len(problem.ranks)
    for stage in problem.virtual_stages:
        end, table = stage.ends, problem.tables[stage.table]
        f, b, w, hide = end.forward, end.input_grad, end.weight_grad, end.hideable
        head[stage.rank] += end.head
        reduce[stage.rank] += end.reduce
        for kind, row in enumerate(assignment.counts[stage.piece]):
            costs = table[kind]
            for n, strategy in zip(row, costs.strategies, strict=True):
                f += n * strategy.forward
                b += n * strategy.input_grad
                w += n * strategy.weight_grad
                hide += n * strategy.hideable
            head[stage.rank] += sum(row) * costs.head
            reduce[stage.rank] += sum(row) * costs.reduce
        hideable[stage.rank] += hide
        forward.append(f)
        input_grad.append(b)
        weight_grad.append(w)
    tail = [
        max(rank.last_bucket, total - hidden)
        for rank, total, hidden in zip(problem.ranks, reduce, hideable, strict=True)
    ]
    return StageTimes(tuple(forward), tuple(input_grad), tuple(weight_grad), tuple(head), tuple(tail), problem.p2p)


def live_counts(live: Sequence[int], num_stages: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Both halves of a live vector, each with one count per virtual stage of the rank in forward order.

    Returns
    -------
    (whole, deferred)
        Micro-batches of which everything kept for the backward is held, and those from the start of a split backward's
        input gradient to the end of its weight gradient. Vectors of schedules that never split a backward have no
        second half.
    """
    assert len(live) in (num_stages, 2 * num_stages), f"{len(live)} counts for {num_stages} virtual stages"
    return tuple(live[:num_stages]), tuple(live[num_stages:]) or (0,) * num_stages


def rank_memories(
    problem: StageProblem, assignment: Assignment, live_vectors: Sequence[Sequence[Sequence[int]]]
) -> list[RankMemory]:
    """Every memory row: one per rank and live vector, and one per rank for the optimizer step.

    Parameters
    ----------
    live_vectors
        ``live_vectors[rank]``: the Pareto-maximal live vectors of the rank, each as in `live_counts`.
    """
    by_rank: list[list[int]] = [[] for _ in problem.ranks]
    for index, stage in enumerate(problem.virtual_stages):
        by_rank[stage.rank].append(index)
    rows = []
    for rank, indices in enumerate(by_rank):
        costs = problem.ranks[rank]
        static = optimizer = 0
        activation: list[int] = []
        transient: list[int] = []
        deferred: list[int] = []
        held: set[int] = set()
        for index in indices:
            stage = problem.virtual_stages[index]
            static += stage.ends.static
            optimizer += stage.ends.optimizer_step
            activation.append(stage.ends.activation)
            transient.append(stage.ends.transient)
            deferred.append(stage.ends.deferred)
            for kind, row in enumerate(assignment.counts[stage.piece]):
                kind_costs = problem.tables[stage.table][kind]
                static += sum(row) * kind_costs.static
                optimizer += sum(row) * kind_costs.optimizer_step
                deferred[-1] += sum(row) * kind_costs.deferred
                if sum(row):
                    held.add(kind)
                for n, strategy in zip(row, kind_costs.strategies, strict=True):
                    activation[-1] += n * strategy.activation
                    if n:
                        transient[-1] = max(transient[-1], strategy.transient)
        buffers = sum(
            buffer.memory
            for buffer in problem.buffers
            if buffer.kinds & held or buffer.virtual_stages.intersection(indices)
        )
        for live in live_vectors[rank]:
            whole, waiting = live_counts(live, len(indices))
            rows.append(
                RankMemory(
                    rank,
                    tuple(live),
                    static,
                    sum(n * a + d * e for n, a, d, e in zip(whole, activation, waiting, deferred, strict=True)),
                    max((t for n, d, t in zip(whole, waiting, transient, strict=True) if n + d), default=0),
                    buffers,
                    costs.fixed,
                    costs.capacity,
                )
            )
        rows.append(RankMemory(rank, (), static, 0, optimizer, buffers, costs.fixed, costs.capacity))
    return rows
