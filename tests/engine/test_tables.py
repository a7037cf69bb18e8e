"""Tables of the engine: what they say of a plan is never more than the truth, and every plan is among the items."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from prism_cp.baselines.exhaustive import all_assignments
from prism_cp.benchmark.family import FAMILY, FamilyCase, family_problem
from prism_cp.cp.exact import cut_value, evaluate, is_feasible, static_cuts
from prism_cp.cp.objective import longest_possible
from prism_cp.engine import solve_with_engine
from prism_cp.engine.aggregate import choice_weights, weighted_sum, whole_weights
from prism_cp.engine.anneal import Annealer
from prism_cp.engine.chain import make_chain, make_groups
from prism_cp.engine.items import ItemMaker
from prism_cp.engine.mixture import Weigher
from prism_cp.engine.tables import Tables, row_of
from prism_cp.engine.walk import LEAF, walk_points
from prism_cp.silent_highs import SilentHighs
from prism_cp.stage_problem import Assignment, StageProblem
from tests.engine.problems import small_problem
from tests.random_problems import random_stage_problem


def feasible_plans(problem: StageProblem) -> list[Assignment]:
    return [plan for plan in all_assignments(problem) if is_feasible(problem, plan)]


@pytest.mark.parametrize("seed", range(42))
def test_worth_is_never_above_a_plan(seed: int) -> None:
    """Items, suffix tables, weighted sums and the filter, on every plan of a small problem."""
    problem = small_problem(seed, most_plans=300)
    plans = feasible_plans(problem)
    chain = make_chain(problem)
    if not plans:
        return
    assert chain is not None
    times = [evaluate(problem, plan) for plan in plans]
    limit = max(run.pipeline_time for run in times)
    maker = ItemMaker(problem, chain)
    tables = Tables(problem, chain, [maker.make(group, limit) for group in chain.groups])
    cuts = list(dict.fromkeys([*static_cuts(problem), *(run.critical_path for run in times)]))
    rng = random.Random(seed)
    rows = [row_of(cut, problem.p2p) for cut in cuts]
    rows.append(weighted_sum(rows, np.array([rng.randint(0, 9) for _ in rows[:-1]] + [1])))
    tables.add(rows)
    annealer = Annealer(tables)
    for plan, run in zip(plans, times, strict=True):
        items = annealer.items_of(np.array(plan.boundaries))
        assert items is not None
        worth = tables.worth[items, : len(rows)].sum(axis=0) + tables.constants
        assert np.all(tables.after[0, -1, : len(rows)] <= worth)
        assert np.all(worth[:-1] <= [cut_value(problem, cut, plan) for cut in cuts])
        assert np.all(worth <= tables.scales * run.pipeline_time)
        assert tables.useful(tables.scales * run.pipeline_time)[items].all()


def test_groups_go_inwards_and_join_mirrored_ranks() -> None:
    interleaved = family_problem(FamilyCase("qw", "interleaved", 4, 2, 16, 1.0))
    assert [group.ranks for group in make_groups(interleaved)] == [(0,), (3,), (1,), (2,)]
    dualpipe = family_problem(FamilyCase("qw", "dualpipe", 4, 1, 16, 1.0))
    assert [(group.ranks, group.pieces) for group in make_groups(dualpipe)] == [((0, 3), (0, 3)), ((1, 2), (1, 2))]


def test_weights_beat_every_single_cut() -> None:
    """Two groups, two cuts that want opposite points: only their sum sees that both cannot be had."""
    worth = np.array([[10, 0], [0, 10], [10, 0], [0, 10]])
    found = choice_weights(worth, np.zeros(2, np.int64), np.array([0, 2, 4]), 9)
    assert found is not None
    weights, mixture = found
    assert (mixture @ worth).max() == pytest.approx(10)  # no mixture has both cuts below 10
    whole = whole_weights(weights, 1_000)
    assert whole is not None
    assert whole[0] == whole[1] > 0
    assert whole_weights(weights, 1 << 57) is None


def test_weights_are_found_after_another_highs_run() -> None:
    """One process has one scheduler of HiGHS threads: another object may not make ours fail."""
    other = SilentHighs()
    other.addVariable(0.0, 1.0, 1.0)
    other.run()
    worth = np.array([[10, 0], [0, 10], [10, 0], [0, 10]])
    assert choice_weights(worth, np.zeros(2, np.int64), np.array([0, 2, 4]), 9) is not None


def test_same_seed_same_result() -> None:
    problem = family_problem(FamilyCase("qw", "interleaved", 4, 2, 16, 0.3))
    one, two = solve_with_engine(problem, seed=7), solve_with_engine(problem, seed=7)
    assert one == two
    assert one.status == "optimal"


def test_limits_leave_a_true_bound() -> None:
    problem = family_problem(FamilyCase("qw", "interleaved", 4, 2, 16, 0.3))
    optimum = solve_with_engine(problem).pipeline_time
    assert optimum is not None
    stopped = threading.Event()
    stopped.set()
    for result in (
        solve_with_engine(problem, stop=stopped),
        solve_with_engine(problem, deadline=time.monotonic() - 1),
        solve_with_engine(problem, node_limit=1),
    ):
        assert result.lower_bound <= optimum
        assert result.pipeline_time is None or result.pipeline_time >= optimum
        assert result.status in ("unknown", "feasible")


def test_family_is_large_and_named() -> None:
    assert len(FAMILY) >= 24
    assert len({case.name for case in FAMILY}) == len(FAMILY)


def test_without_cuts_every_combination_of_points_is_left() -> None:
    """A walk that reads a cut that does not exist loses plans, at random."""
    worth, start = np.zeros((5, 0), np.int64), np.array([0, 2, 5])
    seen = []
    chosen, pointer, depth = np.zeros(2, np.int64), start[:-1].copy(), 0
    while True:
        state, depth, _ = walk_points(np.zeros(0, np.int64), worth, start, chosen, pointer, depth, 1_000)
        if state != LEAF:
            break
        seen.append(tuple(chosen.tolist()))
    assert seen == [(one, two) for one in (0, 1) for two in (2, 3, 4)]


@pytest.mark.parametrize("seed", range(28))
def test_weighed_partial_choices_are_really_refuted(seed: int) -> None:
    """Whatever the linear program says, the integer sum holds for every plan; where it refutes, no plan is lost."""
    problem = small_problem(seed, most_plans=400)
    plans = feasible_plans(problem)
    chain = make_chain(problem)
    if not plans:
        return
    assert chain is not None
    times = [evaluate(problem, plan) for plan in plans]
    limit = max(run.pipeline_time for run in times)
    tables = Tables(problem, chain, [ItemMaker(problem, chain).make(group, limit) for group in chain.groups])
    paths = dict.fromkeys([*static_cuts(problem), *(run.critical_path for run in times)])
    tables.add([row_of(cut, problem.p2p) for cut in paths])
    annealer = Annealer(tables)
    chosen = [annealer.items_of(np.array(plan.boundaries)).tolist() for plan in plans]  # type: ignore[union-attr]
    weigher = Weigher(tables, longest_possible(problem))
    for target in (min(run.pipeline_time for run in times) - 1, limit - 1):
        for length in range(len(chain.groups)):
            for prefix in sorted({tuple(items[:length]) for items in chosen})[:3]:
                weighing = weigher.weigh(prefix, target, to_the_end=bool(seed % 2))
                assert weighing is not None
                row = weighing.row
                assert row is not None
                first = len(tables.rows)
                tables.add([row])
                values = [int(tables.worth[items, first].sum()) + row.constant for items in chosen]
                assert all(v <= row.scale * run.pipeline_time for v, run in zip(values, times, strict=True))
                if weighing.refuted:
                    within = [v for i, v in zip(chosen, values, strict=True) if i[:length] == [*prefix]]
                    assert min(within) > row.scale * target


@pytest.mark.parametrize("schedule", ["interleaved", "1f1b", "zb-h1", "zb-v"])
@pytest.mark.parametrize("seed", range(12))
def test_outlines_bound_every_item(schedule: str, seed: int) -> None:
    """What outlines say of an item is never more than its real points say, under any path."""
    rng = random.Random(seed)
    problem = random_stage_problem(rng, schedules=(schedule,), max_pp=2, max_layers=9, max_microbatches=6)
    if len(problem.tables) > 1 or (chain := make_chain(problem)) is None:
        problem = problem.replace(
            tables=problem.tables[:1],
            virtual_stages=tuple(replace(stage, table=0) for stage in problem.virtual_stages),
            min_layers=(0,) * problem.num_pieces,
            max_layers=(len(problem.layers),) * problem.num_pieces,
        )
        chain = make_chain(problem)
    assert chain is not None
    maker, limit = ItemMaker(problem, chain), longest_possible(problem)
    rows = [row_of(cut, problem.p2p) for cut in static_cuts(problem)]
    rows.append(weighted_sum(rows, np.array([rng.randint(0, 9) for _ in rows])))
    for group in chain.groups:
        bounds, exact = maker.coarse(group, limit), maker.make(group, limit)
        assert bounds.outline is not None
        plans = maker.outlined(group, limit, bounds.choice)
        assert plans is not None
        cheap, real = (Tables(problem, chain, [each]) for each in (plans, exact))
        positions = {tuple(row): i for i, row in enumerate(cheap.items[0].choice.tolist())}
        for row in rows:
            low, high = cheap.price(row), real.price(row)
            for i, choice in enumerate(real.items[0].choice.tolist()):
                assert low[positions[tuple(choice)]] <= high[i]
