"""What a group of ranks can hold: nothing a plan within the limit holds is left out, and what cannot stand is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from prism_cp.baselines.exhaustive import all_assignments
from prism_cp.benchmark.family import FamilyCase, family_problem
from prism_cp.cp.exact import evaluate, is_feasible
from prism_cp.engine import items
from prism_cp.engine.chain import make_chain
from prism_cp.engine.combinations import Combinations
from prism_cp.engine.greedy import greedy_picks
from prism_cp.engine.items import ItemMaker
from tests.engine.problems import small_problem


@pytest.mark.parametrize("seed", range(40))
def test_every_plan_within_the_limit_is_there(seed: int) -> None:
    """Every plan's own pipeline time as the limit, on small problems of all schedules."""
    problem = small_problem(seed, most_plans=200)
    plans = [plan for plan in all_assignments(problem) if is_feasible(problem, plan)]
    chain = make_chain(problem)
    if not plans:
        return
    assert chain is not None
    combinations = Combinations(problem, chain)
    known: dict[int, list[set[tuple[int, ...]]]] = {}
    for plan in plans:
        limit = evaluate(problem, plan).pipeline_time
        if limit not in known:
            found = [combinations.of_group(group, limit)[0] for group in chain.groups]
            known[limit] = [set(map(tuple, choice.tolist())) for choice in found]
        for group, choices in zip(chain.groups, known[limit], strict=True):
            numbers = [chain.numbers[plan.boundaries[piece], plan.boundaries[piece + 1]] for piece in group.pieces]
            own = [int(chain.local[piece, number]) for piece, number in zip(group.pieces, numbers, strict=True)]
            assert tuple(own) in choices


def test_pieces_stand_one_after_another() -> None:
    """Three dense layers come first in the chain: a later piece holds some of them only if earlier ones hold few."""
    problem = family_problem(FamilyCase("ds", "interleaved", 2, 4, 16, 1.0))
    chain = make_chain(problem)
    assert chain is not None
    work = sum(min(q.forward + q.input_grad + q.weight_grad for q in kind.strategies) for kind in problem.tables[0])
    group = chain.groups[0]
    choice = Combinations(problem, chain).of_group(group, work * len(problem.layers) * problem.num_microbatches)[0]
    vectors = np.stack([chain.vectors[chain.pieces[piece][choice[:, k]]] for k, piece in enumerate(group.pieces)], 1)
    dense = problem.layers[0]
    layers = vectors.sum(axis=2)
    before = np.cumsum(layers, axis=1) - layers + np.arange(4)  # every piece of the other rank holds a layer
    assert len(choice)
    assert (vectors[:, 1:, dense] <= np.maximum(0, problem.layers.count(dense) - before[:, 1:])).all()


def test_no_group_leaves_the_others_more_than_the_limit() -> None:
    """Two ranks, one kind, memory for anything: what one of them can hold leaves exactly what the other one can."""
    problem = family_problem(FamilyCase("qw", "1f1b", 2, 1, 16, 1.0))
    ranks = tuple(replace(rank, capacity=1 << 50) for rank in problem.ranks)
    chain = make_chain(problem.replace(ranks=ranks))
    assert chain is not None
    combinations = Combinations(problem.replace(ranks=ranks), chain)
    fast = min(q.forward + q.input_grad + q.weight_grad for q in problem.tables[0][0].strategies)
    layers = len(problem.layers)
    limit = problem.num_microbatches * fast * layers * 2 // 3
    sizes = []
    for group in chain.groups:
        choice = combinations.of_group(group, limit)[0]
        sizes.append(set(chain.sizes[chain.pieces[group.pieces[0]][choice[:, 0]]].tolist()))
    assert sizes[0] == {layers - size for size in sizes[1]}
    assert len(sizes[0]) < layers - 1


@pytest.mark.parametrize("schedule", ["interleaved", "zb-v"])
def test_greedy_picks_are_the_same_when_points_come_in_order(schedule: str) -> None:
    """Ending the look at points early changes no pick."""
    problem = family_problem(FamilyCase("ds", schedule, 4, 2, 16, 0.3))
    chain = make_chain(problem)
    assert chain is not None
    maker = ItemMaker(problem, chain)
    picks: list[Any] = []

    def both(*arguments: Any) -> Any:
        assert arguments[-1]
        picks.append([greedy_picks(*arguments[:-1], ordered) for ordered in (False, True)])
        return picks[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(items, "greedy_picks", both)
        limit = problem.num_microbatches * sum(
            max(q.forward + q.input_grad + q.weight_grad for q in problem.tables[0][kind].strategies)
            for kind in problem.layers
        )
        for group in chain.groups:
            maker.sketch(group, limit // 3)
    assert len(picks) == len(chain.groups)
    for full, early in picks:
        assert (full > 0).any()
        assert np.array_equal(full, early)
