"""The boundary search against enumeration, and the paths it adds against the simulator."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_cp.baselines.exhaustive import count_plans, exhaustive
from prism_cp.cp.exact import cut_value, evaluate, is_feasible
from prism_cp.partition.boundary_search import BoundarySearch, search_boundaries, searchable, window_cuts
from prism_cp.pipeline import pipeline_time, static_cuts
from prism_cp.stage_problem import StageProblem
from tests.partition.test_partition_bound import CHUNK, enumerable_problems, with_forward_by_strategy
from tests.pipeline.runs import Run, runs
from tests.random_instances import random_assignment
from tests.random_problems import random_stage_problem

BEYOND = 10_000  # above every pipeline time of the small problems


def problems(seed: int, count: int = CHUNK) -> list[StageProblem]:
    return [problem for problem in enumerable_problems(seed, 2 * count) if searchable(problem)][:count]


def check(problem: StageProblem, lower_bound: int, upper_bound: int, name: str) -> bool:
    """Whether the search decided; what it says must be true either way."""
    optimum = exhaustive(problem).pipeline_time
    found = search_boundaries(problem, lower_bound, upper_bound)
    within = optimum is not None and optimum <= upper_bound
    if within:
        assert optimum is not None
        assert found.lower_bound <= optimum, name
    if found.assignment is not None:
        assert is_feasible(problem, found.assignment), name
        assert evaluate(problem, found.assignment).pipeline_time == found.pipeline_time, name
        assert within, name
    plan = random_assignment(problem, random.Random(0)) if count_plans(problem) else None
    for cut in found.cuts if plan is not None else ():
        assert cut_value(problem, cut, plan) <= evaluate(problem, plan).pipeline_time, name
    if not within:
        return found.lower_bound > upper_bound
    return found.pipeline_time == optimum == found.lower_bound


@pytest.mark.parametrize("seed", range(8))
def test_search_equals_enumeration_where_no_reduction_hides(seed: int) -> None:
    """With nothing to hide every item's time is attained by a plan, so the search has to decide."""
    for index, problem in enumerate(problems(100 + seed)):
        plain = without_hiding(problem)
        optimum = exhaustive(plain).pipeline_time
        for upper_bound in (BEYOND,) if optimum is None else (optimum - 1, optimum, optimum + 5, BEYOND):
            assert check(plain, 0, upper_bound, f"seed {seed}, problem {index}, {upper_bound}"), (seed, index)


@pytest.mark.parametrize("seed", range(8))
def test_search_with_hidden_reduction_is_right_or_undecided(seed: int) -> None:
    undecided = 0
    for index, problem in enumerate(problems(200 + seed)):
        undecided += not check(problem, 0, BEYOND, f"seed {seed}, problem {index}")
    # the fastest strategies and those that hide most are rarely at odds
    assert undecided <= CHUNK // 3


def without_hiding(problem: StageProblem) -> StageProblem:
    tables = tuple(
        tuple(replace(kind, strategies=tuple(replace(s, hideable=0) for s in kind.strategies)) for kind in table)
        for table in problem.tables
    )
    return problem.replace(tables=tables)


def test_known_paths_and_a_proven_bound_are_used() -> None:
    decided = 0
    for problem in problems(300):
        optimum = exhaustive(problem).pipeline_time
        if optimum is None:
            continue
        first = search_boundaries(problem, 0, BEYOND)
        again = search_boundaries(problem, optimum, BEYOND, known=first.cuts)
        assert again.nodes <= first.nodes
        assert again.lower_bound == optimum
        decided += again.pipeline_time == optimum
    assert decided


def test_a_stop_leaves_the_target_undecided() -> None:
    stop = threading.Event()
    stop.set()
    for problem in problems(301):
        optimum = exhaustive(problem).pipeline_time
        found = search_boundaries(problem, 0, BEYOND, stop=stop)
        if optimum is not None:
            assert found.lower_bound <= optimum
        if found.pipeline_time is not None:
            assert optimum is not None
            assert found.pipeline_time >= optimum


def test_forward_times_by_strategy_are_refused() -> None:
    rng = random.Random(5)
    while True:
        problem = with_forward_by_strategy(random_stage_problem(rng), rng)
        if any(len({s.forward for s in kind.strategies}) > 1 for table in problem.tables for kind in table):
            break
    assert not searchable(problem)
    with pytest.raises(ValueError, match="forward"):
        BoundarySearch(problem, 100)


def shape(run: Run) -> StageProblem:
    """A stage problem of the run's sizes; its tables do not matter to paths."""
    rng = random.Random(0)
    while True:
        problem = random_stage_problem(rng, schedules=(run.schedule,), max_pp=run.pp)
        if problem.pp == run.pp and count_plans(problem):
            return problem.replace(num_microbatches=run.num_microbatches, p2p=run.p2p)


@given(runs(names=("1f1b",)), st.integers(1, 9))
@settings(max_examples=150, deadline=None)
def test_window_paths_never_exceed_the_simulated_time(run: Run, p2p: int) -> None:
    run = replace(run, p2p=p2p)
    time = pipeline_time(*run.sizes, *run.times)
    for cut in window_cuts(shape(run)):
        assert cut.value(*run.times) <= time


def test_windows_see_transfers_that_no_single_rank_sees() -> None:
    """Equally loaded ranks with slow transfers: the best window path is above every static one."""
    run = Run("1f1b", 4, 1, 12, [5] * 4, [9] * 4, [0] * 4, [0] * 4, [0] * 4, 6)
    problem = shape(run)
    windows = window_cuts(problem)
    assert windows
    best = max(cut.value(*run.times) for cut in windows)
    assert best > max(cut.value(*run.times) for cut in static_cuts(*run.sizes))
    assert best <= pipeline_time(*run.sizes, *run.times)


def test_no_windows_without_transfers_or_in_gpipe() -> None:
    run = Run("1f1b", 3, 1, 6, [1] * 3, [1] * 3, [0] * 3, [0] * 3, [0] * 3, 0)
    assert window_cuts(shape(run)) == []
    assert window_cuts(shape(replace(run, schedule="gpipe", p2p=3))) == []
