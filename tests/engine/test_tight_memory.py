"""Several pieces a rank and tight memory: prices on memory rows, whole strategies of an item, annealing whole plans."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from prism_cp.baselines.exhaustive import all_assignments, count_plans
from prism_cp.cp.exact import evaluate, is_feasible, static_cuts
from prism_cp.engine import complete, divide, root, solve_with_engine, state, strategy_classes
from prism_cp.engine.chain import make_chain
from prism_cp.engine.divide import Division
from prism_cp.engine.items import ItemMaker
from prism_cp.engine.knapsack import IMPOSSIBLE_COST, TOLERANCE, ItemPoints
from prism_cp.engine.limits import Limits
from prism_cp.engine.pricing import ItemMemory, Prices, memory_costs
from prism_cp.engine.refine import Refinement
from prism_cp.engine.relaxed_start import relaxed_start
from prism_cp.engine.tables import Tables, row_of
from prism_cp.engine.whole_plans import PlanAnnealer
from prism_cp.stage_problem import StageProblem
from tests.random_problems import random_stage_problem


def three_pieces(seed: int, most_plans: int = 1_500) -> StageProblem:
    """A small problem with three pieces on every rank."""
    rng = random.Random(seed)
    while True:
        problem = random_stage_problem(
            rng, schedules=("interleaved",), max_pp=2, max_kinds=2, max_microbatches=6, interleaved_vpp=3
        )
        if count_plans(problem) <= most_plans:
            return problem


def optimum(problem: StageProblem) -> int | None:
    times = [evaluate(problem, plan).pipeline_time for plan in all_assignments(problem) if is_feasible(problem, plan)]
    return min(times, default=None)


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("tight", [-1.0, 1e9], ids=["prices", "outlines"])
def test_the_optimum_with_three_pieces_a_rank(seed: int, tight: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to enumeration, whichever way items are bounded."""
    monkeypatch.setattr(root, "TIGHT", tight)
    problem = three_pieces(seed)
    result = solve_with_engine(problem)
    assert result.pipeline_time == optimum(problem)
    assert result.status == ("infeasible" if result.pipeline_time is None else "optimal")


