"""Engine room: weighted sums of cuts that refute what no single cut does.

For weights on the known cuts, the least weighted sum over all completions of a partial choice is a lower bound; it is
found by dynamic programming over groups and states. The best weights are approached by Kelley's method (a linear
program over the completions met so far) with trial points kept near the best weights. Every completion is simulated as
well, and its critical path joins the cuts. The linear program only proposes weights: rounded to integers they make a
cut like any other, which proves what its exact integer tables say.
"""

from __future__ import annotations

from collections.abc import Sequence

import highspy
import numpy as np
from numba import njit
from numpy.typing import NDArray

from prism_cp.engine.leaf import simulate_points
from prism_cp.engine.tables import Coefficients, Row, Tables, point_worth, row_of
from prism_cp.pipeline import PathCut

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

LARGEST_WEIGHT = 1 << 14
NEAR_BEST = 0.5  # where between the best weights and the program's the next trial is made
CLOSE = 1e-5  # relative distance of bound and program at which weights are as good as they get
MOST_CUTS = 60  # known cuts that take part
FIRST_CUTS, MORE_CUTS, MOST_LPS = 16, 8, 12  # cuts the program of a complete choice begins with, gains, and how often
HEAVY, MOST_LEARNT = 0.1, 4  # least weight of a path worth keeping, and how many are kept
ROUNDING = 1e-4  # what rounding the weights may cost, relative


