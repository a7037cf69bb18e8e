"""Engine room: bounds for items with too many points: activation memory is traded for time along convex outlines.

With more than two pieces a rank has thousands of strategy combinations per item. Along a path they cost the times of
the pieces' fastest points and at least what saving enough memory costs beyond them: the least over mixtures of every
piece's points, that is, walking down the lower convex outlines of (activation memory, input-gradient time), cheapest
edges first. That is the linear relaxation of the multiple-choice knapsack, which with so many points is close to the
truth. Floating point; what is returned has a margin far above its errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from prism_cp.engine.choices import ACTIVATION, INPUT_GRAD

Int64 = NDArray[np.int64]

MOST_ROWS = 3  # memory rows that bound an item


@dataclass(frozen=True)
class Outline:
    """Convex outlines of all compositions of one group's pieces, each of which has one stage.

    Attributes
    ----------
    memory, time : int64 arrays [vertices]
        Fastest vertex of a composition first.
    first : int64 array [pieces, compositions, 2]
        First and last vertex of a composition.
    live : int64 array [rows, pieces]
        Live micro-batches of every memory row.
    stage : int64 array [pieces]
        Position of a piece's stage in the group.
    """

    memory: Int64
    time: Int64
    first: Int64
    live: Int64
    stage: Int64

    @property
    def arrays(self) -> tuple[Int64, ...]:
        """As the kernels take them."""
        return self.memory, self.time, self.first, self.live, self.stage


def make_outline(values: Int64, offset: Int64, rows: Int64, piece: Int64) -> Outline:
    """Outlines of stacked points (see `items`) with one table, in the order of input-gradient time."""
    kept: list[Int64] = []
    first = np.zeros_like(offset)
    total = 0
    for k in range(offset.shape[0]):
        for local in range(offset.shape[1]):
            start, stop = (int(position) for position in offset[k, local])
            if stop > start:
                vertices = start + _vertices(values[start:stop, 0, ACTIVATION], values[start:stop, 0, INPUT_GRAD])
                kept.append(vertices)
                first[k, local] = total, total + len(vertices)
                total += len(vertices)
    chosen = np.concatenate(kept) if kept else np.zeros(0, np.int64)
    stage = np.argsort(piece, kind="stable").astype(np.int64)
    return Outline(
        values[chosen, 0, ACTIVATION].copy(), values[chosen, 0, INPUT_GRAD].copy(), first, rows[:, stage].copy(), stage
    )


@njit(cache=True)
def _vertices(memory, time):  # type: ignore[no-untyped-def]
    """Vertices of the lower convex outline of points in the order of time, from the fastest down in memory."""
    kept = np.zeros(len(memory), np.int64)
    count = 0
    for i in range(len(memory)):
        if count and memory[i] >= memory[kept[count - 1]]:
            continue
        while count > 1:
            a, b = kept[count - 2], kept[count - 1]
            # b is above the line from a to i: its edge saves memory at a higher price than the next one
            if float(time[b] - time[a]) * float(memory[b] - memory[i]) >= float(time[i] - time[b]) * float(
                memory[a] - memory[b]
            ):
                count -= 1
            else:
                break
        kept[count] = i
        count += 1
    return kept[:count]


@njit(cache=True)
def fullest_rows(choice, budget, memory, first, live):  # type: ignore[no-untyped-def]
    """The memory rows [items, MOST_ROWS] that the fastest points exceed most (-1: none is left), and by how much."""
    items, pieces = choice.shape
    rows = np.full((items, MOST_ROWS), -1, np.int64)
    excess = np.zeros((items, MOST_ROWS), np.int64)
    over = np.zeros(len(live), np.int64)
    for i in range(items):
        for row in range(len(live)):
            over[row] = -budget[i, row]
            for k in range(pieces):
                over[row] += live[row, k] * memory[first[k, choice[i, k], 0]]
        for n, row in enumerate(np.argsort(-over)[:MOST_ROWS]):
            if over[row] > 0:
                rows[i, n], excess[i, n] = row, over[row]
    return rows, excess


@njit(cache=True)
def _walk_down(choice, row, excess, memory, time, first, live, stage, times, at, slower):  # type: ignore[no-untyped-def]
    """Least cost of saving `excess` memory in a row, and in `slower` the time [pieces] it takes."""
    pieces = len(choice)
    over, cost = float(excess), 0.0
    for k in range(pieces):
        at[k] = first[k, choice[k], 0]
        slower[k] = 0.0
    while over > 0.0:
        best, best_k, best_saved = 1e300, -1, 1.0
        for k in range(pieces):
            if at[k] + 1 < first[k, choice[k], 1] and live[row, k] > 0:
                saved = float(live[row, k] * (memory[at[k]] - memory[at[k] + 1]))
                slope = float(times[stage[k], 1]) * float(time[at[k] + 1] - time[at[k]]) / saved
                if slope < best:
                    best, best_k, best_saved = slope, k, saved
        if best_k < 0:
            break  # nothing fits; what was added up so far is a bound all the same
        share = min(1.0, over / best_saved)
        slower[best_k] += share * float(time[at[best_k] + 1] - time[at[best_k]])
        cost += best * best_saved * share
        over -= best_saved
        at[best_k] += 1
    return cost


@njit(cache=True)
def add_outline_worth(choice, rows, excess, memory, time, first, live, stage, times, out):  # type: ignore[no-untyped-def]
    """Add to `out` [items, cuts] what saving enough memory costs at least beyond the fastest points.

    `times` [cuts, stages, 3] are the cuts' coefficients.
    """
    at, slower = np.zeros(choice.shape[1], np.int64), np.zeros(choice.shape[1])
    for i in range(len(choice)):
        if rows[i, 0] < 0:
            continue
        for x in range(len(times)):
            dearest = 0.0
            for n in range(MOST_ROWS):
                if rows[i, n] >= 0:
                    cost = _walk_down(
                        choice[i], rows[i, n], excess[i, n], memory, time, first, live, stage, times[x], at, slower
                    )
                    dearest = max(dearest, cost)
            out[i, x] += max(np.int64(0), np.int64(np.floor(dearest * (1.0 - 1e-11) - 1e-3)))


@njit(cache=True)
def outline_point(choice, rows, excess, memory, time, first, live, stage, times, extra):  # type: ignore[no-untyped-def]
    """Write the times [pieces] beyond the fastest points of the mixture that bounds one item under one cut."""
    at, slower = np.zeros(len(choice), np.int64), np.zeros(len(choice))
    extra[:] = 0.0
    dearest = -1.0
    for n in range(MOST_ROWS):
        if rows[n] >= 0:
            cost = _walk_down(choice, rows[n], excess[n], memory, time, first, live, stage, times, at, slower)
            if cost > dearest:
                dearest = cost
                extra[:] = slower
