"""The walk over ranks: which boundaries does a target step time leave reachable?

With `before` the cheapest time of all earlier ranks, `after` that of all later ones, c and f the item's time and
forward time, m micro-batches and w = min(m, p - 1 - i), every plan's pipeline time is at least each of (1F1B; every one
is the length of a path through the event graph)

    before + m c;   before + after + m c - w f;   before + after + (m - w) c + w f;   before + 2 after + (m - w) c

and for GPipe before + after + m c. Head of the first rank and tail of the last op's rank come on top.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from prism_cp.partition.items import NOT_POSSIBLE, ItemTables
from prism_cp.stage_problem import StageProblem

Int64 = NDArray[np.int64]


def rank_cuts(problem: StageProblem) -> Int64:
    """Rows [rank, cut, (c, f, after, p2p)]: coefficients of the item's time, its forward, `after`, and transfers.

    `before` always has coefficient 1. Unused rows are zero, which is a valid bound. The last row holds m.
    """
    p, m = problem.pp, problem.num_microbatches
    rows = np.zeros((p, 5, 4), np.int64)
    rows[:, 4] = m
    for i in range(p):
        w, inner = min(m, p - 1 - i), 2 * i
        if problem.schedule == "gpipe":
            rows[i, 0] = (m, 0, 1, 2 * (p - 1))
            continue
        rows[i, 0] = (m, 0, 0, inner)
        rows[i, 1] = (m, -w, 1, 2 * (p - 1))
        if m > w:
            rows[i, 2] = (m - w, w, 1, 2 * (p - 1))
        if m - w >= 2:
            rows[i, 3] = (m - w, 0, 2, inner + 4 * (p - 1 - i))
    return rows


class Walk:
    """Reachability over the items as they stand; build a new one when items became exact."""

    def __init__(self, tables: ItemTables) -> None:
        self.tables = tables
        self.cuts = rank_cuts(tables.problem)
        self.after = _suffix_costs(tables.items)

    @property
    def possible(self) -> bool:
        """Whether any boundaries fit at all (within the limit of the items)."""
        return bool(self.after[0, 0] < NOT_POSSIBLE)

    def reach(self, target: int) -> tuple[int, ...] | None:
        """Boundaries that keep every path within `target`, or None when there are none."""
        p, length = self.tables.problem.pp, len(self.tables.problem.layers)
        parents = np.full((p + 1, length + 1), -1, np.int64)
        alive = np.zeros((0, 0, 0), np.bool_)
        if not self._run(target, parents, alive):
            return None
        bounds = [length]
        for i in range(p, 0, -1):
            bounds.append(int(parents[i, bounds[-1]]))
        return tuple(reversed(bounds))

    def alive(self, target: int) -> NDArray[np.bool_]:
        """Items on some walk that keeps every path within `target`."""
        p, length = self.tables.problem.pp, len(self.tables.problem.layers)
        parents = np.full((p + 1, length + 1), -1, np.int64)
        alive = np.zeros(self.tables.items.shape, np.bool_)
        self._run(target, parents, alive)
        ends = np.zeros(length + 1, np.bool_)
        ends[length] = True
        for i in range(p - 1, -1, -1):
            alive[i] &= ends[None, :]
            ends = alive[i].any(axis=1)
        return alive

    def least_target(self, low: int, high: int) -> int:
        """Least reachable target in [low, high], or high + 1."""
        if self.reach(high) is None:
            return high + 1
        while low < high:
            middle = (low + high) // 2
            if self.reach(middle) is None:
                low = middle + 1
            else:
                high = middle
        return low

    def _run(self, target: int, parents: Int64, alive: NDArray[np.bool_]) -> bool:
        t, a = self.tables, self.tables.arrays
        return bool(
            _reachable(
                np.int64(target), t.items, t.exposed, self.after, a.prefix, a.forward_least, a.forward_most, a.head,
                a.reduce, a.end, a.rank, self.cuts, np.int64(t.problem.p2p), parents, alive,
            )
        )  # fmt: skip


@njit(cache=True)
def _suffix_costs(items):  # type: ignore[no-untyped-def]
    """``after[i, x]``: least total time of ranks i.. on the layers from x on."""
    impossible = np.int64(1) << 61
    p, length = items.shape[0], items.shape[1] - 1
    after = np.full((p + 1, length + 1), impossible, np.int64)
    after[p, length] = 0
    for i in range(p - 1, -1, -1):
        for start in range(length + 1):
            best = impossible
            for stop in range(start, length + 1):
                if items[i, start, stop] < impossible and after[i + 1, stop] < impossible:
                    best = min(best, items[i, start, stop] + after[i + 1, stop])
            after[i, start] = best
    return after


@njit(cache=True)
def _reachable(  # type: ignore[no-untyped-def]
    target, items, exposed, after, prefix, f_low, f_high, head, reduce, end, rank, cuts, lat, parents, alive
):
    """Whether some boundaries keep every path within `target`.

    `parents` receives one such walk; `alive`, unless empty, the items from reachable boundaries that pass.
    """
    impossible = np.int64(1) << 61
    kinds = prefix.shape[0]
    p, length = items.shape[0], items.shape[1] - 1
    mark = alive.shape[0] > 0
    before = np.full(length + 1, impossible, np.int64)
    before[0] = 0
    forward_before = np.zeros(length + 1, np.int64)  # least forward time of earlier ranks over all walks
    for i in range(p):
        following = np.full(length + 1, impossible, np.int64)
        forward_following = np.full(length + 1, impossible, np.int64)
        for start in range(length + 1):
            if before[start] >= impossible:
                continue
            for stop in range(start, length + 1):
                c = items[i, start, stop]
                if c >= impossible or after[i + 1, stop] >= impossible:
                    continue
                f_least = end[i, 0]
                f_most = end[i, 0]
                start_time = rank[i, 2] + end[i, 6]
                left = end[i, 7] - end[i, 8] - (c - exposed[i, start, stop])
                for k in range(kinds):
                    n = prefix[k, stop] - prefix[k, start]
                    f_least += n * f_low[i, k]
                    f_most += n * f_high[i, k]
                    start_time += n * head[i, k]
                    left += n * reduce[i, k]
                tail = max(rank[i, 3], left)
                reach = before[start]
                if i == 0:
                    reach = start_time + tail
                rest = after[i + 1, stop]
                m = cuts[i, 4, 0]
                fits = start_time + m * c + tail <= target
                fits &= forward_before[start] + i * lat + m * c + tail <= target
                for cut in range(4):
                    f = f_least if cuts[i, cut, 1] > 0 else f_most
                    value = reach + cuts[i, cut, 0] * c + cuts[i, cut, 1] * f + cuts[i, cut, 2] * rest
                    fits &= value + cuts[i, cut, 3] * lat <= target
                if not fits:
                    continue
                if mark:
                    alive[i, start, stop] = True
                forward_following[stop] = min(forward_following[stop], forward_before[start] + f_least)
                if reach + c < following[stop]:
                    following[stop] = reach + c
                    parents[i + 1, stop] = start
        before, forward_before = following, forward_following
    return before[length] < impossible
