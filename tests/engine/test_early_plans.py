"""Plans by annealing alone: they are plans, they take what is said, and they are found where plans are easy to find."""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace

import pytest

from prism_cp.baselines.exhaustive import all_assignments
from prism_cp.benchmark.family import FamilyCase, family_problem
from prism_cp.cp.exact import evaluate, is_feasible
from prism_cp.engine import Limits, early_plan, solve_with_engine
from tests.engine.problems import small_problem


@pytest.mark.parametrize("seed", range(60))
def test_plans_of_small_problems(seed: int) -> None:
    problem = small_problem(seed, most_plans=2_000)
    found = early_plan(problem, seed)
    if found is not None:
        plan, pipeline_time = found
        assert plan in list(all_assignments(problem))
        assert is_feasible(problem, plan)
        assert evaluate(problem, plan).pipeline_time == pipeline_time


def test_most_small_problems_are_solved() -> None:
    solved = feasible = 0
    for seed in range(60):
        problem = small_problem(seed, most_plans=2_000)
        best = solve_with_engine(problem).pipeline_time
        found = early_plan(problem)
        feasible += best is not None
        solved += best is not None and found is not None and found[1] == best
        assert found is None or (best is not None and best <= found[1])
    assert feasible >= 20
    assert solved >= feasible * 2 // 3


def test_near_the_best_plan_where_every_rank_holds_four_pieces() -> None:
    problem = family_problem(FamilyCase("qw", "interleaved", 4, 4, 64, 1.0))
    found = early_plan(problem)
    assert found is not None
    assert found[1] <= solve_with_engine(problem).lower_bound * 1.02


def test_nothing_is_looked_for_beyond_the_limits() -> None:
    problem = family_problem(FamilyCase("qw", "interleaved", 4, 2, 16, 1.0))
    stop = threading.Event()
    assert early_plan(problem, limits=Limits(None, None, stop)) is not None
    stop.set()
    assert early_plan(problem, limits=Limits(None, None, stop)) is None
    assert early_plan(problem, limits=Limits(time.monotonic(), None, None)) is None


def test_as_many_layers_as_every_piece_must_hold() -> None:
    """The even start would leave some pieces with fewer layers than they must hold, and others with too many."""
    problem = family_problem(FamilyCase("qw", "interleaved", 4, 2, 16, 1.0))
    length, pieces = len(problem.layers), problem.num_pieces
    wanted = [1, *[2] * (pieces - 2), length - 1 - 2 * (pieces - 2)]
    ranks = tuple(replace(rank, capacity=1 << 40) for rank in problem.ranks)
    fixed = problem.replace(ranks=ranks, min_layers=tuple(wanted), max_layers=tuple(wanted))
    found = early_plan(fixed)
    assert found is not None
    assert [last - first for first, last in itertools.pairwise(found[0].boundaries)] == wanted
    assert early_plan(problem.replace(min_layers=(length,) * pieces)) is None
