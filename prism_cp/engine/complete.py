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
from prism_cp.engine.aggregate import choice_weights, weighted_sum, whole_weights
from prism_cp.engine.items import ItemMaker
from prism_cp.engine.leaf import assignment, boundaries, simulate_points
from prism_cp.engine.limits import Limits
from prism_cp.engine.tables import Coefficients, Row, Tables, point_worth, row_of
from prism_cp.engine.walk import EXHAUSTED, LEAF, NODE_LIMIT, walk_points
from prism_cp.pipeline import PathCut
from prism_cp.stage_problem import Assignment

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

WEIGH_EVERY = 8  # paths learnt between two searches for weights
MOST_NODES = 20_000_000  # combinations of points looked at per complete choice before it is handed on
FEW_POINTS, DIRECTIONS = 8, 64  # of an item with more points only those fastest in some direction make weights
MOST_PATHS = 400  # paths learnt at one complete choice before it is handed on

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
        tables = self.tables
        mixture = _Mixture(self, local, target)
        nodes = 0
        for paths in range(most_paths):
            if paths % WEIGH_EVERY == 0 and mixture.weigh(target, self.longest):
                if mixture.row is not None:
                    self.add_rows([mixture.row])
                return True
            picked, state, used = mixture.next_points(target, MOST_NODES - nodes)
            nodes += used
            if state == EXHAUSTED:
                return True
            if state == NODE_LIMIT or limits.reached():
                return False
            points = [int(tables.items[g].first[local[g]]) + int(p) for g, p in enumerate(picked)]
            value, path = simulate_points(tables, chosen, points)
            if value <= target:
                real = self._plan(chosen, points)
                if real is None or real > target:
                    return False
                target = real - 1
            if path not in self.known:
                if path not in self.paths.paths:
                    self.paths.add(path, tables.problem.p2p)
                mixture.add(row_of(path, tables.problem.p2p))
            if value > target and not mixture.forbids(picked, target):
                return False  # passed only because another multiset hides more reduction
        return False

    def corners(self, g: int, item: int) -> Int64:
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

    def block(self, g: int, item: int) -> Int64:
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
            value += self.block(g, item).min(axis=0)
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


class _Mixture:
    """The points of one complete choice under all paths that can tell them apart, and under weighted sums of them.

    Attributes
    ----------
    row : Row or None
        After `weigh`: the weighted sum that refutes the choice whatever the strategies.
    """

    def __init__(self, completer: Completer, local: list[int], target: int) -> None:
        tables, pool = completer.tables, completer.paths.coefficients
        self.row: Row | None = None
        self._tables, self._local = tables, local
        blocks = [completer.block(g, item) for g, item in enumerate(local)]
        constants, scales = np.append(tables.constants, pool.constants), np.append(tables.scales, pool.scales)
        # only paths that some combination exceeds can tell combinations apart; sums of paths say nothing more here
        most = sum((block.max(axis=0) for block in blocks), constants)
        telling = np.flatnonzero((most > target) & (scales == 1))
        rows = [*tables.rows, *pool.rows]
        self._rows = [rows[int(x)] for x in telling]
        self._worth = np.concatenate([block[:, telling] for block in blocks])
        self._constants = constants[telling]
        self._sizes = [len(block) for block in blocks]
        self._start = np.append(0, np.cumsum(self._sizes)).astype(np.int64)
        self._corners = [completer.corners(g, item) + self._start[g] for g, item in enumerate(local)]
        self._alive = [np.arange(size) for size in self._sizes]
        self._sums = np.zeros((len(self._worth), 0), np.int64)
        self._sum_constants = np.zeros(0, np.int64)
        self._sum_scales = np.zeros(0, np.int64)

    def add(self, row: Row) -> None:
        """Take note of one more path."""
        path = Coefficients(self._tables.problem, self._tables.chain.groups)
        path.add([row])
        fresh = [point_worth(path, g, self._tables.items[g], item) for g, item in enumerate(self._local)]
        self._worth = np.hstack([self._worth, np.concatenate(fresh)])
        self._constants = np.append(self._constants, path.constants)
        self._rows.append(row)

    def forbids(self, picked: Int64, target: int) -> bool:
        """Whether some path refutes the combination."""
        return bool(np.any(self._worth[picked + self._start[:-1]].sum(axis=0) + self._constants > target))

    def weigh(self, target: int, longest: int) -> bool:
        """Search for weights and drop points that they refute; whether nothing is left."""
        corners = np.concatenate(self._corners)
        start = np.append(0, np.cumsum([len(corner) for corner in self._corners])).astype(np.int64)
        found = choice_weights(self._worth[corners], self._constants, start, target) if self._rows else None
        if found is None:
            return False
        weights, _ = found
        whole = whole_weights(weights, longest)
        if whole is None:
            return False
        scale = int(whole.sum())
        value = self._worth @ whole
        least = [int(value[self._start[g] : self._start[g + 1]].min()) for g in range(len(self._sizes))]
        slack = scale * target - int(whole @ self._constants) - sum(least)
        if slack < 0:
            self.row = weighted_sum(self._rows, whole)
            return True
        for g, alive in enumerate(self._alive):
            self._alive[g] = alive[value[alive + self._start[g]] - least[g] <= slack]
        self._sums = np.hstack([self._sums, value[:, None]])
        self._sum_constants = np.append(self._sum_constants, whole @ self._constants)
        self._sum_scales = np.append(self._sum_scales, scale)
        return any(not len(alive) for alive in self._alive)

    def next_points(self, target: int, most_nodes: int) -> tuple[Int64, int, int]:
        """A combination of points that nothing refutes: points within their items, what happened, nodes."""
        index = np.concatenate([alive + self._start[g] for g, alive in enumerate(self._alive)])
        start = np.append(0, np.cumsum([len(alive) for alive in self._alive])).astype(np.int64)
        worth = np.hstack([self._sums[index], self._worth[index]])
        limit = np.append(self._sum_scales * target - self._sum_constants, target - self._constants)
        picked = np.zeros(len(self._sizes), np.int64)
        state, _, used = walk_points(limit, worth, start, picked, start[:-1].copy(), 0, most_nodes)
        if state != LEAF:
            return picked, int(state), int(used)
        chosen = np.array([alive[picked[g] - start[g]] for g, alive in enumerate(self._alive)], np.int64)
        return chosen, LEAF, int(used)
