"""One contested stage problem: the boundary search first, CP-SAT where that does not apply or does not decide."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from prism_cp.cp.solve import StageSolution, StageStatus, solve_stage_problem
from prism_cp.partition.boundary_search import search_boundaries, searchable
from prism_cp.pipeline import PathCut
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
    cuts: tuple[PathCut, ...] = ()
    best, best_time, lower = hint, None, lower_bound
    if upper_bound is not None and searchable(problem):
        found = search_boundaries(problem, lower_bound, upper_bound, deadline=deadline, stop=stop)
        cuts, lower = found.cuts, found.lower_bound
        if found.assignment is not None:
            best, best_time = found.assignment, found.pipeline_time
        status: StageStatus | None = None
        if lower > upper_bound:
            status = "no_better"
        elif best_time is not None and lower >= best_time:
            status = "optimal"
        if status is not None:
            wall_s = time.monotonic() - started
            return StageSolution(status, found.assignment, best_time, lower, cuts, 0.0, wall_s, 0)
        if best_time is not None:
            upper_bound = best_time
    remaining = None if deadline is None else max(0.1, deadline - time.monotonic())
    solution = solve_stage_problem(
        problem, upper_bound=upper_bound, hint=best, cuts=cuts, time_limit_s=remaining, seed=seed, stop=stop
    )
    return replace(solution, bound=max(solution.bound, lower), wall_s=time.monotonic() - started)
