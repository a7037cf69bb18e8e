"""Statuses, bounds, limits, hints and reproducibility of the stage solve."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest
from ortools.sat.python import cp_model

from prism_cp.baselines.exhaustive import count_plans, exhaustive
from prism_cp.baselines.uniform import uniform
from prism_cp.cp.exact import cut_value, evaluate, is_feasible, live_vectors, static_cuts
from prism_cp.cp.export import solve_with_highs, write_linear_model
from prism_cp.cp.model import ModelInvalidError, StageModel
from prism_cp.cp.objective import longest_possible, proven_bound
from prism_cp.cp.solve import solve_stage_problem
from prism_cp.errors import UsageError
from prism_cp.stage_problem import Assignment, StageProblem
from tests.random_problems import random_stage_problem


def feasible_problem(seed: int, **options: object) -> tuple[StageProblem, int]:
    rng = random.Random(seed)
    while True:
        problem = random_stage_problem(rng, **options)  # type: ignore[arg-type]
        if count_plans(problem) <= 5_000:
            best = exhaustive(problem).pipeline_time
            if best is not None:
                return problem, best


@pytest.mark.parametrize("seed", range(15))
def test_upper_bound_decides_between_optimal_and_no_better(seed: int) -> None:
    problem, best = feasible_problem(seed)
    at = solve_stage_problem(problem, upper_bound=best)
    assert (at.status, at.pipeline_time, at.bound) == ("optimal", best, best)
    below = solve_stage_problem(problem, upper_bound=best - 1)
    assert (below.status, below.assignment, below.bound) == ("no_better", None, best)


@pytest.mark.parametrize("seed", range(15))
def test_hint_is_the_first_incumbent_and_never_lost(seed: int) -> None:
    problem, best = feasible_problem(seed)
    hint = uniform(problem)
    seen: list[int] = []
    solution = solve_stage_problem(problem, hint=hint, on_incumbent=lambda _plan, time: seen.append(time))
    assert solution.pipeline_time == best
    assert seen == sorted(seen, reverse=True)
    assert seen[-1] == best
    if hint is not None:
        assert seen[0] == evaluate(problem, hint).pipeline_time
    again = solve_stage_problem(problem, hint=solution.assignment, cuts=solution.cuts)
    assert (again.status, again.pipeline_time) == ("optimal", best)


def test_infeasible_hint_is_no_incumbent() -> None:
    problem, best = feasible_problem(3)
    pieces, kinds = problem.num_pieces, problem.num_kinds
    wrong = Assignment(
        (0,) * pieces + (len(problem.layers),),
        tuple(tuple((0,) * len(problem.tables[0][k].strategies) for k in range(kinds)) for _ in range(pieces)),
    )
    assert not is_feasible(problem, wrong)
    assert solve_stage_problem(problem, hint=wrong).pipeline_time == best


def test_same_seed_same_answer() -> None:
    problem, _ = feasible_problem(5, max_layers=8)
    first, second = (solve_stage_problem(problem, seed=7) for _ in range(2))
    assert replace(first, wall_s=0.0) == replace(second, wall_s=0.0)


def test_stop_and_limits_end_with_a_valid_bound() -> None:
    problem, best = feasible_problem(8)
    stop = threading.Event()
    stop.set()
    stopped = solve_stage_problem(problem, stop=stop)
    assert stopped.num_solves == 0
    assert stopped.bound <= best
    limited = solve_stage_problem(problem, deterministic_limit=0.0)
    assert limited.bound <= best
    assert limited.status in ("feasible", "unknown", "optimal")
    if limited.status == "optimal":
        assert limited.pipeline_time == best


def test_an_error_in_the_callback_is_raised() -> None:
    problem, _ = feasible_problem(2)

    def fail(_plan: Assignment, _time: int) -> None:
        raise ValueError("no room for the incumbent")

    with pytest.raises(ValueError, match="no room"):
        solve_stage_problem(problem, on_incumbent=fail)


def test_too_large_numbers_raise_instead_of_being_unsolved() -> None:
    problem, _ = feasible_problem(4)
    huge = problem.replace(ranks=tuple(replace(rank, capacity=2**62) for rank in problem.ranks), p2p=2**60)
    with pytest.raises((ModelInvalidError, OverflowError)):
        solve_stage_problem(huge)


@pytest.mark.parametrize("seed", range(12))
def test_cuts_bind_exactly_the_paths_and_highs_agrees_on_the_same_cuts(seed: int) -> None:
    problem, best = feasible_problem(seed + 50)
    cuts = static_cuts(problem)
    stage = StageModel(problem, live_vectors(problem), cuts, longest_possible(problem))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(stage.model) == cp_model.OPTIMAL
    plan = stage.variables.extract(solver)
    value = int(solver.value(stage.variables.pipeline_time))
    assert value == proven_bound(solver) == max(cut_value(problem, cut, plan) for cut in cuts)
    assert is_feasible(problem, plan)
    highs = solve_with_highs(problem, cuts)
    assert (highs.status, highs.objective) == ("optimal", value)
    assert value <= best
    assert solve_with_highs(problem, cuts, upper_bound=value - 1).status == "infeasible"


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    problem, _ = feasible_problem(1)
    solve_stage_problem(problem)
    solve_with_highs(problem, static_cuts(problem))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("suffix", [".mps", ".lp"])
def test_written_model_has_the_same_optimum(tmp_path, suffix: str) -> None:  # type: ignore[no-untyped-def]
    import highspy

    problem, _ = feasible_problem(60)
    path = tmp_path / f"model{suffix}"
    write_linear_model(problem, static_cuts(problem), path)
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.readModel(str(path))
    highs.run()
    assert round(highs.getInfo().objective_function_value) == solve_with_highs(problem, static_cuts(problem)).objective
    with pytest.raises(UsageError, match="accepted"):
        write_linear_model(problem, [], tmp_path / "model.txt")


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved"])
def test_longest_possible_is_never_exceeded(schedule: str) -> None:
    for seed in range(20):
        problem = random_stage_problem(random.Random(seed), schedules=(schedule,))
        plan = uniform(problem.replace(ranks=tuple(replace(r, capacity=10**9) for r in problem.ranks)))
        if plan is not None:
            assert evaluate(problem, plan).pipeline_time <= longest_possible(problem)
