"""Three independent answers to one instance: the whole search, one joint model over all layouts, and enumeration."""

from __future__ import annotations

import pytest

from prism_cp.baselines.exhaustive import exhaustive_layouts
from prism_cp.check import check_plan
from prism_cp.cp.joint import solve_joint
from prism_cp.inputs.layout import SCHEDULES
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.plan_builder import build_plan
from prism_cp.search.solve import solve_instance
from tests.random_instances import Case, random_cases

FAMILY = 15  # instances that share their formulas
DEFAULT = range(34)  # 510 instances
EVERY_SCHEDULE = range(700, 708)
BY_NAME = range(1_000, 1_000 + 10_000 // FAMILY + 1)


def assert_all_agree(case: Case, name: str) -> None:
    result = solve_instance(case.instance, cost_model=case.costs)
    oracle = exhaustive_layouts(case.candidates)
    joint = solve_joint(case.candidates)
    best = None if oracle is None else oracle[0]
    status = "infeasible" if oracle is None else "optimal"
    assert (name, result.status, result.objective) == (name, status, best)
    assert (name, joint.status, joint.objective) == (name, status, best)
    assert result.proved
    assert result.bound == best
    counts = result.statistics
    ended = counts.pruned + counts.no_better + counts.solved + counts.infeasible
    assert (ended, counts.open) == (counts.layouts_total, 0)
    assert counts.layouts_total == len(case.candidates)
    plan = build_plan(case.instance, result, tables=case.tables)
    report = check_plan(plan, case.instance, tables=case.tables)
    assert report.ok, (name, report.findings)
    if result.best is not None:
        assert result.best.layout in dict(case.candidates)


@pytest.mark.parametrize("seed", DEFAULT)
def test_decomposed_joint_exhaustive_agree(seed: int) -> None:
    for index, case in enumerate(random_cases(seed, FAMILY)):
        assert_all_agree(case, f"family {seed}, instance {index}")


@pytest.mark.parametrize("seed", EVERY_SCHEDULE)
def test_decomposed_joint_exhaustive_agree_over_every_schedule(seed: int) -> None:
    for index, case in enumerate(random_cases(seed, 8, SCHEDULES)):
        assert_all_agree(case, f"family {seed}, instance {index}")


@pytest.mark.slow
@pytest.mark.parametrize("seed", BY_NAME)
def test_decomposed_joint_exhaustive_agree_10000(seed: int) -> None:
    for index, case in enumerate(random_cases(seed, FAMILY, SCHEDULES if seed % 4 == 0 else None)):
        assert_all_agree(case, f"family {seed}, instance {index}")


def test_families_hold_what_the_comparison_is_about() -> None:
    """Without infeasible instances, pipelines and recomputation the comparison above would say little."""
    cases = [case for seed in (3, 5, 7, 9) for case in random_cases(seed, FAMILY)]
    infeasible = pipelined = recomputing = 0
    for case in cases:
        found = exhaustive_layouts(case.candidates)
        if found is None:
            infeasible += 1
            continue
        _, layout, assignment = found
        problem = dict(case.candidates)[layout]
        pipelined += layout.pp > 1
        recomputing += any(
            n
            for piece in assignment.counts
            for row, kind in zip(piece, problem.tables[0], strict=True)
            for n, strategy in zip(row, kind.strategies, strict=True)
            if strategy.name == "full" and len(kind.strategies) > 1
        )
    assert infeasible >= len(cases) // 20
    assert pipelined >= len(cases) // 3
    assert recomputing >= len(cases) // 20


@pytest.mark.parametrize("seed", [2, 11])
def test_shared_formulas_give_the_instances_own_tables(seed: int) -> None:
    *_, case = random_cases(seed, 4)
    own = CostModel(case.instance)
    for layout, problem in case.candidates:
        assert build_stage_problem(case.instance, layout, own) == problem
