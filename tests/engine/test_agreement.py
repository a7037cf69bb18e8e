"""The engine against enumeration and against the stage model, over all schedules, infeasible problems included."""

from __future__ import annotations

import pytest

from prism_cp.baselines.exhaustive import exhaustive
from prism_cp.cp.exact import cut_value, evaluate, is_feasible
from prism_cp.cp.solve import solve_stage_problem
from prism_cp.engine import EngineResult, complete, decide, solve_with_engine, state
from prism_cp.stage_problem import StageProblem
from tests.engine.problems import SCHEDULES, small_problem, without_reduction


def check(problem: StageProblem, optimum: int | None, result: EngineResult) -> None:
    if optimum is None:
        assert result.status == "infeasible"
        assert result.assignment is None
        return
    assert result.status == "optimal"
    assert result.pipeline_time == result.lower_bound == optimum
    assert result.assignment is not None
    assert is_feasible(problem, result.assignment)
    assert evaluate(problem, result.assignment).pipeline_time == optimum
    assert all(cut_value(problem, cut, result.assignment) <= optimum for cut in result.cuts)


MOST_PLANS = (60, 200, 600)  # sizes in turn; the number of schedules is no multiple of three


def agree(seeds: range, stage_model_every: int) -> None:
    """Engine = enumeration on all seeds, = stage model on some; a fair share has no plan, a fair share several."""
    without_plan = several = 0
    schedules = set()
    for seed in seeds:
        problem = small_problem(seed, most_plans=MOST_PLANS[seed % len(MOST_PLANS)])
        oracle = exhaustive(problem)
        check(problem, oracle.pipeline_time, solve_with_engine(problem))
        if seed % stage_model_every == 0:
            assert solve_stage_problem(problem).pipeline_time == oracle.pipeline_time
        without_plan += oracle.pipeline_time is None
        several += oracle.pipeline_time is not None and oracle.num_plans > 1
        schedules.add(problem.schedule)
    assert schedules == set(SCHEDULES)
    assert without_plan > len(seeds) / 10
    assert several > len(seeds) / 3


@pytest.mark.parametrize("block", range(20))
def test_engine_is_enumeration_on_two_thousand(block: int) -> None:
    agree(range(100 * block, 100 * (block + 1)), stage_model_every=1)


@pytest.mark.parametrize("block", range(3))
def test_outlined_items_and_weights_are_enumeration(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only problems with many pieces and long walks need, on small ones."""
    monkeypatch.setattr(state, "MOST_UNSKETCHED", 1)
    monkeypatch.setattr(decide, "NODES_PER_SLICE", 5)
    agree(range(5_000 + 100 * block, 5_100 + 100 * block), stage_model_every=10_000)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(20))
def test_engine_is_enumeration_on_twenty_thousand(block: int) -> None:
    agree(range(10_000 + 1_000 * block, 10_000 + 1_000 * (block + 1)), stage_model_every=1)


@pytest.mark.parametrize("seed", range(1_000, 1_021))
def test_engine_is_stage_model(seed: int) -> None:
    problem = small_problem(seed, most_plans=20_000)
    solution = solve_stage_problem(problem)
    assert solution.status in ("optimal", "infeasible")
    check(problem, solution.pipeline_time, solve_with_engine(problem))


@pytest.mark.parametrize("seed", range(2_000, 2_105))
def test_engine_needs_no_other_solver(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where strategies do not change the tails, the engine's own tables are exact and it hands nothing on."""

    def never(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a complete choice was handed to the stage model")

    monkeypatch.setattr(complete, "solve_stage_problem", never)
    problem = without_reduction(small_problem(seed))
    check(problem, exhaustive(problem).pipeline_time, solve_with_engine(problem))


@pytest.mark.parametrize("seed", range(3_000, 3_035))
def test_bounds_given_from_outside(seed: int) -> None:
    problem = small_problem(seed)
    best = exhaustive(problem)
    if best.pipeline_time is None:
        assert solve_with_engine(problem, upper_bound=0).status in ("no_better", "infeasible")
        return
    optimum = best.pipeline_time
    below = solve_with_engine(problem, upper_bound=optimum - 1)
    assert (below.status, below.assignment, below.lower_bound) == ("no_better", None, optimum)
    check(problem, optimum, solve_with_engine(problem, upper_bound=optimum))
    check(problem, optimum, solve_with_engine(problem, optimum, hint=best.assignment))
    again = solve_with_engine(problem, max(0, optimum - 3), optimum + 5, cuts=solve_with_engine(problem).cuts)
    check(problem, optimum, again)
