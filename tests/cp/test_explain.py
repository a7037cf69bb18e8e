"""What is said about problems in which nothing fits."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from prism_cp.baselines.exhaustive import all_assignments, count_plans
from prism_cp.cp.exact import live_vectors
from prism_cp.cp.explain import explain_infeasible, least_overshoot
from prism_cp.cp.solve import solve_stage_problem
from prism_cp.stage_problem import StageProblem, rank_memories
from tests.random_problems import random_stage_problem


def infeasible_problem(seed: int) -> StageProblem:
    rng = random.Random(seed)
    while True:
        problem = random_stage_problem(rng, max_pp=2, max_strategies=2)
        problem = problem.replace(ranks=tuple(replace(r, capacity=r.capacity // 3) for r in problem.ranks))
        if count_plans(problem) < 5000 and solve_stage_problem(problem).status == "infeasible":
            return problem


@pytest.mark.parametrize("seed", range(6))
def test_shortage_is_the_least_any_plan_has(seed: int) -> None:
    problem = infeasible_problem(seed)
    live = live_vectors(problem)
    overshoots = [
        max(row.total - row.capacity for row in rank_memories(problem, assignment, live))
        for assignment in all_assignments(problem)
    ]
    shortages = explain_infeasible(problem)
    if not overshoots:
        assert shortages[0].term == "layers"
        return
    assert shortages[0].short_by == min(overshoots) == least_overshoot(problem)[0]
    # giving the named ranks what they lack makes the problem feasible
    lacking = {shortage.rank: shortage.short_by for shortage in shortages}
    relaxed = problem.replace(
        ranks=tuple(replace(r, capacity=r.capacity + lacking.get(i, 0)) for i, r in enumerate(problem.ranks))
    )
    assert solve_stage_problem(relaxed).status == "optimal"
    assert explain_infeasible(relaxed) == []


def test_contradicting_piece_limits_are_told_apart_from_memory() -> None:
    problem = infeasible_problem(0)
    broken = problem.replace(min_layers=(len(problem.layers) + 1,) * problem.num_pieces)
    assert explain_infeasible(broken)[0].term == "layers"
    assert solve_stage_problem(broken).status == "infeasible"
