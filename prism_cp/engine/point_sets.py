"""Engine room: sets of points of one complete choice: what paths say of them, how they are narrowed and split."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prism_cp.engine.aggregate import choice_weights, whole_weights
from prism_cp.engine.tables import Coefficients, Row, Tables, point_worth
from prism_cp.engine.walk import LEAF, walk_points
from prism_cp.pipeline import PathCut, get_schedule

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

FEW_POINTS, DIRECTIONS = 8, 64  # of more points of an item only those fastest in some direction make weights


class StrategyPaths:
    """Paths that complete choices have taught, shared by all walks of a solve."""

    def __init__(self, tables: Tables) -> None:
        self.known: dict[PathCut, None] = {}
        self.coefficients = Coefficients(tables.problem, tables.chain.groups)

    def add(self, path: PathCut, row: Row) -> None:
        """Take note of a new path."""
        self.known[path] = None
        self.coefficients.add([row])


class PointSets:
    """All points of one item per group under the paths that can tell their combinations apart.

    A set of points is a list of arrays, one per group, of point numbers within the item, ascending.

    Attributes
    ----------
    rows : list of Row
        The paths.
    """

    def __init__(
        self, tables: Tables, local: Sequence[int], blocks: Sequence[Int64], paths: StrategyPaths, target: int
    ) -> None:
        self._tables, self._local = tables, local
        pool = paths.coefficients
        constants, scales = np.append(tables.constants, pool.constants), np.append(tables.scales, pool.scales)
        highest = get_schedule(tables.problem.schedule).overlap_factor.denominator  # of a single path
        # only paths that some combination exceeds can tell combinations apart; sums of paths say nothing more here
        most = sum((block.max(axis=0) for block in blocks), constants)
        telling = np.flatnonzero((most > scales * target) & (scales <= highest))
        rows = [*tables.rows, *pool.rows]
        self.rows = [rows[int(x)] for x in telling]
        self._worth = [np.ascontiguousarray(block[:, telling]) for block in blocks]
        self._constants, self._scales = constants[telling], scales[telling]
        self._times = []
        for g, item in enumerate(local):
            items = tables.items[g]
            span = slice(int(items.first[item]), int(items.first[item + 1]))
            self._times.append(items.base[item] + items.extra[span])

    def everything(self) -> list[Int64]:
        """The set of all points."""
        return [np.arange(len(worth)) for worth in self._worth]

    def add(self, row: Row) -> None:
        """Take note of one more path."""
        path = Coefficients(self._tables.problem, self._tables.chain.groups)
        path.add([row])
        for g, item in enumerate(self._local):
            fresh = point_worth(path, g, self._tables.items[g], item)
            self._worth[g] = np.hstack([self._worth[g], fresh])
        self._constants = np.append(self._constants, path.constants)
        self._scales = np.append(self._scales, path.scales)
        self.rows.append(row)

    def forbids(self, points: Sequence[int], target: int) -> bool:
        """Whether some path refutes a combination; points are numbered over all items of their group."""
        value = self._constants.copy()
        for g, point in enumerate(points):
            value += self._worth[g][point - int(self._tables.items[g].first[self._local[g]])]
        return bool(np.any(value > self._scales * target))

    def weigh(
        self, alive: list[Int64], target: int, longest: int
    ) -> tuple[list[Int64] | None, Int64 | None, list[Float64] | None]:
        """Drop points that a weighted sum of the paths refutes.

        Returns the points left (None: the whole set is refuted), the integer weights, and the mixture of the linear
        program, as shares of the points left.
        """
        if not self.rows:
            return alive, None, None
        corners = [self._corners(g, points) for g, points in enumerate(alive)]
        start = np.append(0, np.cumsum([len(corner) for corner in corners])).astype(np.int64)
        worth = np.concatenate([self._worth[g][corner] for g, corner in enumerate(corners)])
        found = choice_weights(worth, self._constants, start, target, self._scales)
        whole = None if found is None else whole_weights(found[0] / self._scales, longest * int(self._scales.max()))
        if found is None or whole is None:
            return alive, None, None
        values = [self._worth[g][points] @ whole for g, points in enumerate(alive)]
        slack = int(whole @ self._scales) * target - int(whole @ self._constants)
        slack -= sum(int(value.min()) for value in values)
        if slack < 0:
            return None, whole, None
        left = [points[value - value.min() <= slack] for points, value in zip(alive, values, strict=True)]
        shares = []
        for g, corner in enumerate(corners):
            share = np.zeros(len(self._worth[g]))
            share[corner] = found[1][start[g] : start[g + 1]]
            shares.append(share[left[g]])
        return left, whole, shares

    def mixed(self, alive: list[Int64], shares: list[Float64]) -> tuple[Int64, Int64, Int64]:
        """Times [virtual stages, 3], heads and tails of a mixture, rounded: where its longest path may be."""
        problem = self._tables.problem
        times = np.zeros((len(problem.virtual_stages), 3), np.int64)
        head = np.zeros(len(problem.ranks), np.int64)
        tail = np.array([rank.last_bucket for rank in problem.ranks], np.int64)
        for g, item in enumerate(self._local):
            items = self._tables.items[g]
            share = shares[g] / max(float(shares[g].sum()), 1e-9)
            mean = np.tensordot(share, self._times[g][alive[g]].astype(np.float64), 1)
            times[list(items.group.stages)] = np.rint(mean).astype(np.int64)
            head[list(items.group.ranks)] = items.head[item]
        return times, head, tail

    def next_combination(self, alive: list[Int64], target: int, most_nodes: int) -> tuple[int, list[int]]:
        """What a walk over a set ended with, and the combination it found, numbered over all items of the groups."""
        start = np.append(0, np.cumsum([len(points) for points in alive])).astype(np.int64)
        worth = np.concatenate([self._worth[g][points] for g, points in enumerate(alive)])
        picked = np.zeros(len(alive), np.int64)
        limits = self._scales * target - self._constants
        state, _, _ = walk_points(limits, worth, start, picked, start[:-1].copy(), 0, most_nodes)
        if state != LEAF:
            return int(state), []
        first = [int(self._tables.items[g].first[item]) for g, item in enumerate(self._local)]
        return LEAF, [first[g] + int(points[picked[g] - start[g]]) for g, points in enumerate(alive)]

    def split(self, alive: list[Int64]) -> list[list[Int64]]:
        """Two halves of a set, along the group with the most points."""
        g = max(range(len(alive)), key=lambda group: len(alive[group]))
        middle = len(alive[g]) // 2
        assert middle, "a set of one combination is not split"
        return [[*alive[:g], half, *alive[g + 1 :]] for half in (alive[g][:middle], alive[g][middle:])]

    def _corners(self, g: int, points: Int64) -> Int64:
        """Points that are the fastest under some weights of their times: enough to propose weights."""
        if len(points) <= FEW_POINTS:
            return points
        times = self._times[g][points].reshape(len(points), -1)
        times = times[:, (times != times[0]).any(axis=0)]
        weights = np.random.default_rng(g).standard_exponential((DIRECTIONS, times.shape[1])) ** 2
        corners: Int64 = points[np.unique(np.argmin(times @ weights.T, axis=0))]
        return corners
