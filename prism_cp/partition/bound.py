"""Lower bound of a stage problem by the walk over ranks, and the plan found on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism_cp.partition.items import NOT_POSSIBLE, ItemTables
from prism_cp.partition.least_work import fits_integers
from prism_cp.partition.walk import Walk
from prism_cp.pipeline import pipeline_time
from prism_cp.stage_problem import Assignment, StageProblem, stage_times

MOST_ITEMS = 30_000_000  # entries of one item table
MAX_KINDS = 12  # shared buffers are tabulated per set of kinds
SCHEDULES = ("gpipe", "1f1b")
MOST_EXACT = 6_000  # items made exact at once; beyond it the relaxation stays
REPAIRS = 40  # walks whose items are made exact one after the other before the bound is taken as it is


@dataclass(frozen=True)
class PartitionBound:
    """A proven lower bound on the pipeline time, and the best plan met.

    `lower_bound` is None when no plan fits in memory at all (proved).
    """

    lower_bound: int | None
    assignment: Assignment | None = None
    pipeline_time: int | None = None


def applicable(problem: StageProblem) -> bool:
    """Whether the walk over ranks describes this problem: one piece per rank, in order, few kinds."""
    return (
        problem.schedule in SCHEDULES
        and problem.num_pieces == problem.pp == len(problem.virtual_stages)
        and all(stage.rank == stage.piece == index for index, stage in enumerate(problem.virtual_stages))
        and problem.num_kinds <= MAX_KINDS
        and problem.pp * (len(problem.layers) + 1) ** 2 <= MOST_ITEMS
        and fits_integers(problem)
    )


def partition_bound(problem: StageProblem, upper_bound: int | None = None) -> PartitionBound:
    """Lower bound on the pipeline time of every plan of `problem`, in time units.

    Parameters
    ----------
    upper_bound : int, optional
        Only plans with pipeline time at most this matter: when none is left, `lower_bound` is ``upper_bound + 1``.

    Raises
    ------
    ValueError
        The problem is not `applicable`.
    """
    if not applicable(problem):
        raise ValueError(f"no partition bound for schedule {problem.schedule}, {problem.num_kinds} kinds")
    tables = ItemTables(problem, NOT_POSSIBLE - 1 if upper_bound is None else upper_bound)
    walk = Walk(tables)
    if upper_bound is None:
        return _from_above(tables, walk)
    if not walk.possible or walk.reach(upper_bound) is None:
        return PartitionBound(upper_bound + 1)
    return _refine(tables, walk, upper_bound, None)


def _from_above(tables: ItemTables, walk: Walk) -> PartitionBound:
    """Without an upper bound: the first plan gives one."""
    low = 0
    for _ in range(REPAIRS):
        if not walk.possible:
            return PartitionBound(None)
        high = max(1, int(walk.after[0, 0]))
        while walk.reach(high) is None:
            high *= 2
        low = walk.least_target(low, high)
        plan, _ = _plan_on(tables, walk.reach(low))
        if plan is not None:
            return _refine(tables, Walk(tables), plan.pipeline_time, plan, low)
        possible = tables.items < NOT_POSSIBLE
        tables.make_exact(possible if possible.sum() <= MOST_EXACT else _narrow(walk, low))
        walk = Walk(tables)
    return PartitionBound(low)


@dataclass(frozen=True)
class _Plan:
    assignment: Assignment
    pipeline_time: int


def _refine(tables: ItemTables, walk: Walk, high: int, best: _Plan | None, low: int = 0) -> PartitionBound:
    """Make exact what can lie on a plan near the least target, until the walk there consists of exact items."""
    alive = walk.alive(high)
    if alive.sum() <= MOST_EXACT and tables.make_exact(alive):
        walk = Walk(tables)
    for _ in range(REPAIRS):
        low = walk.least_target(low, high) if walk.possible else high + 1
        if low > high:
            break
        plan, changed = _plan_on(tables, walk.reach(low))
        if plan is not None and (best is None or plan.pipeline_time < best.pipeline_time):
            best = plan
        if not changed:
            break
        tables.make_exact(_narrow(walk, low))
        walk = Walk(tables)
    if best is None:
        return PartitionBound(low)
    return PartitionBound(min(low, best.pipeline_time), best.assignment, best.pipeline_time)


def _narrow(walk: Walk, target: int) -> NDArray[np.bool_]:
    """Items that matter a little above the target; none when they are too many."""
    alive = walk.alive(target + target // 500 + 1)
    return alive if alive.sum() <= MOST_EXACT else np.zeros_like(alive)


def _plan_on(tables: ItemTables, bounds: Sequence[int] | None) -> tuple[_Plan | None, bool]:
    """The plan on a walk (None when some item turns out impossible), and whether some item's value was only a bound."""
    assert bounds is not None
    mask = np.zeros(tables.items.shape, np.bool_)
    for rank in range(tables.problem.pp):
        mask[rank, bounds[rank], bounds[rank + 1]] = True
    changed = tables.make_exact(mask) > 0
    assignment = plan_of(tables, bounds)
    if assignment is None:
        return None, changed
    return _Plan(assignment, simulated_time(tables.problem, assignment)), changed


def plan_of(tables: ItemTables, bounds: Sequence[int]) -> Assignment | None:
    """Boundaries with every rank's fastest strategies; None where an item is impossible or has no plan."""
    counts = []
    for rank in range(tables.problem.pp):
        plan = tables.plans.get((rank, bounds[rank], bounds[rank + 1]))
        if plan is None:
            return None
        counts.append(plan)
    return Assignment(tuple(bounds), tuple(counts))


def simulated_time(problem: StageProblem, assignment: Assignment) -> int:
    """Pipeline time of a plan, in time units."""
    times = stage_times(problem, assignment)
    return pipeline_time(
        problem.schedule, problem.pp, problem.vpp, problem.num_microbatches,
        times.forward, times.input_grad, times.weight_grad, times.head, times.tail, times.p2p,
    )  # fmt: skip
