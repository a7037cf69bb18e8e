"""The oracle: every plan of a tiny stage problem, one after another, each evaluated exactly and without a solver."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from prism_cp.inputs.layout import Layout
from prism_cp.pipeline import get_schedule, live_vectors
from prism_cp.pipeline.reference import simulate_reference
from prism_cp.stage_problem import Assignment, StageProblem, rank_memories, stage_times, structure_errors

PLAN_LIMIT = 2_000_000


@dataclass(frozen=True)
class ExhaustiveResult:
    """Optimum over all plans; `assignment` and `pipeline_time` (time units) are None when nothing fits."""

    assignment: Assignment | None
    pipeline_time: int | None
    num_plans: int  # plans looked at, feasible or not


def all_boundaries(problem: StageProblem) -> Iterator[tuple[int, ...]]:
    """Every way to cut the chain that respects the least and most layers of every piece."""
    total = len(problem.layers)

    def extend(cut: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        piece = len(cut) - 1
        if piece == problem.num_pieces:
            if cut[-1] == total:
                yield cut
            return
        for size in range(problem.min_layers[piece], problem.max_layers[piece] + 1):
            if cut[-1] + size > total:
                break
            yield from extend((*cut, cut[-1] + size))

    return extend((0,))


def splits(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    """Every way to write `total` as an ordered sum of `parts` non-negative integers."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in splits(total - first, parts - 1):
            yield (first, *rest)


def all_assignments(problem: StageProblem) -> Iterator[Assignment]:
    """Every plan, feasible in memory or not."""
    prefix = problem.prefix_counts
    for bounds in all_boundaries(problem):
        choices = []
        for piece in range(problem.num_pieces):
            for kind, costs in enumerate(problem.tables[0]):
                held = prefix[kind][bounds[piece + 1]] - prefix[kind][bounds[piece]]
                choices.append(list(splits(held, len(costs.strategies))))
        for flat in itertools.product(*choices):
            rows = iter(flat)
            yield Assignment(
                bounds, tuple(tuple(next(rows) for _ in range(problem.num_kinds)) for _ in range(problem.num_pieces))
            )


def count_plans(problem: StageProblem) -> int:
    """How many plans `all_assignments` would give."""
    prefix, total = problem.prefix_counts, 0
    for bounds in all_boundaries(problem):
        total += math.prod(
            math.comb(
                prefix[kind][bounds[piece + 1]] - prefix[kind][bounds[piece]] + len(costs.strategies) - 1,
                len(costs.strategies) - 1,
            )
            for piece in range(problem.num_pieces)
            for kind, costs in enumerate(problem.tables[0])
        )
    return total


def exhaustive(problem: StageProblem, *, plan_limit: int = PLAN_LIMIT) -> ExhaustiveResult:
    """The optimum of a stage problem by enumeration.

    Raises
    ------
    ValueError
        There are more than `plan_limit` plans.
    """
    plans = count_plans(problem)
    if plans > plan_limit:
        raise ValueError(f"{plans} plans are too many to enumerate (at most {plan_limit})")
    schedule = get_schedule(problem.schedule)
    size = (problem.pp, problem.vpp, problem.num_microbatches)
    live, orders = live_vectors(problem.schedule, *size), schedule.orders(*size)
    ranks = [stage.rank for stage in problem.virtual_stages]
    chains = schedule.chains(problem.pp, problem.vpp)
    best: Assignment | None = None
    best_time: int | None = None
    for assignment in all_assignments(problem):
        if any(row.total > row.capacity for row in rank_memories(problem, assignment, live)):
            continue
        times = stage_times(problem, assignment)
        time = simulate_reference(
            orders,
            ranks,
            chains,
            times.forward,
            times.input_grad,
            times.weight_grad,
            times.head,
            times.tail,
            times.p2p,
            schedule.overlap_factor,
        )
        if best_time is None or time < best_time:
            assert not structure_errors(problem, assignment)
            best, best_time = assignment, time
    return ExhaustiveResult(best, best_time, plans)


def exhaustive_layouts(
    candidates: Sequence[tuple[Layout, StageProblem]], *, plan_limit: int = PLAN_LIMIT
) -> tuple[int, Layout, Assignment] | None:
    """The best (pipeline time + barrier, layout, assignment) over several layouts; None when nothing fits any."""
    best: tuple[int, Layout, Assignment] | None = None
    for layout, problem in candidates:
        found = exhaustive(problem, plan_limit=plan_limit)
        if found.assignment is None or found.pipeline_time is None:
            continue
        value = found.pipeline_time + problem.barrier
        if best is None or value < best[0]:
            best = (value, layout, found.assignment)
    return best
