"""Pareto fronts (activation memory, time) of n layers of one kind over all multisets of strategies.

A front that grows past `MAX_POINTS` is thinned optimistically: a group of neighbouring points is replaced by its least
activation with its least time, so everything computed from fronts stays a lower bound; such points have no parent and
cannot be turned back into strategy counts.
"""

from __future__ import annotations

import numpy as np
from numba import njit

MAX_POINTS = 384


@njit(cache=True)  # type: ignore[untyped-decorator]
def _pareto_prefix(activation, cost, parent, strategy, size, out_a, out_c, out_p, out_s):  # type: ignore[no-untyped-def]
    """Sort candidates and keep the Pareto points; thin to the capacity of the output. Returns the number kept."""
    order = np.argsort(activation[:size], kind="mergesort")
    kept_a = np.empty(size, np.int64)
    kept_c = np.empty(size, np.int64)
    kept_i = np.empty(size, np.int64)
    count = 0
    for position in range(size):
        index = order[position]
        if count and kept_c[count - 1] <= cost[index]:
            continue
        if count and kept_a[count - 1] == activation[index]:
            count -= 1
        kept_a[count] = activation[index]
        kept_c[count] = cost[index]
        kept_i[count] = index
        count += 1
    capacity = len(out_a)
    if count <= capacity:
        for position in range(count):
            index = kept_i[position]
            out_a[position] = kept_a[position]
            out_c[position] = kept_c[position]
            out_p[position] = parent[index]
            out_s[position] = strategy[index]
        return count
    for group in range(capacity):
        first = group * count // capacity
        last = (group + 1) * count // capacity - 1
        out_a[group] = kept_a[first]
        out_c[group] = kept_c[last]
        index = kept_i[first]
        out_p[group] = parent[index] if first == last else -1
        out_s[group] = strategy[index] if first == last else -1
    return capacity


@njit(cache=True)  # type: ignore[untyped-decorator]
def build_fronts(activation, cost, allowed, max_layers):  # type: ignore[no-untyped-def]
    """Fronts of 0..max_layers layers of every kind.

    Parameters
    ----------
    activation, cost : int64[kinds, strategies]
    allowed : bool[kinds, strategies]
    max_layers : int64[kinds]

    Returns
    -------
    points_a, points_c, parent, strategy : int64[kinds, max + 1, MAX_POINTS]
    length : int64[kinds, max + 1]; 0 where no strategy is allowed
    """
    kinds, strategies = activation.shape
    deepest = 0
    for kind in range(kinds):
        deepest = max(deepest, max_layers[kind])
    points_a = np.zeros((kinds, deepest + 1, MAX_POINTS), np.int64)
    points_c = np.zeros((kinds, deepest + 1, MAX_POINTS), np.int64)
    parent = np.full((kinds, deepest + 1, MAX_POINTS), -1, np.int64)
    chosen = np.full((kinds, deepest + 1, MAX_POINTS), -1, np.int64)
    length = np.zeros((kinds, deepest + 1), np.int64)
    room = MAX_POINTS * strategies
    cand_a, cand_c = np.empty(room, np.int64), np.empty(room, np.int64)
    cand_p, cand_s = np.empty(room, np.int64), np.empty(room, np.int64)
    for kind in range(kinds):
        length[kind, 0] = 1
        for n in range(1, max_layers[kind] + 1):
            size = 0
            for point in range(length[kind, n - 1]):
                for q in range(strategies):
                    if allowed[kind, q]:
                        cand_a[size] = points_a[kind, n - 1, point] + activation[kind, q]
                        cand_c[size] = points_c[kind, n - 1, point] + cost[kind, q]
                        cand_p[size] = point
                        cand_s[size] = q
                        size += 1
            if size:
                length[kind, n] = _pareto_prefix(
                    cand_a, cand_c, cand_p, cand_s, size,
                    points_a[kind, n], points_c[kind, n], parent[kind, n], chosen[kind, n],
                )  # fmt: skip
    return points_a, points_c, parent, chosen, length


@njit(cache=True)  # type: ignore[untyped-decorator]
def _best_single(points_a, points_c, count, budget):  # type: ignore[no-untyped-def]
    """Index of the cheapest point within the budget, or -1."""
    low, high = 0, count
    while low < high:
        middle = (low + high) // 2
        if points_a[middle] <= budget:
            low = middle + 1
        else:
            high = middle
    return low - 1


@njit(cache=True)  # type: ignore[untyped-decorator]
def cheapest(points_a, points_c, length, counts, budget, pick):  # type: ignore[no-untyped-def]
    """Least time of `counts[kind]` layers of every kind with activation at most `budget`; -1 when nothing fits.

    `pick[kind]` receives the front point used. With more than two kinds, the kinds beyond the two with the longest
    fronts are enumerated; if that is too much, they contribute their least activation and least time separately
    (a lower bound; `pick` is then -1 for them).
    """
    kinds = len(counts)
    first = second = -1
    least = 0
    for kind in range(kinds):
        pick[kind] = 0
        if counts[kind] == 0:
            continue
        size = length[kind, counts[kind]]
        if size == 0:
            return -1
        least += points_a[kind, counts[kind], 0]
        if first < 0 or size > length[first, counts[first]]:
            second = first
            first = kind
        elif second < 0 or size > length[second, counts[second]]:
            second = kind
    if least > budget:
        return -1
    if first < 0:
        return 0
    others = np.empty(kinds, np.int64)
    num_others = 0
    combinations = 1
    for kind in range(kinds):
        if counts[kind] and kind != first and kind != second:
            others[num_others] = kind
            num_others += 1
            combinations *= length[kind, counts[kind]]
            combinations = min(combinations, 1 << 40)
    relaxed = combinations > 2048
    at = np.zeros(max(num_others, 1), np.int64)
    best = -1
    while True:
        used = time = 0
        for position in range(num_others):
            kind = others[position]
            n = counts[kind]
            if relaxed:
                used += points_a[kind, n, 0]
                time += points_c[kind, n, length[kind, n] - 1]
            else:
                used += points_a[kind, n, at[position]]
                time += points_c[kind, n, at[position]]
        left = budget - used
        if left >= 0:
            n1 = counts[first]
            if second < 0:
                index = _best_single(points_a[first, n1], points_c[first, n1], length[first, n1], left)
                if index >= 0 and (best < 0 or time + points_c[first, n1, index] < best):
                    best = time + points_c[first, n1, index]
                    pick[first] = index
                    for position in range(num_others):
                        pick[others[position]] = -1 if relaxed else at[position]
            else:
                n2 = counts[second]
                j = length[second, n2] - 1
                for i in range(length[first, n1]):
                    rest = left - points_a[first, n1, i]
                    if rest < 0:
                        break
                    while j >= 0 and points_a[second, n2, j] > rest:
                        j -= 1
                    if j < 0:
                        break
                    total = time + points_c[first, n1, i] + points_c[second, n2, j]
                    if best < 0 or total < best:
                        best = total
                        pick[first] = i
                        pick[second] = j
                        for position in range(num_others):
                            pick[others[position]] = -1 if relaxed else at[position]
        if relaxed or num_others == 0:
            return best
        position = 0
        while position < num_others:
            at[position] += 1
            if at[position] < length[others[position], counts[others[position]]]:
                break
            at[position] = 0
            position += 1
        if position == num_others:
            return best
