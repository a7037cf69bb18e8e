"""Second proof room: the strategies of a column's pieces that fit together and that no path forbids, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int64 = NDArray[np.int64]


@njit(cache=True)
def fitting_points(
    first: Int64,
    key: Int64,
    coefficients: Int64,
    memory: Int64,
    transient: Int64,
    room: Int64,
    budget: Int64,
    out: Int64,
) -> int:  # pragma: no cover - compiled
    """Combinations of one point a piece that fit and keep the budgets, fewer where another one is never slower.

    Parameters
    ----------
    first : int64 array [pieces + 1]
        First point of every piece.
    key : int64 array [points, times]
        Non-negative times that differ between points.
    coefficients : int64 array [pieces, paths, times]
    memory, transient : int64 arrays [points, rows]
        What a point keeps alive, and the largest transient that can come on top, in every memory row.
    room : int64 array [rows]
    budget : int64 array [paths]
        Without what does not differ between points.
    out : int64 array [most, pieces]

    Returns
    -------
    int
        Combinations written; more than `most` when there were too many.
    """
    pieces, rows, paths, times = len(first) - 1, len(room), len(budget), key.shape[1]
    least_memory = np.zeros((pieces + 1, rows), np.int64)
    least_transient = np.zeros((pieces + 1, rows), np.int64)
    for k in range(pieces - 1, -1, -1):
        for m in range(rows):
            smallest, lowest = memory[first[k], m], transient[first[k], m]
            for point in range(first[k], first[k + 1]):
                smallest, lowest = min(smallest, memory[point, m]), min(lowest, transient[point, m])
            least_memory[k, m] = least_memory[k + 1, m] + smallest
            least_transient[k, m] = max(least_transient[k + 1, m], lowest)
    used = np.zeros((pieces + 1, rows), np.int64)
    peak = np.zeros((pieces + 1, rows), np.int64)
    taken = np.zeros((pieces + 1, paths), np.int64)
    current = first[:-1] - 1
    begun = np.zeros(pieces + 1, np.int64)
    count, depth = 0, 0
    while depth >= 0:
        current[depth] += 1
        point = current[depth]
        if point >= first[depth + 1]:
            current[depth] = first[depth] - 1
            depth -= 1
            continue
        fits = True
        for m in range(rows):
            used[depth + 1, m] = used[depth, m] + memory[point, m]
            peak[depth + 1, m] = max(peak[depth, m], transient[point, m])
            highest = max(peak[depth + 1, m], least_transient[depth + 1, m])
            if used[depth + 1, m] + least_memory[depth + 1, m] + highest > room[m]:
                fits = False
                break
        if not fits:
            continue
        if depth == pieces - 1:
            for other in range(begun[depth], count):
                beaten = True
                for t in range(times):
                    if key[out[other, depth], t] > key[point, t]:
                        beaten = False
                        break
                if beaten:
                    fits = False
                    break
            if not fits:
                continue
        for x in range(paths):
            value = taken[depth, x]
            for t in range(times):
                value += coefficients[depth, x, t] * key[point, t]
            taken[depth + 1, x] = value
            if value > budget[x]:
                fits = False
                break
        if not fits:
            continue
        if depth < pieces - 1:
            depth += 1
            begun[depth] = count
            continue
        if count >= len(out):
            return len(out) + 1
        for k in range(pieces):
            out[count, k] = current[k]
        count += 1
    return count


@njit(cache=True)
def priced_least(key: Int64, coefficients: Int64, memory: Int64, price: Int64, scale: int) -> Int64:  # pragma: no cover
    """Least of ``scale * path + price * memory`` over a piece's points.

    Parameters
    ----------
    key : int64 array [points, times]
    coefficients : int64 array [paths, times]
    memory : int64 array [points]
    price : int64 array [paths, prices]

    Returns
    -------
    int64 array [paths, prices]
    """
    points, times = key.shape
    paths, prices = price.shape
    result = np.empty((paths, prices), np.int64)
    for x in range(paths):
        for j in range(prices):
            result[x, j] = np.int64(1) << 62
        for point in range(points):
            value = np.int64(0)
            for t in range(times):
                value += coefficients[x, t] * key[point, t]
            for j in range(prices):
                total = scale * value + price[x, j] * memory[point]
                if total < result[x, j]:
                    result[x, j] = total
    return result
