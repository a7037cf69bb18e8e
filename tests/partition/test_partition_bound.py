"""The partition bound against enumeration: never above the optimum, never infeasible without reason, plans that fit."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from prism_cp.baselines.exhaustive import count_plans, exhaustive
from prism_cp.cp.exact import evaluate, is_feasible
from prism_cp.partition import partition_bound
from prism_cp.partition.bound import applicable
from prism_cp.stage_problem import StageProblem
from tests.random_problems import random_stage_problem

CHUNK = 16
MOST_PLANS = 700


def enumerable_problems(seed: int, count: int = CHUNK) -> list[StageProblem]:
    """Random problems of GPipe and 1F1B, in every other one the forward time depends on the strategy."""
    rng = random.Random(seed)
    problems: list[StageProblem] = []
    while len(problems) < count:
        problem = random_stage_problem(rng, max_pp=4, max_microbatches=8)
        if len(problems) % 2:
            problem = with_forward_by_strategy(problem, rng)
        if count_plans(problem) <= MOST_PLANS:
            problems.append(problem)
    return problems


def with_forward_by_strategy(problem: StageProblem, rng: random.Random) -> StageProblem:
    tables = tuple(
        tuple(
            replace(kind, strategies=tuple(replace(s, forward=rng.randint(1, 12)) for s in kind.strategies))
            for kind in table
        )
        for table in problem.tables
    )
    return problem.replace(tables=tables)


@pytest.mark.parametrize("seed", range(10))
def test_bound_never_exceeds_the_optimum(seed: int) -> None:
    for index, problem in enumerate(enumerable_problems(seed)):
        name = f"seed {seed}, problem {index}"
        assert applicable(problem), name
        found, optimum = partition_bound(problem), exhaustive(problem).pipeline_time
        if found.lower_bound is None:
            assert optimum is None, name
            assert found.assignment is None, name
            continue
        if optimum is not None:
            assert found.lower_bound <= optimum, name
        if found.assignment is not None:
            assert is_feasible(problem, found.assignment), name
            assert evaluate(problem, found.assignment).pipeline_time >= found.lower_bound, name


@pytest.mark.parametrize("seed", range(10, 20))
def test_a_limit_is_refuted_only_when_nothing_is_within_it(seed: int) -> None:
    for index, problem in enumerate(enumerable_problems(seed)):
        optimum = exhaustive(problem).pipeline_time
        limits = (0, 500) if optimum is None else (0, optimum // 2, optimum - 1, optimum, optimum + 7)
        for limit in limits:
            name = f"seed {seed}, problem {index}, limit {limit}"
            found = partition_bound(problem, limit)
            assert found.lower_bound is not None, name
            if optimum is not None:
                assert found.lower_bound <= optimum, name
            if found.assignment is not None:
                assert is_feasible(problem, found.assignment), name


def test_bound_is_met_by_its_plan_most_of_the_time() -> None:
    """A bound of 0 would pass the tests above; this one says that it is worth something."""
    met = feasible = refuted = infeasible = 0
    for problem in enumerable_problems(20, 150):
        optimum, found = exhaustive(problem).pipeline_time, partition_bound(problem)
        if optimum is None:
            infeasible += 1
            refuted += found.lower_bound is None
        else:
            feasible += 1
            met += found.lower_bound == optimum
    assert feasible >= 75
    assert infeasible >= 10
    assert met >= 0.5 * feasible
    assert refuted == infeasible


@pytest.mark.parametrize("seed", range(30, 34))
def test_one_unit_of_memory_decides(seed: int) -> None:
    """The optimum's capacity lowered to just below what its fullest rank holds must move bound and optimum alike."""
    for index, problem in enumerate(enumerable_problems(seed)):
        least = min(rank.capacity for rank in problem.ranks)
        for capacity in range(least - 3, least + 1):
            tight = problem.replace(ranks=tuple(replace(rank, capacity=capacity) for rank in problem.ranks))
            optimum, found = exhaustive(tight).pipeline_time, partition_bound(tight)
            name = f"seed {seed}, problem {index}, capacity {capacity}"
            assert (found.lower_bound is None) <= (optimum is None), name
            if optimum is not None and found.lower_bound is not None:
                assert found.lower_bound <= optimum, name
            if found.assignment is not None:
                assert is_feasible(tight, found.assignment), name


def test_other_schedules_are_refused() -> None:
    problem = random_stage_problem(random.Random(0), schedules=("interleaved",))
    assert not applicable(problem)
    with pytest.raises(ValueError, match="interleaved"):
        partition_bound(problem)
