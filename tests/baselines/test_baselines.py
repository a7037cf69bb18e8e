"""Baselines give plans that fit, and the oracle looks at every plan."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from prism_cp.baselines import BASELINES
from prism_cp.baselines.exhaustive import all_assignments, count_plans, exhaustive
from prism_cp.baselines.uniform import even_boundaries
from prism_cp.cp.exact import evaluate, is_feasible
from prism_cp.stage_problem import structure_errors
from tests.random_problems import random_stage_problem


@pytest.mark.parametrize("seed", range(20))
def test_every_baseline_is_no_better_than_the_oracle_and_fits(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_stage_problem(rng, max_layers=5, max_strategies=2)
    if count_plans(problem) > 5_000:
        problem = problem.replace(layers=problem.layers[:2], min_layers=(0,) * problem.num_pieces)
    optimum = exhaustive(problem).pipeline_time
    for name, baseline in BASELINES.items():
        plan = baseline(problem)
        if plan is None:
            assert name != "exhaustive" or optimum is None
            continue
        assert is_feasible(problem, plan)
        assert optimum is not None
        assert evaluate(problem, plan).pipeline_time >= optimum


@pytest.mark.parametrize("seed", range(10))
def test_enumeration_is_complete_and_without_repetition(seed: int) -> None:
    problem = random_stage_problem(random.Random(seed), max_layers=4, max_strategies=2, max_pp=2)
    plans = list(all_assignments(problem))
    assert len(plans) == len(set(plans)) == count_plans(problem)
    assert not any(structure_errors(problem, plan) for plan in plans)
    total = len(problem.layers)
    cuts = {plan.boundaries for plan in plans}
    for inner in itertools.combinations_with_replacement(range(total + 1), problem.num_pieces - 1):
        bounds = (0, *inner, total)
        sizes = [b - a for a, b in itertools.pairwise(bounds)]
        legal = all(
            low <= n <= high for low, n, high in zip(problem.min_layers, sizes, problem.max_layers, strict=True)
        )
        assert (bounds in cuts) == legal


def test_oracle_refuses_what_it_cannot_enumerate() -> None:
    problem = random_stage_problem(random.Random(0))
    with pytest.raises(ValueError, match="too many"):
        exhaustive(problem, plan_limit=0)


def test_even_split_leaves_outer_pieces_the_remainder() -> None:
    problem = random_stage_problem(random.Random(1), schedules=("gpipe",))
    stages = tuple(replace(problem.virtual_stages[0], rank=i, piece=i) for i in range(4))
    wide = problem.replace(
        pp=4,
        num_pieces=4,
        layers=(0,) * 10,
        min_layers=(0,) * 4,
        max_layers=(10,) * 4,
        virtual_stages=stages,
        ranks=problem.ranks[:1] * 4,
    )
    assert even_boundaries(wide) == (0, 2, 5, 8, 10)
    assert even_boundaries(wide.replace(max_layers=(2,) * 4)) is None
