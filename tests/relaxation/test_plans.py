"""Relaxations of tiny problems never exceed the best plan, found by looking at every plan; transients decide there."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray

from prism_cp.pipeline import get_schedule, live_vectors
from prism_cp.relaxation import LayoutClass, Relaxation, RelaxationCosts, brackets_of, dual_bounds
from prism_cp.stage_problem import live_counts

LAYERS, MOST_PER_PIECE = 6, 3
Plan = tuple[tuple[int, int], ...]  # per piece: layers, and how many of them use the second strategy
SIZES = [
    ("1f1b", 4, 1, 8), ("interleaved", 2, 2, 4), ("interleaved", 2, 2, 6), ("interleaved", 2, 3, 4),
    ("zb-h1", 4, 1, 8), ("zb-v", 2, 2, 4), ("dualpipe", 4, 1, 8), ("dualpipev", 2, 2, 6),
]  # fmt: skip


@dataclass(frozen=True)
class Tiny:
    """One kind of layers, two strategies: the second holds less but its backward takes more memory and time."""

    sizes: tuple[str, int, int, int]
    layout_class: LayoutClass
    costs: RelaxationCosts

    def plans(self) -> list[Plan]:
        """All of them."""
        options = [(n, few) for n in range(1, MOST_PER_PIECE + 1) for few in range(n + 1)]
        pieces = itertools.product(options, repeat=self.layout_class.num_pieces)
        return [plan for plan in pieces if sum(n for n, _ in plan) == LAYERS]

    def needed(self, plan: Plan) -> float:
        """Most memory of any rank at any moment."""
        schedule, pp, vpp, _ = self.sizes
        placed = get_schedule(schedule).virtual_stages(pp, vpp)
        state, deferred = self.costs.kinds[0, 0, :2]
        activation, transient = self.costs.strategies[0, 0, :, 3], self.costs.strategies[0, 0, :, 4]
        most = 0.0
        for rank, vectors in enumerate(live_vectors(*self.sizes)):
            pieces = [piece for owner, piece in placed if owner == rank]
            for vector in vectors:
                total, largest = 0.0, 0.0
                for piece, live, waiting in zip(pieces, *live_counts(vector, len(pieces)), strict=True):
                    layers, few = plan[piece]
                    total += live * ((layers - few) * activation[0] + few * activation[1])
                    total += layers * (state + waiting * deferred)
                    if live + waiting:
                        largest = max(largest, transient[0] if few < layers else 0.0, transient[1] if few else 0.0)
                most = max(most, total + largest)
        return most

    def time_s(self, plan: Plan) -> float:
        """Longest path."""
        times = np.zeros((len(plan), 4))
        for piece, (layers, few) in enumerate(plan):
            chosen = np.array([layers - few, few])
            times[piece, :3] = chosen @ self.costs.strategies[0, 0, :, :3]
        return self.layout_class.longest_path(times, 0.0)[1]


def tiny(sizes: tuple[str, int, int, int], rng: np.random.Generator) -> Tiny:
    activation, transient, state = rng.integers(10, 40), rng.integers(5, 80), rng.integers(0, 3)
    strategies: NDArray[np.float64] = np.array(
        [[[[0.1, 0.1, 0.1, activation, 0.0], [0.1, 0.1 + 0.01 * rng.integers(1, 20), 0.1, 1.0, transient]]]], np.float64
    )
    bracket, lows = brackets_of(strategies[..., 4].reshape(1, -1))
    kinds = np.array([[[state, activation, 0.0]]], np.float64)
    costs = RelaxationCosts(
        strategies, bracket.reshape(1, 1, 2), lows, np.array([float(LAYERS)]), kinds, np.zeros((1, 2, 7)),
        np.zeros((1, 5)), np.array([float(LAYERS)]),
    )  # fmt: skip
    return Tiny(sizes, LayoutClass(*sizes, may_be_empty=False), costs)


@pytest.mark.parametrize("sizes", SIZES, ids=lambda sizes: "-".join(map(str, sizes)))
def test_no_bound_exceeds_the_best_plan(sizes: tuple[str, int, int, int]) -> None:
    rng = np.random.default_rng(5)
    for _ in range(6):
        problem = tiny(sizes, rng)
        plans = problem.plans()
        needed = np.array([problem.needed(plan) for plan in plans])
        for room in rng.choice(np.unique(needed), 3):
            problem.costs.layouts[0, 2] = room
            best = min(problem.time_s(plan) for plan, need in zip(plans, needed, strict=True) if need <= room)
            duals = Relaxation(problem.layout_class, problem.costs).duals(np.inf)
            assert duals
            for dual in duals:
                assert dual_bounds(dual, problem.costs)[0] <= best * (1 + 1e-7)
