"""Plan room: what an assignment means for every virtual stage and every rank, from the exact tables.

Shared by the plan builder and the checker; knows no solver.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from prism_cp.formulas.tables import LayerCosts, LayoutCosts
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.pipeline import OpType, get_schedule, live_vectors
from prism_cp.plan import MemoryGib, RankPlan, RankTime, StageLayers, VirtualStagePlan
from prism_cp.stage_problem import (
    Assignment,
    RankMemory,
    StageProblem,
    StageTimes,
    live_counts,
    rank_memories,
    stage_times,
)

GIB = 2**30
NO_RECOMPUTATION = "none"


@dataclass(frozen=True)
class Tables:
    """One layout's integer tables, and the unrounded costs they were made of."""

    problem: StageProblem
    costs: LayoutCosts[Fraction]


TableSource = Callable[[Instance, Layout], Tables]


class ExactTables:
    """Tables straight from the formulas, in exact arithmetic; the formulas of an instance are set up once."""

    def __init__(self) -> None:
        self._models: list[tuple[Instance, CostModel]] = []

    def __call__(self, instance: Instance, layout: Layout) -> Tables:
        """Tables of one layout."""
        model = next((model for known, model in self._models if known is instance), None)
        if model is None:
            model = CostModel(instance)
            self._models.append((instance, model))
        return Tables(build_stage_problem(instance, layout, model), model.evaluate_exact(layout))


def virtual_stage_plans(problem: StageProblem, assignment: Assignment) -> tuple[VirtualStagePlan, ...]:
    """Layers, strategies and times of every virtual stage, in forward order."""
    times = stage_times(problem, assignment)
    stages = []
    for index, stage in enumerate(problem.virtual_stages):
        stages.append(
            VirtualStagePlan(
                rank=stage.rank,
                piece=stage.piece,
                layers=_stage_layers(problem, assignment, stage.piece),
                strategies=_strategies(problem, assignment, stage.piece),
                forward=times.forward[index],
                input_grad=times.input_grad[index],
                weight_grad=times.weight_grad[index],
            )
        )
    return tuple(stages)


def rank_plans(instance: Instance, tables: Tables, assignment: Assignment, pipeline_time: int) -> tuple[RankPlan, ...]:
    """Memory at the fullest moment and time spent, of every rank."""
    time_unit_s = instance.time_unit_s
    problem = tables.problem
    times = stage_times(problem, assignment)
    vectors = live_vectors(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)
    fullest = fullest_rows(rank_memories(problem, assignment, vectors))
    plans = []
    for rank, row in enumerate(fullest):
        alive, deferred = _alive(row, sum(stage.rank == rank for stage in problem.virtual_stages))
        plans.append(
            RankPlan(
                rank=rank,
                head=times.head[rank],
                tail=times.tail[rank],
                memory_gib=_memory_gib(instance, tables, assignment, row),
                memory_phase="forward-backward" if row.live else "optimizer-step",
                live_microbatches=alive,
                deferred_microbatches=deferred,
                time_s=_rank_time(problem, assignment, times, rank, pipeline_time, time_unit_s),
            )
        )
    return tuple(plans)