def test_prices_are_used_by_those_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(root, "TIGHT", -1.0)
    used = []
    original = root.Tables

    def tables(*arguments: object, **named: object) -> object:
        used.append(named.get("priced", False))
        return original(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(root, "Tables", tables)
    for seed in range(20):
        solve_with_engine(three_pieces(seed))
    assert sum(map(bool, used)) >= 5


def refine_everything(monkeypatch: pytest.MonkeyPatch) -> list[Division]:
    """Items are refined whatever the memory, every kind has two classes, parts are small; the searches made."""
    made = []
    monkeypatch.setattr(strategy_classes, "LARGE_STEP", 0.0)
    monkeypatch.setattr(root, "_worth_refining", lambda state, tables: True)
    monkeypatch.setattr(divide, "FEW_ITEMS", 12)
    monkeypatch.setattr(divide, "MOST_NODES", 30)
    original = state.Division

    def division(*arguments: object) -> Division:
        made.append(original(*arguments))  # type: ignore[arg-type]
        return made[-1]

    monkeypatch.setattr(state, "Division", division)
    return made


@pytest.mark.parametrize("part", range(6))
def test_the_optimum_with_refined_items_in_parts(part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal to enumeration, with and without a bound to begin with."""
    refine_everything(monkeypatch)
    for seed in range(12 * part, 12 * part + 12):
        problem = three_pieces(seed)
        best = optimum(problem)
        result = solve_with_engine(problem)
        assert result.pipeline_time == best
        assert result.status == ("infeasible" if best is None else "optimal")
        if best is not None:
            assert solve_with_engine(problem, upper_bound=best - 1).status == "no_better"
            assert solve_with_engine(problem, upper_bound=best + 3).pipeline_time == best


def test_parts_are_used_by_those_problems(monkeypatch: pytest.MonkeyPatch) -> None:
    made = refine_everything(monkeypatch)
    for seed in range(12):
        solve_with_engine(three_pieces(seed))
    assert max(division.parts for division in made) > 3


def test_choices_that_merged_points_leave_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    """All their points decide some of them; where those are too many as well, the stage model does."""
    monkeypatch.setattr(root, "TIGHT", 1e9)
    monkeypatch.setattr(complete, "FIRST_TRIALS", 1)
    handed_on = {1: 0, 100_000: 0}
    solve = complete.solve_stage_problem

    def solved(*arguments: object, **named: object) -> object:
        handed_on[complete.MORE_TRIALS] += 1
        return solve(*arguments, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(complete, "solve_stage_problem", solved)
    for seed, more in itertools.product(range(30), handed_on):
        monkeypatch.setattr(complete, "MORE_TRIALS", more)
        problem = three_pieces(seed)
        result = solve_with_engine(problem)
        assert result.pipeline_time == optimum(problem)
        assert result.status == ("infeasible" if result.pipeline_time is None else "optimal")
    assert handed_on[100_000] < handed_on[1]


@pytest.mark.parametrize("seed", range(20))
def test_refined_items_cover_every_plan_within_the_target(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The layers that a plan's pieces hold in every class are those of an item of each group."""
    monkeypatch.setattr(strategy_classes, "LARGE_STEP", 0.0)
    problem = three_pieces(seed)
    plans = [plan for plan in all_assignments(problem) if is_feasible(problem, plan)]
    chain = make_chain(problem)
    if chain is None or not plans:
        return
    times = [evaluate(problem, plan).pipeline_time for plan in plans]
    target = (min(times) + max(times)) // 2
    maker, refinement = ItemMaker(problem, chain), Refinement(problem, chain)
    tables = Tables(problem, chain, [maker.coarse(group, target) for group in chain.groups])
    if any(items.memory is None for items in tables.items):
        return
    tables.add([row_of(cut, problem.p2p) for cut in static_cuts(problem)])
    tables = tables.within(target)
    rows = tables.rows
    refined = refinement.tables(tables, target, rows, Limits(None, None, None))
    assert refined is not None
    member = refinement.maker.classes.member
    for plan, value in zip(plans, times, strict=True):
        if value > target:
            continue
        worth = np.zeros(len(refined.rows), np.int64)
        held = []
        for g, items in enumerate(refined.items):
            counts = [np.concatenate([np.array(row) for row in plan.counts[piece]]) for piece in items.group.pieces]
            parts = np.stack(
                [
                    refined.chain.parts[refined.chain.pieces[p][items.choice[:, k]]]
                    for k, p in enumerate(items.group.pieces)
                ],
                axis=1,
            )
            held.append(np.flatnonzero((parts == np.array([each @ member for each in counts])).all(axis=(1, 2))))
            if len(held[-1]):
                worth += refined.worth[refined.start[g] + held[-1][0], : len(refined.rows)]
        if all(len(each) for each in held):  # else a plan with other classes is no worse
            assert np.all(worth + refined.constants <= refined.scales * value)


def random_points(rng: np.random.Generator) -> tuple[ItemPoints, np.ndarray]:
    """Points of three pieces with one composition each, and the budget of an item."""
    pieces, rows = 3, int(rng.integers(1, 5))
    counts = rng.integers(1, 7, pieces)
    span = np.zeros((pieces, 1, 2), np.int64)
    span[:, 0, 1] = np.cumsum(counts)
    span[1:, 0, 0] = span[:-1, 0, 1]
    total = int(counts.sum())
    slower = rng.integers(0, 200, total)
    for start, stop in span[:, 0]:
        slower[start] = 0
        slower[start:stop].sort()
    live = rng.integers(0, 5, (rows, pieces))
    live[:, 0] = np.maximum(live[:, 0], 1)
    points = ItemPoints(
        rng.integers(0, 50, total), rng.integers(0, 60, total), slower, span, live, live > 0, rng.integers(0, 40, rows)
    )
    return points, rng.integers(60, 500, (1, rows))


@pytest.mark.parametrize("seed", range(200))
@pytest.mark.parametrize("most_nodes", [0, 10_000])
def test_least_costs_are_lower_bounds_and_close(seed: int, most_nodes: int) -> None:
    rng = np.random.default_rng(seed)
    points, budget = random_points(rng)
    weights = rng.integers(0, 1_000, 3)
    best = None
    for chosen in itertools.product(*(range(*span[0]) for span in points.span)):
        at = np.array(chosen)
        used = points.live @ points.activation[at]
        largest = np.maximum(points.ends, np.where(points.alive, points.transient[at], 0).max(axis=1))
        if np.all(used + largest <= budget[0]):
            cost = int(weights @ points.slower[at])
            best = cost if best is None else min(best, cost)
    found = int(points.least_costs(np.zeros((1, 3), np.int64), budget, weights, most_nodes)[0])
    if best is None:
        assert found <= IMPOSSIBLE_COST
        assert most_nodes == 0 or found == IMPOSSIBLE_COST
    else:
        assert found <= best
        assert most_nodes == 0 or found >= best * (1 - TOLERANCE) - 2


@pytest.mark.parametrize("seed", range(30))
def test_prices_never_claim_more_than_a_plan_takes(seed: int) -> None:
    """Best prices of items, and any prices: no plan's strategies cost less than they say."""
    problem = three_pieces(seed)
    chain = make_chain(problem)
    if chain is None:
        return
    maker, rng = ItemMaker(problem, chain), np.random.default_rng(seed)
    plans = [plan for plan in all_assignments(problem) if is_feasible(problem, plan)]
    for group in chain.groups:
        items = maker.coarse(group, 10**9)
        memory: ItemMemory | None = items.memory
        if memory is None or not len(items.choice):
            continue
        rows, weights = len(memory.rows.live), rng.integers(0, 100, len(group.pieces)).astype(np.float64)
        usual = memory.finder.usual(memory, weights)
        drawn = Prices(
            rng.integers(0, len(memory.rows.lows), 8), rng.random((8, rows)) * rng.choice([0.1, 1.0, 10.0], (8, 1))
        )
        for prices in (usual, drawn):
            costs = memory_costs(memory, prices, weights)
            for plan in plans:
                where = [
                    int(chain.local[piece, chain.numbers[plan.boundaries[piece], plan.boundaries[piece + 1]]])
                    for piece in group.pieces
                ]
                item = int(np.flatnonzero((items.choice == where).all(axis=1))[0])
                kinds = problem.tables[problem.virtual_stages[group.stages[0]].table]
                slower = [
                    sum(
                        n * (s.input_grad - min(each.input_grad for each in kind.strategies))
                        for kind, row in zip(kinds, plan.counts[piece], strict=True)
                        for n, s in zip(row, kind.strategies, strict=True)
                    )
                    for piece in group.pieces
                ]
                assert costs[item] <= weights @ np.array(slower) + 1e-6


@pytest.mark.parametrize("seed", range(20))
def test_annealed_plans_fit_and_take_what_is_said(seed: int) -> None:
    problem = three_pieces(seed)
    best = optimum(problem)
    if best is None:
        return
    start = next(plan for plan in all_assignments(problem) if is_feasible(problem, plan))
    plan, value = PlanAnnealer(problem).run(start, 3_000, seed, price=1.0)
    assert plan is not None
    assert is_feasible(problem, plan)
    assert evaluate(problem, plan).pipeline_time == value
    assert best <= value <= evaluate(problem, start).pipeline_time


def test_the_relaxation_proposes_paths_of_the_problem() -> None:
    start = relaxed_start(three_pieces(3))
    assert start is not None
    assert abs(sum(start.weights.values()) - 1) < 1e-9
    assert all((prices >= 0).all() for prices in start.prices)
