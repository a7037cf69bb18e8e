"""Engine room: the best strategies once every group has its item, that is, once the boundaries are fixed.

Paths that only tell strategies apart are kept beside the tables: they would slow the walk down and refute little there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from prism_cp.cp.objective import longest_possible
from prism_cp.cp.solve import solve_stage_problem
from prism_cp.engine.aggregate import choice_weights, weighted_sum
from prism_cp.engine.items import ItemMaker
from prism_cp.engine.leaf import assignment, boundaries, simulate_points
from prism_cp.engine.limits import Limits
from prism_cp.engine.tables import Coefficients, Row, Tables, point_worth, row_of
from prism_cp.engine.walk import EXHAUSTED, NODE_LIMIT, walk_points
from prism_cp.pipeline import PathCut
from prism_cp.stage_problem import Assignment

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

MOST_NODES = 2_000_000  # combinations of points looked at per complete choice before it is handed on
FEW_POINTS, DIRECTIONS = 8, 64  # of an item with more points only those fastest in some direction make weights
MOST_PATHS = 250  # paths learnt at one complete choice before it is handed on

Offer = Callable[[Assignment], int]  # takes note of a plan that fits, returns its pipeline time


class StrategyPaths:
    """Paths that complete choices have taught, shared by all walks of a solve."""

    def __init__(self, tables: Tables) -> None:
        self.paths: list[PathCut] = []
        self.coefficients = Coefficients(tables.problem, tables.chain.groups)

    def add(self, path: PathCut, p2p: int) -> None:
        """Take note of a new path."""
        self.paths.append(path)
        self.coefficients.add([row_of(path, p2p)])


class Completer:
    """Decides complete choices of items of some tables.

    Attributes
    ----------
    undecided : bool
        Whether some choice could not be decided.
    """

    def __init__(
        self,
        maker: ItemMaker,
        tables: Tables,
        known: dict[PathCut, None],
        paths: StrategyPaths,
        offer: Offer,
        learn: Callable[[PathCut], bool],
        add_rows: Callable[[Sequence[Row]], None],
    ) -> None:
        self.maker, self.tables, self.known, self.paths = maker, tables, known, paths
        self.offer, self.learn, self.add_rows = offer, learn, add_rows
        self.longest = longest_possible(tables.problem)
        self.undecided = False
        self._kept_corners: dict[tuple[int, int], Int64] = {}
        self._kept: dict[tuple[int, int], tuple[Int64 | None, Int64 | None]] = {}

    def complete(self, chosen: Sequence[int], target: int, limits: Limits, most_paths: int | None = None) -> None:
        """Find the best plan within the target of one item per group, or leave it undecided.

        Parameters
        ----------
        most_paths
            Give up after that many learnt paths; by default the stage model has the last word then.
        """
        tables = self.tables
        groups = range(len(tables.items))
        local = [number - int(tables.start[g]) for g, number in enumerate(chosen)]
        points = [int(tables.items[g].best[local[g]]) for g in groups]
        value, path = simulate_points(tables, chosen, points)
        decided = True
        if value <= target:
            real = self._plan(chosen, points)
            decided = real is not None and real <= target
            if real is not None and decided:
                target = real - 1
        if decided:
            self.learn(path)
            if not self._passes(chosen, target) or self._refuted_by_paths(local, target):
                return
            decided = self._search(chosen, local, target, limits, most_paths or MOST_PATHS)
        if not decided and most_paths is None:
            self._hand_on(chosen, target, limits)

    def _search(self, chosen: Sequence[int], local: list[int], target: int, limits: Limits, most_paths: int) -> bool:
        """Walk over combinations of points; whether the choice is decided."""
        tables, pool, p2p = self.tables, self.paths.coefficients, self.tables.problem.p2p
        groups = range(len(local))
        blocks = [self._block(g, item) for g, item in enumerate(local)]
        constants, scales = np.append(tables.constants, pool.constants), np.append(tables.scales, pool.scales)
        # only paths that some combination exceeds can tell combinations apart; sums of paths say nothing more here
        most = sum((block.max(axis=0) for block in blocks), constants)
        telling = np.flatnonzero((most > target) & (scales == 1))
        worth = np.concatenate([block[:, telling] for block in blocks])
        constants = constants[telling]
        start = np.append(0, np.cumsum([len(block) for block in blocks])).astype(np.int64)
        begin = [int(tables.items[g].first[local[g]]) - int(start[g]) for g in groups]
        if self._weighted_cut(telling, blocks, local, constants, chosen, target):
            return True
        picked, pointer = np.zeros(len(blocks), np.int64), start[:-1].copy()
        nodes = 0
        for _ in range(most_paths):
            pointer[0] = start[0]
            limit = target - constants
            state, _, used = walk_points(limit, worth, start, picked, pointer, 0, MOST_NODES - nodes)
            nodes += int(used)
            if state == EXHAUSTED:
                return True
            if state == NODE_LIMIT or limits.reached():
                return False
            points = [begin[g] + int(picked[g]) for g in groups]
            value, path = simulate_points(tables, chosen, points)
            if value <= target:
                real = self._plan(chosen, points)
                if real is None or real > target:
                    return False
                target = real - 1
            if path not in self.known:
                if path not in self.paths.paths:
                    self.paths.add(path, p2p)
                row = Coefficients(tables.problem, tables.chain.groups)
                row.add([row_of(path, p2p)])
                fresh = [point_worth(row, g, tables.items[g], local[g]) for g in groups]
                worth = np.hstack([worth, np.concatenate(fresh)])
                constants = np.append(constants, row.constants)
            if value > target and not np.any(worth[picked].sum(axis=0) + constants > target):
                return False  # passed only because another multiset hides more reduction
        return False

    def _weighted_cut(
        self,
        telling: Int64,
        blocks: list[Int64],
        local: list[int],
        constants: Int64,
        chosen: Sequence[int],
        target: int,
    ) -> bool:
        """Add a weighted sum of the cuts `telling` to the tables; whether that refutes the choice."""
        corners = [
            block[self._corners(g, item)][:, telling] for g, (item, block) in enumerate(zip(local, blocks, strict=True))
        ]
        start = np.append(0, np.cumsum([len(corner) for corner in corners])).astype(np.int64)
        weights = choice_weights(np.concatenate(corners), constants, start, target)
        if weights is None:
            return False
        rows = [*self.tables.rows, *self.paths.coefficients.rows]
        row = weighted_sum([rows[int(x)] for x in telling], weights, self.longest)
        if row is None:
            return False
        self.add_rows([row])
        return not self._passes(chosen, target)

    def _corners(self, g: int, item: int) -> Int64:
        """Points of an item that are the fastest under some weights of their times: enough to propose weights."""
        found = self._kept_corners.get((g, item))
        if found is None:
            items = self.tables.items[g]
            extra = items.extra[int(items.first[item]) : int(items.first[item + 1])].reshape(
                -1, items.extra.shape[1] * 3
            )
            extra = extra[:, extra.any(axis=0)]
            if len(extra) <= FEW_POINTS:
                found = np.arange(len(extra))
            else:
                weights = np.random.default_rng(0).standard_exponential((DIRECTIONS, extra.shape[1])) ** 2
                found = np.unique(np.argmin(extra @ weights.T, axis=0))
            self._kept_corners[g, item] = found
        return found

    def _block(self, g: int, item: int) -> Int64:
        """Worth [points, cuts and strategy paths] of an item's points; what was computed before is kept."""
        tables, pool = self.tables, self.paths.coefficients
        columns, more = len(tables.rows), len(pool.rows)
        first, second = self._kept.get((g, item), (None, None))
        if first is None:
            first = tables.point_worth(g, item)
        elif first.shape[1] < columns:
            first = np.hstack([first, tables.point_worth(g, item, first.shape[1])])
        if more and second is None:
            second = point_worth(pool, g, tables.items[g], item)
        elif second is not None and second.shape[1] < more:
            second = np.hstack([second, point_worth(pool, g, tables.items[g], item, second.shape[1])])
        self._kept[g, item] = first, second
        return first if second is None else np.hstack([first, second])

    def _passes(self, chosen: Sequence[int], target: int) -> bool:
        """Whether no cut refutes the choice."""
        tables = self.tables
        value = tables.worth[list(chosen), : len(tables.rows)].sum(axis=0) + tables.constants
        return not np.any(value > tables.scales * target)

    def _refuted_by_paths(self, local: list[int], target: int) -> bool:
        """Whether a strategy path refutes the choice whatever the strategies; if so it joins the tables."""
        columns = len(self.tables.rows)
        value = np.append(self.tables.constants, self.paths.coefficients.constants)
        for g, item in enumerate(local):
            value += self._block(g, item).min(axis=0)
        value = value[columns:]
        refuting = np.flatnonzero(value > target)
        if not len(refuting):
            return False
        self.learn(self.paths.paths[int(refuting[np.argmax(value[refuting])])])
        return True

    def _plan(self, chosen: Sequence[int], points: Sequence[int]) -> int | None:
        """Offer the plan of these points; its pipeline time, None where a point stands for several multisets."""
        plan = assignment(self.maker, self.tables, chosen, points)
        return None if plan is None else self.offer(plan)

    def _hand_on(self, chosen: Sequence[int], target: int, limits: Limits) -> None:
        """Let the stage model decide a choice whose boundaries are fixed."""
        bounds = boundaries(self.tables, chosen)
        sizes = tuple(stop - start for start, stop in pairwise(bounds))
        fixed = self.tables.problem.replace(min_layers=sizes, max_layers=sizes)
        solution = solve_stage_problem(
            fixed,
            upper_bound=target,
            cuts=[*self.known, *self.paths.paths],
            time_limit_s=limits.remaining_s(),
            stop=limits.stop,
        )
        if solution.assignment is not None:
            self.offer(solution.assignment)
        if solution.status not in ("optimal", "no_better", "infeasible"):
            self.undecided = True
