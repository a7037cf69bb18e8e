"""The knapsack is exact, the partition bound never cuts off an optimum, dominated strategies are never missed."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import numpy as np
import pytest

from prism_cp.baselines.exhaustive import all_assignments, count_plans, exhaustive, splits
from prism_cp.cp.dominance import remove_dominated
from prism_cp.cp.exact import evaluate, is_feasible, live_vectors, static_cuts
from prism_cp.cp.partition import Partition
from prism_cp.partition.least_work import LeastWork
from prism_cp.stage_problem import StageProblem
from tests.random_problems import random_stage_problem


def brute_force(solver: LeastWork, counts: tuple[int, ...], room: int, live: int, floor: int) -> int | None:
    best: int | None = None
    widths = solver.exists.sum(axis=1)
    for rows in itertools.product(*(list(splits(n, int(w))) for n, w in zip(counts, widths, strict=True))):
        used = [(k, q, n) for k, row in enumerate(rows) for q, n in enumerate(row) if n]
        transient = max([floor, *(int(solver.transient[k, q]) for k, q, _ in used)])
        memory = transient + live * sum(n * int(solver.activation[k, q]) for k, q, n in used)
        if memory <= room:
            total = sum(n * int(solver.work[k, q]) for k, q, n in used)
            best = total if best is None else min(best, total)
    return best


@pytest.mark.parametrize("seed", range(80))
def test_least_work_equals_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = (int(rng.integers(1, 4)), int(rng.integers(1, 5)))
    exists = np.ones(shape, dtype=np.bool_)
    scale = 10 ** int(rng.integers(0, 9))
    solver = LeastWork(
        rng.integers(1, 30, shape) * scale + rng.integers(0, scale, shape),
        rng.integers(0, 20, shape),
        rng.choice([0, 3, 7, 12], shape),
        exists,
    )
    counts = tuple(int(n) for n in rng.integers(0, 5, shape[0]))
    live, floor = int(rng.integers(0, 4)), int(rng.integers(0, 8))
    room = int(rng.integers(0, 1 + 12 + 20 * max(1, live) * max(1, sum(counts))))
    expected = brute_force(solver, counts, room, live, floor)
    found = solver(counts, room, live, floor, 10**12)
    assert (found and found[0]) == expected
    if found is not None and expected is not None:
        assert found[1] is not None
        assert found[1].sum(axis=1).tolist() == list(counts)
        assert int((found[1] * solver.work).sum()) == expected
        assert solver(counts, room, live, floor, expected - 1) is None


def enumerable_problem(seed: int) -> StageProblem:
    rng = random.Random(seed)
    while True:
        problem = random_stage_problem(rng)
        if count_plans(problem) <= 5_000:
            return problem


@pytest.mark.parametrize("seed", range(300, 340))
def test_bound_and_pieces_keep_every_plan_within_the_cap(seed: int) -> None:
    problem = enumerable_problem(seed)
    feasible = {
        assignment.boundaries: evaluate(problem, assignment).pipeline_time
        for assignment in all_assignments(problem)
        if is_feasible(problem, assignment)
    }
    best = exhaustive(problem).pipeline_time
    cap = 10**6 if best is None else best + best // 10
    partition = Partition(problem, live_vectors(problem), static_cuts(problem), cap)
    bound = partition.lower_bound(0, cap)
    if best is None:
        return
    assert bound <= best
    positions = [{(piece.start, piece.end) for piece in row} for row in partition.pieces(cap)]
    for boundaries, time in feasible.items():
        if time <= cap:
            assert all(pair in row for pair, row in zip(itertools.pairwise(boundaries), positions, strict=True))
    plan = partition.plan(bound)
    if plan is not None:
        assert is_feasible(problem, plan)


def test_infeasible_memory_is_seen_by_the_bound() -> None:
    problem = enumerable_problem(1)
    tight = problem.replace(ranks=tuple(replace(rank, capacity=0) for rank in problem.ranks))
    partition = Partition(tight, live_vectors(tight), static_cuts(tight), 1000)
    assert partition.lower_bound(0, 1000) == 1001
    assert partition.plan(1000) is None


@pytest.mark.parametrize("seed", range(400, 425))
def test_dominated_strategies_are_never_missed(seed: int) -> None:
    problem = enumerable_problem(seed)
    reduction = remove_dominated(problem)
    assert exhaustive(reduction.problem).pipeline_time == exhaustive(problem).pipeline_time
    for assignment in itertools.islice(all_assignments(problem), 50):
        reduced = reduction.reduce(assignment)
        better = reduction.restore(reduced)
        assert reduction.reduce(better) == reduced
        assert evaluate(problem, better).pipeline_time <= evaluate(problem, assignment).pipeline_time
        assert evaluate(reduction.problem, reduced).pipeline_time == evaluate(problem, better).pipeline_time


def test_a_strategy_worse_in_everything_is_dropped_and_replaced() -> None:
    problem = enumerable_problem(2)
    [first, *_] = problem.tables[0][0].strategies
    worse = replace(first, name="worse", forward=first.forward + 1, activation=first.activation + 1)
    tables = tuple(
        (replace(table[0], strategies=(worse, *table[0].strategies)), *table[1:]) for table in problem.tables
    )
    # in a second table the added strategy must be worse as well
    if len(tables) == 2:
        tables = (tables[0], tables[0])
    reduction = remove_dominated(problem.replace(tables=tables))
    assert 0 not in reduction.kept[0]
