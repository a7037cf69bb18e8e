"""Sensitivity: constants are scaled where the formulas read them, and every verdict agrees with enumeration."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from prism_cp.baselines.exhaustive import exhaustive, exhaustive_layouts
from prism_cp.inputs.consistency import check_consistency
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.inputs.load import load_instance
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.layouts.admissible import all_layouts
from prism_cp.robustness.constants import constants
from prism_cp.robustness.sensitivity import Probe, Search, probe, sensitivity
from prism_cp.search.options import SearchOptions
from prism_cp.search.solve import solve_instance
from tests.random_instances import random_instance
from tests.sample_plan import ASSIGNMENT, LAYOUT, sample_instance


def solver(**options: object) -> Search:
    return lambda instance, known: solve_instance(instance, SearchOptions(**options), known=known)


# -- constants ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["dense/llama-3.1-70b-64xh100", "moe/deepseek-v3-2048xh800", "tiny/ascend-8"])
def test_constants_are_scaled_where_they_stand(path: str) -> None:
    instance = load_instance(f"instances/{path}.yaml")
    found = constants(instance)
    keys = [constant.key for constant in found]
    assert len(keys) == len(set(keys)) >= 9
    assert ("job.expert_load" in keys) == (path != "dense/llama-3.1-70b-64xh100")
    for constant in found:
        for factor in {max(0.5, constant.least), min(1.25, constant.most)}:
            changed = constant.scaled(instance, factor)
            check_consistency(Instance.model_validate_json(changed.model_dump_json()))  # still a valid instance
            before, after = (at(one, constant.key) for one in (instance, changed))
            assert after == pytest.approx(before * factor, rel=1e-6)
        assert constant.scaled(instance, 1.0).model_dump() == instance.model_dump()


def at(instance: Instance, path: str) -> float:
    value: object = instance
    for part in path.split("."):
        value = value[int(part)] if isinstance(value, tuple) else getattr(value, part)
    assert isinstance(value, float | int)
    return value


@pytest.mark.slow
def test_every_constant_matters_to_some_table() -> None:
    """Each one changes exact costs, with the host's launches or without them: nothing is scaled in vain."""
    sample = sample_instance()
    graphs = sample.model_copy(update={"profile": sample.profile.model_copy(update={"full_cuda_graphs": True})})
    effective = set()
    for instance in (sample, graphs):
        base = CostModel(instance).evaluate_exact(LAYOUT)
        for constant in constants(instance):
            changed = constant.scaled(instance, min(1.5, constant.most))
            if constant.key not in effective and CostModel(changed).evaluate_exact(LAYOUT) != base:
                effective.add(constant.key)
    assert effective == {constant.key for constant in constants(sample)}


# -- verdicts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (0, 2, 3, 4, 5))])
def test_verdicts_agree_with_enumeration(seed: int) -> None:
    rng = random.Random(40 + seed)
    while True:
        instance = random_instance(rng)
        start = solve_instance(instance)
        if start.best is not None and len(all_layouts(instance)) > 1:
            break
    assert start.best.assignment is not None
    layout = start.best.layout
    known = constants(instance)
    for constant in rng.sample(known, 3):
        factor = max(0.5, constant.least) if rng.random() < 0.5 else min(2.0, constant.most)
        changed = constant.scaled(instance, factor)
        found = probe(changed, layout, start.best.assignment, factor, solver())
        costs = CostModel(changed)
        problems = [(one, build_stage_problem(changed, one, costs)) for one in all_layouts(changed)]
        best = exhaustive_layouts(problems)
        own = next(exhaustive(problem).pipeline_time for one, problem in problems if one == layout)
        barrier = next(problem.barrier for one, problem in problems if one == layout)
        assert found.step_time == (None if best is None else best[0])
        expected = own is not None and best is not None and own + barrier == best[0]
        assert found.verdict == ("optimal" if expected else "not optimal")
        assert found.own_fits == (own is not None)


def test_an_unproved_search_says_so() -> None:
    """A search that ends at once proves nothing, for or against the layout."""
    found = probe(sample_instance(), LAYOUT, ASSIGNMENT, 1.0, solver(time_limit_s=1e-9))
    assert found.verdict == "unproved"


def test_pinned_space_has_one_layout() -> None:
    instance = sample_instance()
    only = instance.model_copy(update={"layout": instance.layout.pinned_to(LAYOUT)})
    assert all_layouts(only) == [LAYOUT]
    assert only.layout.recompute == instance.layout.recompute


# -- bisection ---------------------------------------------------------------------------------------------------------


def scripted(least: float, most: float) -> tuple[Search, list[float]]:
    """A search under which the layout is optimal exactly for loads from `least` to `most`, and what it was asked."""
    result = solve_instance(sample_instance().model_copy(update={"layout": sample_instance().layout.pinned_to(LAYOUT)}))
    asked: list[float] = []

    def search(instance: Instance, known: object) -> object:
        factor = instance.job.expert_load / 4
        only = instance.layout.tp is not None and len(instance.layout.tp) == 1 and instance.layout.pp == (LAYOUT.pp,)
        if not only:
            asked.append(factor)
        if only or least <= factor <= most:
            return result
        better = replace(result.best, layout=replace(LAYOUT, dp=1))
        return replace(result, best=better, objective=result.objective - 1, bound=result.objective - 1)

    return search, asked  # type: ignore[return-value]


def probed(search: Search, low: float, high: float, resolution: float) -> object:
    instance = sample_instance()
    instance = instance.model_copy(update={"job": instance.job.model_copy(update={"expert_load": 4.0})})
    (constant,) = (one for one in constants(instance) if one.key == "job.expert_load")
    return sensitivity(instance, LAYOUT, ASSIGNMENT, constant, low=low, high=high, resolution=resolution, search=search)


def test_only_the_ends_are_probed_where_the_layout_holds() -> None:
    search, asked = scripted(0.0, 10.0)
    found = probed(search, 0.5, 2.0, 0.05)
    assert asked == [0.5, 2.0]
    assert (found.down.holds_to, found.down.ends_at) == (0.5, None)
    assert (found.up.holds_to, found.up.ends_at) == (2.0, None)


def test_changes_are_bracketed() -> None:
    search, _ = scripted(0.81, 1.3)
    found = probed(search, 0.5, 2.0, 0.02)
    for side, change in ((found.down, 0.81), (found.up, 1.3)):
        inner, outer = sorted((side.holds_to, side.ends_at.factor))
        assert inner <= change <= outer <= inner * 1.02
        assert side.ends_at.verdict == "not optimal"
        assert side.ends_at.best == Layout(**{**LAYOUT.as_dict(), "dp": 1})
    factors = [one.factor for one in found.probes]
    assert factors == sorted(factors)


def test_values_that_cannot_change_are_left_alone() -> None:
    """A load is at least 1: from 4 it may fall to a quarter, whatever is asked; ranges may be one-sided."""
    search, asked = scripted(0.0, 10.0)
    found = probed(search, 0.1, 1.0, 0.05)
    assert asked == [0.25]
    assert found.up is None


def test_an_interrupted_probe_ends_it() -> None:
    calls = []

    def search(instance: Instance, known: object) -> object:
        calls.append(instance)
        return replace(solve_instance(sample_instance(), SearchOptions(time_limit_s=1e-9)), interrupted=True)

    found = probed(search, 0.5, 2.0, 0.05)  # type: ignore[arg-type]
    assert len(calls) == 1
    assert found.interrupted
    assert found.up is None
    assert isinstance(found.probes[0], Probe)
