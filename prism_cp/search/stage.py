"""One contested stage problem: boundary search or engine first, CP-SAT where they do not apply or do not decide."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from prism_cp import engine
from prism_cp.cp.solve import StageSolution, StageStatus, solve_stage_problem
from prism_cp.partition.boundary_search import search_boundaries, searchable
from prism_cp.stage_problem import Assignment, StageProblem


def solve_contested(
    problem: StageProblem,
    lower_bound: int,
    upper_bound: int | None,
    hint: Assignment | None = None,
    time_limit_s: float | None = None,
    seed: int = 0,
    stop: threading.Event | None = None,
) -> StageSolution:
    """Decide a stage problem within `upper_bound`; all values are pipeline times in time units.

    Parameters
    ----------
    lower_bound
        Proven elsewhere.
    upper_bound
        Plans above it do not matter; None when there is no incumbent yet.
    """
    started = time.monotonic()
    deadline = None if time_limit_s is None else started + time_limit_s
    if upper_bound is not None and searchable(problem):
        first = _by_boundaries(problem, lower_bound, upper_bound, deadline, stop)
    elif engine.applicable(problem):
        first = _by_engine(problem, lower_bound, upper_bound, hint, deadline, seed, stop)
    else:
        first = StageSolution("unknown", None, None, lower_bound, (), 0.0, 0.0, 0)
    if first.status in ("optimal", "no_better", "infeasible"):
        return replace(first, wall_s=time.monotonic() - started)
    limits = [value for value in (upper_bound, first.pipeline_time) if value is not None]
    remaining = None if deadline is None else max(0.1, deadline - time.monotonic())
    solution = solve_stage_problem(
        problem,
        upper_bound=min(limits) if limits else None,
        hint=first.assignment or hint,
        cuts=first.cuts,
        time_limit_s=remaining,
        seed=seed,
        stop=stop,
    )
    return replace(solution, bound=max(solution.bound, first.bound), wall_s=time.monotonic() - started)


def _by_boundaries(
    problem: StageProblem, lower_bound: int, upper_bound: int, deadline: float | None, stop: threading.Event | None
) -> StageSolution:
    """One piece per rank: depth-first search over the boundaries."""
    found = search_boundaries(problem, lower_bound, upper_bound, deadline=deadline, stop=stop)
    status: StageStatus = "unknown" if found.assignment is None else "feasible"
    if found.lower_bound > upper_bound:
        status = "no_better"
    if found.pipeline_time is not None and found.lower_bound >= found.pipeline_time:
        status = "optimal"
    bound = found.lower_bound if found.pipeline_time is None else min(found.lower_bound, found.pipeline_time)
    return StageSolution(status, found.assignment, found.pipeline_time, bound, found.cuts, 0.0, 0.0, 0)


def _by_engine(
    problem: StageProblem,
    lower_bound: int,
    upper_bound: int | None,
    hint: Assignment | None,
    deadline: float | None,
    seed: int,
    stop: threading.Event | None,
) -> StageSolution:
    """Any schedule: the engine of items and cut tables."""
    found = engine.solve_with_engine(
        problem, lower_bound, upper_bound, hint=hint, deadline=deadline, stop=stop, seed=seed
    )
    return StageSolution(
        found.status, found.assignment, found.pipeline_time, found.lower_bound, found.cuts, 0.0, 0.0, 0
    )