class Aggregator:
    """Finds weights for the cuts of some tables."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def refute(self, prefix: Sequence[int], target: int, rounds: int) -> tuple[Row | None, list[PathCut]]:
        """Weights under which the items `prefix` of the first groups cannot be completed within the target.

        Returns the weighted sum as a row, or None, and the new paths that weigh most. The row still has to be checked
        in integers.
        """
        pool, trial = self._pool(prefix)
        paths: dict[PathCut, int] = {}
        program = _Program(target)
        center, best = trial, -np.inf
        for _ in range(rounds):
            trial = np.pad(trial, (0, len(pool.rows) - len(trial)))
            trial = trial / float(trial @ pool.scales)
            found = self._complete(prefix, pool, trial)
            if found is None:
                return None, []
            value, chosen, points = found
            if value > best:
                best, center = value, trial
            if best > target * (1 + ROUNDING):
                return weighted_sum(pool.rows, center), _heavy(paths, center)
            time, path = simulate_points(self.tables, chosen, points)
            fresh = time > program.bound and path not in paths
            if fresh:
                paths[path] = len(pool.rows)
                pool.add([row_of(path, self.tables.problem.p2p)])
            program.add(self._values(pool, chosen, points), pool.scales)
            if program.weights is None:
                return None, []
            if not fresh and (program.bound <= target or program.bound - best <= CLOSE * target):
                return None, _heavy(paths, center)
            weights = np.pad(program.weights, (0, len(pool.rows) - len(program.weights)))
            trial = NEAR_BEST * np.pad(center, (0, len(weights) - len(center))) + (1 - NEAR_BEST) * weights
        return None, _heavy(paths, center)

    def _pool(self, prefix: Sequence[int]) -> tuple[Coefficients, Float64]:
        """The cuts that say most about the prefix, and weights to begin with."""
        tables, columns = self.tables, len(self.tables.rows)
        value = tables.after[len(prefix), self._state(prefix), :columns].copy()
        for number in prefix:
            value += tables.worth[number, :columns]
        order = np.argsort(-(value / tables.scales), kind="stable")[:MOST_CUTS]
        pool = Coefficients(tables.problem, tables.chain.groups)
        pool.add([tables.rows[x] for x in order])
        first = np.zeros(len(order))
        first[0] = 1.0
        return pool, first

    def _state(self, prefix: Sequence[int]) -> int:
        tables = self.tables
        state = tables.chain.num_states - 1
        for g, number in enumerate(prefix):
            state = int(tables.down[tables.delta_start[g] + tables.item_delta[number], state])
        return state

    def _values(self, pool: Coefficients, chosen: Sequence[int], points: Sequence[int]) -> Float64:
        """Value of every cut at a completion, in its own scale."""
        tables = self.tables
        total = pool.constants.astype(np.float64)
        for g, (number, point) in enumerate(zip(chosen, points, strict=True)):
            item = number - int(tables.start[g])
            total += point_worth(pool, g, tables.items[g], item)[point - int(tables.items[g].first[item])]
        return total

    def _complete(
        self, prefix: Sequence[int], pool: Coefficients, weights: Float64
    ) -> tuple[float, list[int], list[int]] | None:
        """The completion with the least weighted sum: its value, items and points."""
        tables = self.tables
        groups = len(tables.items)
        after = np.full((groups + 1, tables.chain.num_states), np.inf)
        after[groups, 0] = float(weights @ pool.constants)
        picks = np.zeros((groups, tables.chain.num_states), np.int64)
        points = []
        for g in range(groups - 1, -1, -1):
            items = tables.items[g]
            rank_of, bucket, times, heads, tails = pool.of_group(g)
            low, high = 0, len(items.choice)
            if g < len(prefix):
                low = int(prefix[g] - tables.start[g])
                high = low + 1
            value, point = _price(
                low, high, items.first, items.base, items.extra, items.credit, items.most_hidden, items.head,
                items.reduce, rank_of, bucket, np.tensordot(weights, times, 1), weights @ heads, weights @ tails,
            )  # fmt: skip
            points.append(point)
            first = tables.delta_start[g]
            _best_items(
                low, high, value, tables.item_delta[tables.start[g] : tables.start[g + 1]],
                tables.down[first : tables.delta_start[g + 1]], after[g + 1], after[g], picks[g],
            )  # fmt: skip
        points.reverse()
        state = tables.chain.num_states - 1
        total = float(after[0, state])
        if not np.isfinite(total):
            return None
        chosen, at = [], []
        for g in range(groups):
            item = int(picks[g, state])
            chosen.append(item + int(tables.start[g]))
            at.append(int(points[g][item]))
            state = int(tables.down[tables.delta_start[g] + tables.item_delta[chosen[-1]], state])
        return total, chosen, at


class _Program:
    """Kelley's linear program: greatest bound that no completion met so far contradicts.

    Maximise b over weights w >= 0 with w · scales = 1 and b <= w · values of every completion.
    """

    def __init__(self, target: int) -> None:
        self._unit = float(max(1, target))  # values relative to the target keep the numbers near one
        self._highs = highspy.Highs()
        self._highs.setOptionValue("output_flag", False)
        self._highs.setOptionValue("threads", 1)
        self._highs.addCol(-1.0, -highspy.kHighsInf, highspy.kHighsInf, 0, [], [])
        self._highs.addRow(1.0, 1.0, 0, [], [])
        self._columns: list[Float64] = []
        self._known = 0
        self._completions: list[Float64] = []
        self.weights: Float64 | None = None
        self.bound = np.inf

    def add(self, values: Float64, scales: Int64) -> None:
        """Take note of a completion and solve again. Cuts unknown to older completions count as zero there."""
        for x in range(self._known, len(values)):
            self._highs.addCol(0.0, 0.0, highspy.kHighsInf, 1, [0], [float(scales[x])])
        self._known = len(values)
        used = np.arange(len(values), dtype=np.int32) + 1
        row = np.append(-values / self._unit, 1.0)
        columns = np.append(used, np.int32(0)).astype(np.int32)
        self._highs.addRow(-highspy.kHighsInf, 0.0, len(row), columns, row)
        self._highs.run()
        if self._highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            self.bound = np.inf
            return
        solution = np.array(self._highs.getSolution().col_value)
        self.bound = float(solution[0]) * self._unit
        self.weights = np.maximum(solution[1:], 0.0)


def choice_weights(worth: Int64, constants: Int64, scales: Int64, start: Int64, target: int) -> Float64 | None:
    """Weights on cuts under which no mixture of points, one mixture per group, is within the target; None: none are.

    The dual of: minimise t over weights y >= 0 of the points with sum 1 per group, such that for every cut
    y · worth + constant <= scale · t.

    Parameters
    ----------
    worth : int64 array [points of all groups, cuts]
    start : int64 array [groups + 1]
        First point of every group.
    """
    points, groups = len(worth), len(start) - 1
    unit = float(target)
    shares = worth / (unit * scales)  # every cut in units of the target
    level = constants / (unit * scales)
    highs = highspy.Highs()
    highs.setOptionValue("output_flag", False)
    highs.setOptionValue("threads", 1)
    infinity = highspy.kHighsInf
    none = np.zeros(0, np.int32), np.zeros(0)
    for cost, low in [*((0.0, 0.0) for _ in range(points)), (1.0, -infinity)]:
        highs.addCol(cost, low, infinity, 0, *none)
    for g in range(groups):
        members = np.arange(start[g], start[g + 1], dtype=np.int32)
        highs.addRow(1.0, 1.0, len(members), members, np.ones(len(members)))
    every = np.arange(points + 1, dtype=np.int32)
    least = level.copy()
    for g in range(groups):
        least += shares[start[g] : start[g + 1]].min(axis=0)
    fresh = np.argsort(-least, kind="stable")[:FIRST_CUTS]
    used: list[int] = []
    bound, weights = -np.inf, np.zeros(len(scales))
    for _ in range(MOST_LPS):
        for x in fresh.tolist():
            highs.addRow(-infinity, -float(level[x]), points + 1, every, np.append(shares[:, x], -1.0))
            used.append(x)
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = highs.getSolution()
        mixture = np.array(solution.col_value)
        weights = np.zeros(len(scales))
        weights[used] = np.maximum(-np.array(solution.row_dual[groups:]), 0.0) / scales[used]
        bound = mixture[points]
        values = level + mixture[:points] @ shares
        values[used] = -np.inf
        fresh = np.argsort(-values, kind="stable")[:MORE_CUTS]
        fresh = fresh[values[fresh] > bound + CLOSE / 10]
        if not len(fresh):
            break
    return weights if bound > 1 + ROUNDING / 10 and weights.max() > 0 else None


def _heavy(paths: dict[PathCut, int], weights: Float64) -> list[PathCut]:
    """Paths with a good part of the whole weight, heaviest first; `paths` says where their weights stand."""
    share = {path: float(weights[x]) / float(weights.sum()) for path, x in paths.items() if x < len(weights)}
    return sorted((path for path in share if share[path] >= HEAVY), key=lambda path: -share[path])[:MOST_LEARNT]


def weighted_sum(rows: Sequence[Row], weights: Float64) -> Row:
    """The sum of the cuts with their weights rounded to integers; valid whatever the weights."""
    whole = np.floor(weights / weights.max() * LARGEST_WEIGHT).astype(np.int64)
    used = np.flatnonzero(whole)
    times = sum((int(whole[x]) * rows[x].times for x in used), np.zeros_like(rows[0].times))
    head = sum((int(whole[x]) * rows[x].head for x in used), np.zeros_like(rows[0].head))
    tail = sum((int(whole[x]) * rows[x].tail for x in used), np.zeros_like(rows[0].tail))
    constant = sum(int(whole[x]) * rows[x].constant for x in used)
    return Row(times, head, tail, constant, sum(int(whole[x]) * rows[x].scale for x in used))


@njit(cache=True)  # type: ignore[untyped-decorator]
def _price(  # type: ignore[no-untyped-def]
    low, high, first, base, extra, credit, most_hidden, head, reduce, rank_of, bucket, times, heads, tails
):
    """Least weighted time of the items low..high, and the point that attains it."""
    value = np.full(len(base), np.inf)
    point = np.zeros(len(base), np.int64)
    for i in range(low, high):
        fixed = 0.0
        for s in range(len(rank_of)):
            for c in range(3):
                fixed += times[s, c] * base[i, s, c]
        for r in range(len(bucket)):
            fixed += heads[r] * head[i, r]
        for p in range(first[i], first[i + 1]):
            total = fixed
            for s in range(len(rank_of)):
                for c in range(3):
                    total += times[s, c] * extra[p, s, c]
            for r in range(len(bucket)):
                if tails[r] > 0:
                    hidden = 0
                    for s in range(len(rank_of)):
                        if rank_of[s] == r:
                            hidden += credit[p, s] if times[s, 1] >= tails[r] else most_hidden[i, s]
                    total += tails[r] * max(bucket[r], reduce[i, r] - hidden)
            if total < value[i]:
                value[i] = total
                point[i] = p
    return value, point


@njit(cache=True)  # type: ignore[untyped-decorator]
def _best_items(low, high, value, item_delta, down, following, after, picks):  # type: ignore[no-untyped-def]
    """One step of the dynamic program: for every state the least value and the item that attains it."""
    least = np.full(down.shape[0], np.inf)
    item = np.zeros(down.shape[0], np.int64)
    for i in range(low, high):
        if value[i] < least[item_delta[i]]:
            least[item_delta[i]] = value[i]
            item[item_delta[i]] = i
    for delta in range(down.shape[0]):
        if least[delta] == np.inf:
            continue
        for state in range(down.shape[1]):
            rest = down[delta, state]
            if rest >= 0 and following[rest] + least[delta] < after[state]:
                after[state] = following[rest] + least[delta]
                picks[state] = item[delta]
