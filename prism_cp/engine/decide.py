"""Engine room: is there a plan within a target time? Walks the tree of items and learns critical paths on the way.

"No" is said only when the walk is exhausted in exact integers. A complete choice of items whose points cannot be told
apart from a plan by the cuts (merged points, or reduction hidden by a dominated multiset) is handed to the stage
model with its boundaries fixed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from prism_cp.cp.solve import solve_stage_problem
from prism_cp.engine.aggregate import Aggregator
from prism_cp.engine.items import ItemMaker
from prism_cp.engine.leaf import assignment, boundaries, simulate_points
from prism_cp.engine.tables import Row, Tables, row_of
from prism_cp.engine.walk import EXHAUSTED, LEAF, NODE_LIMIT, walk, walk_points
from prism_cp.pipeline import PathCut
from prism_cp.stage_problem import Assignment

Int64 = NDArray[np.int64]

NODES_PER_SLICE = 200_000
AGGREGATE_AFTER = 1 << 60
ROUNDS = 40  # of the search for weights
LEAF_NODES = 300_000
LEAF_PATHS = 60  # paths learnt at one complete choice before it is handed on

Offer = Callable[[Assignment], int]  # takes note of a plan that fits, returns its pipeline time


class Limits:
    """What may stop a search: a deadline, a number of nodes, an event."""

    def __init__(self, deadline: float | None, node_limit: int | None, stop: threading.Event | None) -> None:
        self.deadline, self.node_limit, self.stop = deadline, node_limit, stop
        self.nodes = 0

    def reached(self) -> bool:
        """Whether to stop now."""
        return (
            (self.deadline is not None and time.monotonic() >= self.deadline)
            or (self.node_limit is not None and self.nodes >= self.node_limit)
            or (self.stop is not None and self.stop.is_set())
        )

    def remaining_s(self) -> float | None:
        """Seconds until the deadline."""
        return None if self.deadline is None else max(0.01, self.deadline - time.monotonic())


class Decision:
    """One walk over the items of some tables for a target that only ever falls.

    Attributes
    ----------
    learnt : list of PathCut
        Critical paths that were added to the tables.
    """

    def __init__(self, maker: ItemMaker, tables: Tables, known: dict[PathCut, None], offer: Offer) -> None:
        self.maker, self.tables, self.known, self.offer = maker, tables, known, offer
        self.learnt: list[PathCut] = []
        self.undecided = False
        self.aggregator = Aggregator(tables)
        chain, groups = tables.chain, len(tables.items)
        columns = tables.after.shape[2]
        self._prefix = np.zeros((groups + 1, columns), np.int64)
        self._state = np.zeros(groups + 1, np.int64)
        self._state[0] = chain.num_states - 1
        words = chain.starts[0].shape[1]
        self._run_mask = np.zeros((groups + 1, chain.num_runs, words), np.uint64)
        self._run_length = np.zeros((groups + 1, chain.num_runs), np.int64)
        self._order = np.tile(np.arange(columns, dtype=np.int64), (2, groups, 1))
        self._pointer = tables.start[:-1].astype(np.int64).copy()
        self._chosen = np.zeros(groups, np.int64)
        self._depth = 0
        self._masks = np.concatenate(chain.starts)
        first = np.append(0, np.cumsum([len(piece) for piece in chain.pieces]))
        self._sizes = np.concatenate([chain.sizes[piece] for piece in chain.pieces])
        self._mask_rows = np.concatenate(
            [items.choice + first[list(items.group.pieces)] for items in tables.items]
        ).astype(np.int64)

    def run(self, target: int, limits: Limits, best: Callable[[], int | None], first_only: bool = False) -> bool | None:
        """False: no plan within the target is left. True: one was offered (`first_only`). None: stopped, or undecided.

        Parameters
        ----------
        best
            The best pipeline time known; the target falls below it as the walk goes on.
        """
        tables, chain = self.tables, self.tables.chain
        if np.any(np.diff(tables.start) == 0):
            return False
        spent = 0
        while True:
            known = best()
            if known is not None and known <= target:
                if first_only:
                    return True
                target = known - 1
            limit = tables.scales * target
            self._back_up(limit)
            state, self._depth, nodes = walk(
                limit, len(tables.rows), tables.worth, tables.start, tables.item_delta, tables.delta_start,
                tables.delta_item, tables.least, tables.down, tables.after, self._mask_rows, self._masks, self._sizes,
                chain.run_steps, chain.step_start, self._prefix, self._state, self._run_mask, self._run_length,
                self._order, self._pointer, self._chosen, self._depth, NODES_PER_SLICE,
            )  # fmt: skip
            limits.nodes += int(nodes)
            spent += int(nodes)
            if state == EXHAUSTED:
                return None if self.undecided else False
            if state == LEAF:
                self._leaf(target, limits)
                self._depth = len(tables.items) - 1
            if limits.reached():
                return None
            if spent >= AGGREGATE_AFTER:
                spent = 0
                self._aggregate(target)

    def _aggregate(self, target: int) -> None:
        """Refute a short part of the present choice by a weighted sum of cuts."""
        low, high = 0, min(self._depth, len(self.tables.items) - 1)
        found = None
        while low < high:
            depth = (low + high) // 2 if found is not None else high
            row = self.aggregator.refute(self._chosen[:depth].tolist(), target, ROUNDS)
            if row is None:
                if found is None:
                    return
                low = depth + 1
            else:
                found, high = row, depth
        if found is not None:
            self.add_rows([found])

    # -- complete choices ----------------------------------------------------------------------------------------------

    def _leaf(self, target: int, limits: Limits) -> None:
        """Find the best plan within the target at the choice the walk stands at, or leave it undecided."""
        tables, chosen = self.tables, self._chosen.tolist()
        groups = range(len(tables.items))
        local = [number - int(tables.start[g]) for g, number in enumerate(chosen)]
        points = [int(tables.items[g].best[local[g]]) for g in groups]
        value, path = simulate_points(tables, chosen, points)
        if value <= target:
            real = self._plan(chosen, points)
            if real is None or real > target:
                self._hand_on(chosen, target, limits)
                return
            target = real - 1
        self._learn([path])
        if not self._passes(chosen, target):
            return
        worth = np.concatenate([tables.point_worth(g, local[g]) for g in groups])
        counts = [int(np.diff(tables.items[g].first[local[g] : local[g] + 2])[0]) for g in groups]
        start = np.append(0, np.cumsum(counts)).astype(np.int64)
        begin = [int(tables.items[g].first[local[g]]) - int(start[g]) for g in groups]
        picked, pointer = np.zeros(len(counts), np.int64), start[:-1].copy()
        nodes = 0
        for _ in range(LEAF_PATHS):
            limit = tables.scales * target - tables.constants
            pointer[0] = start[0]
            state, _, used = walk_points(limit, worth, start, picked, pointer, 0, LEAF_NODES - nodes)
            nodes += int(used)
            if state == EXHAUSTED:
                return
            if state == NODE_LIMIT:
                break
            points = [begin[g] + int(picked[g]) for g in groups]
            value, path = simulate_points(tables, chosen, points)
            if value <= target:
                real = self._plan(chosen, points)
                if real is None or real > target:
                    break
                target = real - 1
            if self._learn([path]):
                column = [tables.point_worth(g, local[g], len(tables.rows) - 1) for g in groups]
                worth = np.hstack([worth, np.concatenate(column)])
            elif value > target and not self._forbids(worth, picked, target):
                break  # a known path, passed only because another multiset hides more reduction
        self._hand_on(chosen, target, limits)

    def _passes(self, chosen: Sequence[int], target: int) -> bool:
        """Whether no cut refutes the choice."""
        tables = self.tables
        value = tables.worth[list(chosen), : len(tables.rows)].sum(axis=0) + tables.constants
        return not np.any(value > tables.scales * target)

    def _forbids(self, worth: Int64, picked: Int64, target: int) -> bool:
        """Whether some cut refutes a combination of points."""
        value = worth[picked].sum(axis=0) + self.tables.constants
        return bool(np.any(value > self.tables.scales * target))

    def _plan(self, chosen: Sequence[int], points: Sequence[int]) -> int | None:
        """Offer the plan of these points; its pipeline time, None where a point stands for several multisets."""
        plan = assignment(self.maker, self.tables, chosen, points)
        return None if plan is None else self.offer(plan)

    def _hand_on(self, chosen: Sequence[int], target: int, limits: Limits) -> None:
        """Let the stage model decide a choice whose boundaries are fixed."""
        bounds = boundaries(self.tables, chosen)
        sizes = tuple(stop - start for start, stop in zip(bounds, bounds[1:], strict=False))
        fixed = self.tables.problem.replace(min_layers=sizes, max_layers=sizes)
        solution = solve_stage_problem(
            fixed, upper_bound=target, cuts=list(self.known), time_limit_s=limits.remaining_s(), stop=limits.stop
        )
        if solution.assignment is not None:
            self.offer(solution.assignment)
        if solution.status not in ("optimal", "no_better", "infeasible"):
            self.undecided = True

    # -- cuts ----------------------------------------------------------------------------------------------------------

    def _learn(self, cuts: Sequence[PathCut]) -> bool:
        """Add paths to the tables; whether any was new."""
        new = [cut for cut in dict.fromkeys(cuts) if cut not in self.known]
        if not new:
            return False
        self.known.update(dict.fromkeys(new))
        self.learnt += new
        self.add_rows([row_of(cut, self.tables.problem.p2p) for cut in new])
        return True

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Append cuts to the tables and to the state of the walk."""
        tables = self.tables
        first = len(tables.rows)
        tables.add(rows)
        stop, columns = len(tables.rows), tables.after.shape[2]
        if columns > self._prefix.shape[1]:
            more = columns - self._prefix.shape[1]
            self._prefix = np.pad(self._prefix, [(0, 0), (0, more)])
            tail = np.arange(columns - more, columns, dtype=np.int64)
            self._order = np.concatenate([self._order, np.tile(tail, (*self._order.shape[:2], 1))], axis=2)
        fresh = np.arange(first, stop)
        for kind in range(2):
            for g in range(self._order.shape[1]):
                order = self._order[kind, g]
                self._order[kind, g] = np.concatenate([fresh, order[(order < first) | (order >= stop)]])
        for g in range(min(self._depth, len(tables.items))):
            self._prefix[g + 1, first:stop] = self._prefix[g, first:stop] + tables.worth[self._chosen[g], first:stop]

    def _back_up(self, limit: Int64) -> None:
        """Leave every choice that some cut has come to forbid."""
        tables, columns = self.tables, len(self.tables.rows)
        for g in range(self._depth + 1):
            after = tables.after[g, self._state[g], :columns]
            if np.any(self._prefix[g, :columns] + after > limit):
                self._depth = g - 1
                return