def _alive(row: RankMemory, num_stages: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """All live micro-batches per virtual stage, and the deferred ones among them (none where backwards are whole)."""
    if not row.live:
        return (), ()
    whole, deferred = live_counts(row.live, num_stages)
    alive = tuple(n + d for n, d in zip(whole, deferred, strict=True))
    return alive, deferred if len(row.live) > num_stages else ()


def fullest_rows(rows: Sequence[RankMemory]) -> list[RankMemory]:
    """The row with the largest total of every rank, in rank order; of equal ones the first."""
    fullest: dict[int, RankMemory] = {}
    for row in rows:
        if row.rank not in fullest or row.total > fullest[row.rank].total:
            fullest[row.rank] = row
    return [fullest[rank] for rank in sorted(fullest)]


def strategy_counts(problem: StageProblem, assignment: Assignment) -> dict[str, dict[str, int]]:
    """``[kind][strategy]``: layers of the whole chain."""
    result: dict[str, dict[str, int]] = {}
    for piece in range(problem.num_pieces):
        for kind, row in _strategies(problem, assignment, piece).items():
            for name, count in row.items():
                counts = result.setdefault(kind, {})
                counts[name] = counts.get(name, 0) + count
    return result


def _strategies(problem: StageProblem, assignment: Assignment, piece: int) -> dict[str, dict[str, int]]:
    """Non-zero counts of one piece by kind and strategy name."""
    result = {}
    for kind, row in zip(problem.tables[0], assignment.counts[piece], strict=True):
        named = {strategy.name: n for strategy, n in zip(kind.strategies, row, strict=True) if n}
        if named:
            result[kind.kind] = named
    return result


def _stage_layers(problem: StageProblem, assignment: Assignment, piece: int) -> StageLayers:
    start, end = assignment.boundaries[piece], assignment.boundaries[piece + 1]
    names = [problem.tables[0][kind].kind for kind in problem.layers[start:end]]
    return StageLayers(
        first=start if names else None,
        last=end - 1 if names else None,
        count=end - start,
        kinds={name: names.count(name) for name in dict.fromkeys(names)},
        embedding=piece == 0,
        mtp="mtp" in names,
        head=piece == problem.num_pieces - 1,
    )


def _memory_gib(instance: Instance, tables: Tables, assignment: Assignment, row: RankMemory) -> MemoryGib:
    weights, gradients, optimizer = state_bytes(tables, assignment, row.rank)
    unit_bytes, margin = instance.memory_unit_bytes, Fraction(str(instance.profile.memory_margin))

    def gib(units: int) -> float:
        return float(Fraction(units * unit_bytes, GIB))

    return MemoryGib(
        total=gib(row.total),
        capacity=gib(row.capacity),
        margin=float(tables.costs.capacity_bytes * margin / (1 - margin) / GIB),
        headroom=gib(row.capacity - row.total),
        weights=float(weights / GIB),
        gradients=float(gradients / GIB),
        optimizer=float(optimizer / GIB),
        activations=gib(row.activation),
        transient=gib(row.transient),
        buffers=gib(row.buffers),
        fixed=gib(row.fixed),
        rounding=float((row.static * unit_bytes - weights - gradients - optimizer) / GIB),
    )


def state_bytes(tables: Tables, assignment: Assignment, rank: int) -> tuple[Fraction, Fraction, Fraction]:
    """Unrounded bytes of weights, gradients and optimizer states on a rank."""
    problem, costs = tables.problem, tables.costs
    held: list[tuple[int, LayerCosts[Fraction]]] = []
    for stage in problem.virtual_stages:
        if stage.rank != rank:
            continue
        if stage.piece == 0:
            held.append((1, costs.embedding))
        if stage.piece == problem.num_pieces - 1:
            held.append((1, costs.head))
        held += [(sum(row), costs.kinds[kind]) for kind, row in enumerate(assignment.counts[stage.piece])]
    zero = Fraction(0)
    return (
        sum((n * cost.weight_bytes for n, cost in held), zero),
        sum((n * cost.gradient_bytes for n, cost in held), zero),
        sum((n * cost.optimizer_bytes for n, cost in held), zero),
    )


def _rank_time(
    problem: StageProblem, assignment: Assignment, times: StageTimes, rank: int, pipeline_time: int, unit_s: float
) -> RankTime:
    indices = [index for index, stage in enumerate(problem.virtual_stages) if stage.rank == rank]
    # Mirrored schedules send half of the micro-batches through either copy of a piece.
    microbatches = problem.num_microbatches * problem.num_pieces // len(problem.virtual_stages)
    forward = microbatches * sum(times.forward[index] for index in indices)
    backward = microbatches * sum(times.input_grad[index] + times.weight_grad[index] for index in indices)
    overlap = _overlap(problem, times, rank)
    again = [recomputation(problem, assignment, index) for index in indices]
    known = [amount for amount in again if amount is not None]
    return RankTime(
        forward=forward * unit_s,
        backward=backward * unit_s,
        recomputation=microbatches * sum(known) * unit_s if len(known) == len(again) else None,
        head=times.head[rank] * unit_s,
        tail=times.tail[rank] * unit_s,
        overlap=overlap * unit_s,
        bubble=(pipeline_time - forward - backward + overlap - times.head[rank] - times.tail[rank]) * unit_s,
    )


def _overlap(problem: StageProblem, times: StageTimes, rank: int) -> int:
    """Time units that a rank saves because forwards and backwards overlap."""
    schedule = get_schedule(problem.schedule)
    if schedule.overlap_factor == 1:
        return 0
    order = schedule.orders(problem.pp, problem.vpp, problem.num_microbatches)[rank]
    opens = order[:, 0] == OpType.OVERLAPPED_FORWARD
    pairs, counts = np.unique(np.stack((order[opens, 1], order[1:, 1][opens[:-1]])), axis=1, return_counts=True)
    saved = Fraction(0)
    for first, second, count in zip(*pairs.tolist(), counts.tolist(), strict=True):
        forward, backward = times.forward[first], times.input_grad[second] + times.weight_grad[second]
        both = forward + backward
        saved += count * (both - max(forward, backward, schedule.overlap_factor * both))
    assert saved.denominator == 1, "op times are multiples of the overlap factor's denominator"
    return int(saved)


def recomputation(problem: StageProblem, assignment: Assignment, virtual_stage: int) -> int | None:
    """Time units of one micro-batch's backward that a virtual stage spends on recomputing.

    The difference to a layer that keeps everything; None when a recomputing kind has no such strategy.
    """
    stage = problem.virtual_stages[virtual_stage]
    total = 0
    for kind, row in zip(problem.tables[stage.table], assignment.counts[stage.piece], strict=True):
        plain = next((s for s in kind.strategies if s.name == NO_RECOMPUTATION), None)
        if plain is None:
            if sum(row):
                return None
            continue
        total += sum(n * (s.input_grad - plain.input_grad) for n, s in zip(row, kind.strategies, strict=True))
    return total
