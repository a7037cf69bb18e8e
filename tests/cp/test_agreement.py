"""Four independent voices on random tiny problems: stage model, exhaustive oracle, joint model, HiGHS."""

from __future__ import annotations

import random

import pytest
from ortools.sat.python import cp_model

from prism_cp.baselines.exhaustive import count_plans, exhaustive, exhaustive_layouts
from prism_cp.cp.exact import evaluate, is_feasible, static_cuts
from prism_cp.cp.export import solve_with_highs
from prism_cp.cp.joint import build_joint_model, prove_nothing_better, solve_joint
from prism_cp.cp.solve import solve_stage_problem
from prism_cp.engine import applicable, solve_with_engine
from prism_cp.inputs.layout import Layout
from prism_cp.pipeline import with_options
from prism_cp.stage_problem import StageProblem
from tests.random_problems import random_stage_problem

PLANS = 20_000


def small_problem(seed: int, schedules: tuple[str, ...] = ("gpipe", "1f1b")) -> StageProblem:
    rng = random.Random(seed)
    while True:
        problem = random_stage_problem(rng, schedules=schedules, max_pp=2 if schedules == ("interleaved",) else 3)
        if count_plans(problem) <= PLANS:
            return problem


OVERLAPPING = tuple(
    with_options(name, overlap_factor=factor) for name in ("dualpipe", "dualpipev") for factor in ("0", "3/5", "17/20")
)
OTHERS = ("zb-h1", "zb-v", "dualpipe", "dualpipev", with_options("interleaved", overlap_moe_expert_parallel_comm=True))


def layout_of(problem: StageProblem, tp: int = 1) -> Layout:
    return Layout(
        tp, False, 1, "p2p", 1, 1, 1, problem.pp, problem.vpp, 1, 0, problem.schedule, problem.num_microbatches
    )


@pytest.mark.parametrize("seed", range(60))
def test_all_voices_agree(seed: int) -> None:
    problem = small_problem(seed, ("interleaved",) if seed % 6 == 5 else ("gpipe", "1f1b"))
    oracle = exhaustive(problem)
    solution = solve_stage_problem(problem)
    joint = solve_joint([(layout_of(problem), problem)])
    cuts = [*static_cuts(problem), *solution.cuts]
    highs = solve_with_highs(problem, cuts)
    if oracle.pipeline_time is None:
        assert (solution.status, joint.status, highs.status) == ("infeasible",) * 3
        return
    assert solution.status == "optimal"
    assert solution.pipeline_time == solution.bound == oracle.pipeline_time
    assert solution.assignment is not None
    assert is_feasible(problem, solution.assignment)
    assert evaluate(problem, solution.assignment).pipeline_time == solution.pipeline_time
    assert joint.status == "optimal"
    assert joint.objective == joint.bound == oracle.pipeline_time + problem.barrier
    assert highs.status == "optimal"
    # HiGHS knows the same paths, so it cannot be above; all paths together are the time, so the stage model's are met.
    assert highs.objective is not None
    assert highs.objective <= oracle.pipeline_time
    if solution.num_solves <= 1:
        assert highs.objective == oracle.pipeline_time


@pytest.mark.parametrize("seed", range(100, 115))
def test_joint_with_paths_agrees_with_start_times(seed: int) -> None:
    problem = small_problem(seed)
    candidates = [(layout_of(problem), problem)]
    by_starts, by_paths = solve_joint(candidates), solve_joint(candidates, start_time_limit=0)
    assert (by_starts.status, by_starts.objective) == (by_paths.status, by_paths.objective)


@pytest.mark.parametrize("seed", range(200, 210))
def test_joint_over_layouts_agrees_with_enumeration(seed: int) -> None:
    problems = [small_problem(3 * seed + k) for k in range(3)]
    candidates = [(layout_of(problem, tp + 1), problem) for tp, problem in enumerate(problems)]
    best = exhaustive_layouts(candidates)
    joint = solve_joint(candidates)
    if best is None:
        assert joint.status == "infeasible"
        assert prove_nothing_better(candidates, 10**6) is True
        return
    assert joint.status == "optimal"
    assert joint.objective == best[0]
    assert joint.layout is not None
    assert joint.assignment is not None
    chosen = dict(candidates)[joint.layout]
    assert evaluate(chosen, joint.assignment).pipeline_time + chosen.barrier == best[0]
    assert prove_nothing_better(candidates, best[0] - 1) is True
    assert prove_nothing_better(candidates, best[0]) is False


@pytest.mark.parametrize("seed", range(300, 324))
def test_start_times_alone_give_the_exact_time_of_every_schedule(seed: int) -> None:
    """The model's own value of every plan: with a wrong operation it would differ from the simulated time."""
    rng = random.Random(seed)
    name = ("zb-h1", "zb-v", "dualpipe", "dualpipev", "interleaved", "1f1b")[seed % 6]
    while True:
        problem = random_stage_problem(rng, schedules=(name,), max_pp=2, max_layers=4, max_strategies=2)
        if 0 < count_plans(problem) <= 300:
            break
    optimum = exhaustive(problem).pipeline_time
    joint = build_joint_model([(layout_of(problem), problem)])
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    code = solver.solve(joint.model)
    assert joint.uses_paths == [False]
    if optimum is None:
        assert code == cp_model.INFEASIBLE
    else:
        assert code == cp_model.OPTIMAL
        assert int(solver.value(joint.objective)) == optimum + problem.barrier


@pytest.mark.parametrize("seed", range(2 * len((*OVERLAPPING, *OTHERS))))
def test_all_voices_agree_on_every_schedule(seed: int) -> None:
    """Decomposed, joint with explicit start times, engine and enumeration; split backwards, overlapped pairs."""
    rng = random.Random(seed)
    name = (*OVERLAPPING, *OTHERS)[seed // 2]
    problem = random_stage_problem(rng, schedules=(name,), max_pp=2, max_layers=4, max_strategies=2)
    oracle = exhaustive(problem)
    solution = solve_stage_problem(problem)
    joint = solve_joint([(layout_of(problem), problem)])
    assert solution.pipeline_time == oracle.pipeline_time
    assert applicable(problem)
    assert solve_with_engine(problem).pipeline_time == oracle.pipeline_time
    if oracle.pipeline_time is None:
        assert joint.status == "infeasible"
        return
    assert joint.objective == joint.bound == oracle.pipeline_time + problem.barrier
    highs = solve_with_highs(problem, [*static_cuts(problem), *solution.cuts])
    assert highs.objective is not None
    assert highs.objective <= oracle.pipeline_time
    if name in OVERLAPPING:
        plain = problem.replace(schedule=name.partition("[")[0])
        assert exhaustive(plain).pipeline_time >= oracle.pipeline_time
