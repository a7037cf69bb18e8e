"""Robust plans: proved against enumeration of every plan, and a checker that notices every changed claim."""

from __future__ import annotations

import contextlib
import copy
import json
import random
from typing import Any

import pytest

from prism_cp.baselines.exhaustive import all_assignments
from prism_cp.check import check_plan
from prism_cp.errors import PlanError, UsageError
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.load import load_instance
from prism_cp.layouts.admissible import all_layouts
from prism_cp.plan import Plan, plan_from_json
from prism_cp.plan_builder import build_plan
from prism_cp.result import SearchResult
from prism_cp.robustness.load_range import LoadRange, at_load, require_load
from prism_cp.robustness.robust import RobustChoice, solve_robust
from prism_cp.robustness.worst_case import LoadTables, headroom, step_time
from prism_cp.search.options import SearchOptions
from prism_cp.search.solve import solve_instance
from tests.random_instances import random_instance

SPREAD = LoadRange(1.0, 2.0)


def robust(instance: Instance, spread: LoadRange = SPREAD) -> RobustChoice:
    return solve_robust(instance, spread, lambda at_end, known: solve_instance(at_end, SearchOptions(), known=known))


def enumerated(instance: Instance, loads: tuple[float, ...]) -> int | None:
    """The best worst case over these loads by looking at every plan of every layout; None when nothing fits."""
    tables, best = LoadTables(instance), None
    for layout in all_layouts(instance):
        problems = [tables.problem(layout, load) for load in loads]
        for assignment in all_assignments(problems[0]):
            if any(headroom(problem, assignment) < 0 for problem in problems):
                continue
            worst = max(step_time(problem, assignment) for problem in problems)
            best = worst if best is None else min(best, worst)
    return best


def instance_with_experts(seed: int) -> Instance:
    rng = random.Random(seed)
    while True:
        instance = random_instance(rng)
        with contextlib.suppress(UsageError):
            require_load(instance)
            return instance


@pytest.mark.parametrize("seed", [5, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 30))])
def test_no_plan_has_a_better_worst_case(seed: int) -> None:
    instance = instance_with_experts(seed)
    choice = robust(instance)
    best = enumerated(instance, SPREAD.points)
    if choice.summary is None:
        assert best is None
        assert choice.result.status == "infeasible"
        return
    summary = choice.summary
    assert summary.worst_case_at_most is not None
    assert best is not None
    assert summary.lower_bound <= best <= summary.worst_case_at_most
    if summary.proved:
        assert best == summary.worst_case_at_least
    assert summary.points[0].step_time is not None


@pytest.fixture(scope="module")
def choice() -> RobustChoice:
    return robust(load_instance("instances/tiny/moe-8.yaml"))


def plan_of(choice: RobustChoice) -> Plan:
    result: SearchResult = choice.result
    return build_plan(choice.instance, result).model_copy(update={"robust": choice.summary})


def test_summary_of_a_tiny_mixture(choice: RobustChoice) -> None:
    summary = choice.summary
    assert summary is not None
    assert summary.proved
    assert summary.nominal is not None
    assert summary.nominal.objective == summary.nominal.bound
    low, high = (solve_instance(at_load(choice.instance, load)).objective for load in (1.0, 2.0))
    assert (summary.nominal.objective, summary.worst_case_at_most) == (low, high)
    first, last = summary.points[0], summary.points[-1]
    assert summary.price == pytest.approx(first.step_time / low - 1)
    assert summary.regret is None
    pinned = choice.instance.layout.pinned_to(summary.nominal.layout.layout())
    own = solve_instance(choice.instance.model_copy(update={"layout": pinned}))
    assert summary.adapted_status == own.status == "optimal"
    assert summary.adapted is not None
    assert summary.adapted.objective == summary.adapted.bound == own.objective
    assert summary.adapted_regret == pytest.approx(own.objective / high - 1)
    assert last.nominal_step_time is None
    assert last.nominal_headroom_gib < 0 <= last.headroom_gib


@pytest.mark.slow
def test_regret_of_a_plan_that_still_fits() -> None:
    summary = robust(load_instance("instances/tiny/shared-experts-4.yaml"), LoadRange(1.0, 1.5)).summary
    assert summary is not None
    assert summary.nominal is not None
    last = summary.points[-1]
    assert last.nominal_step_time is not None
    assert summary.regret == pytest.approx(last.nominal_step_time / last.step_time - 1)
    assert summary.regret >= 0


def changed_values(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value * 1.01 + 1e-3]
    return ["x"] if value is None else [value + "x"] if isinstance(value, str) else []


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return [path]
    return [leaf for key, inner in items for leaf in leaves(inner, (*path, key))]


def test_the_checker_notices_every_changed_claim(choice: RobustChoice, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(choice)
    shared = LoadTables(choice.instance)  # the instance is never changed
    monkeypatch.setattr("prism_cp.check_robust.LoadTables", lambda _: shared)
    assert check_plan(plan, choice.instance).ok
    document = json.loads(plan.to_json())
    missed = []
    # The same fields of every point and every layout are read by the same code: some of each are enough. Loads inside
    # the range may be any.
    left_out = {("points", index) for index in (0, 1, 3, 4)} | {("bounded_loads", index) for index in (1, 2, 3)}
    left_out |= {(name, key) for name in ("nominal", "adapted") for key in ("layout", "boundaries", "counts")}
    paths = [path for path in leaves(document["robust"]) if path[:2] not in left_out]
    for path in [*paths, ("nominal", "layout", "edp"), ("nominal", "boundaries", 1), ("adapted", "layout", "dp")]:
        target = document["robust"]
        for value in changed_values(get(target, path)):
            tampered = copy.deepcopy(document)
            get(tampered["robust"], path[:-1])[path[-1]] = value
            try:
                noticed = not check_plan(plan_from_json(json.dumps(tampered)), choice.instance).ok
            except PlanError:
                noticed = True
            if not noticed:
                missed.append(path)
    assert missed == []


def get(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def test_a_range_without_a_plan_is_noticed(choice: RobustChoice) -> None:
    plan = plan_of(choice)
    other = plan.model_copy(update={"instance": plan.instance})
    summary = choice.summary.model_copy(update={"low": 1.0, "high": 3.0})
    report = check_plan(other.model_copy(update={"robust": summary}), choice.instance)
    assert any(finding.key.startswith("robust") for finding in report.findings)
