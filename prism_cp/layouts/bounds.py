"""Lower bounds on the step time of many layouts, in seconds, before any stage problem is built.

All inputs are unrounded costs, which never exceed the rounded integer tables; all bounds hold for every plan of the
layout. Floating-point error is covered by `SLACK`, far above the error of a few thousand additions.

Two steps, cheap first:

`work_bounds`
    knows no memory. With C the time of one micro-batch through all layers (each with its fastest strategy), x the least
    possible largest rank (by an optimal chain partition) and p ranks:
    1F1B with m > p: 2 C + (m - p - 1) x. Proof: let rank i have the largest time c >= x. The path that enters rank i
    first, does its m - w blocks (w = p - 1 - i), and visits all later ranks twice costs C + after + (m - w - 1) c, and
    after >= C - (i + 1) c because every earlier rank costs at most c.
    GPipe: C + (m - 1) x. Always: C and m x.
`possible`
    asks per layout whether some boundaries keep a target, with every rank's least recomputation under its memory as a
    linear relaxation (fractional strategies), the same paths as `prism_cp.partition`, and memory-free later ranks.
"""

from __future__ import annotations

import numpy as np
from numba import njit

SLACK = 1e-9
BRACKETS = 3
GPIPE = 0
ONE_F_ONE_B = 1
OTHER = 2  # any schedule: bounds that hold for all of them


def total_work(
    kind_cost: np.ndarray, first_end: np.ndarray, last_end: np.ndarray, kind_counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Time of one micro-batch through the whole model, and the largest single piece of it, in seconds.

    Parameters
    ----------
    kind_cost : float64[rows, kinds]
    first_end, last_end : float64[rows]
    kind_counts : int64[kinds]
    """
    work = kind_cost @ kind_counts.astype(np.float64) + first_end + last_end
    largest = np.maximum(kind_cost.max(axis=1), np.maximum(first_end, last_end))
    return work, largest


def cell_bounds(
    work: np.ndarray, largest: np.ndarray, ranks: np.ndarray, micro_batches: np.ndarray, any_schedule: bool
) -> np.ndarray:
    """The bounds of `work_bounds` with x = max(C / p, largest piece), for GPipe and 1F1B alike.

    With x >= C / p the 1F1B bound never exceeds the GPipe bound, so it serves both. For any schedule at all the mean
    work of a rank is the bound: mirrored schedules share a stage between two ranks.
    """
    if any_schedule:
        return np.asarray(micro_batches * work / ranks * (1 - SLACK))
    x = np.maximum(work / ranks, largest)
    bound = np.maximum(work, micro_batches * x)
    steady = 2 * work + (micro_batches - ranks - 1) * x
    return np.asarray(np.where(micro_batches > ranks, np.maximum(bound, steady), bound) * (1 - SLACK))


@njit(cache=True)
def _least_bottleneck(prefix, first_end, last_end, ranks):  # type: ignore[no-untyped-def]
    """Least possible largest share when a chain with prefix sums `prefix` is cut into `ranks` runs."""
    length = len(prefix) - 1
    total = prefix[length] + first_end + last_end
    if ranks == 1:
        return total
    largest = 0.0
    for position in range(length):
        largest = max(largest, prefix[position + 1] - prefix[position])
    low = max(total / ranks, largest, first_end, last_end)
    high = total
    for _ in range(40):
        if high - low <= 1e-7 * high:
            break
        middle = 0.5 * (low + high)
        start = 0
        for rank in range(ranks):
            room = middle - (first_end if rank == 0 else 0.0) - (last_end if rank == ranks - 1 else 0.0)
            limit = prefix[start] + room
            a, b = start, length
            while a < b:
                half = (a + b + 1) // 2
                if prefix[half] <= limit:
                    a = half
                else:
                    b = half - 1
            start = a
        if start == length:
            high = middle
        else:
            low = middle
    return low


@njit(cache=True)
def work_bounds(kind_cost, first_end, last_end, prefix_counts, ranks, micro_batches, p2p, schedule):  # type: ignore[no-untyped-def]
    """Memory-free lower bound of every layout, in seconds.

    Parameters
    ----------
    kind_cost : float64[layouts, kinds]
        Least time of one layer and micro-batch over all strategies.
    first_end, last_end, p2p : float64[layouts]
    prefix_counts : int64[kinds, length + 1]
    ranks, micro_batches, schedule : int64[layouts]
        Schedule: `GPIPE`, `ONE_F_ONE_B` or `OTHER`.
    """
    n, kinds = kind_cost.shape
    length = prefix_counts.shape[1] - 1
    bounds = np.zeros(n)
    prefix = np.zeros(length + 1)
    for row in range(n):
        for position in range(length + 1):
            total = 0.0
            for kind in range(kinds):
                total += kind_cost[row, kind] * prefix_counts[kind, position]
            prefix[position] = total
        work = prefix[length] + first_end[row] + last_end[row]
        m, p = micro_batches[row], ranks[row]
        bound = m * work / p
        if schedule[row] == GPIPE or schedule[row] == ONE_F_ONE_B:
            bound = max(bound, work + 2 * (p - 1) * p2p[row])
            x = _least_bottleneck(prefix, first_end[row], last_end[row], p)
            bound = max(bound, m * x)
            if schedule[row] == GPIPE:
                bound = max(bound, work + (m - 1) * x + 2 * (p - 1) * p2p[row])
            elif m > p:
                bound = max(bound, 2 * work + (m - p - 1) * x)
        bounds[row] = bound * (1 - SLACK)
    return bounds


@njit(cache=True)
def convex_hull(activation, cost, out_a, out_c):  # type: ignore[no-untyped-def]
    """Lower convex hull of (activation, cost), from the fastest point to the one with least activation."""
    order = np.zeros(len(activation), np.int64)  # most activation first; by hand, numpy's sorts take long to compile
    for number in range(len(activation)):
        place = number
        while place and activation[order[place - 1]] < activation[number]:
            order[place] = order[place - 1]
            place -= 1
        order[place] = number
    size = 0
    for index in order:
        a, c = activation[index], cost[index]
        while size and (out_c[size - 1] >= c):
            size -= 1
        if size and out_a[size - 1] <= a:
            continue
        while size >= 2:
            before, last = size - 2, size - 1
            if (out_c[last] - out_c[before]) * (out_a[before] - a) >= (c - out_c[before]) * (
                out_a[before] - out_a[last]
            ):
                size -= 1
            else:
                break
        out_a[size], out_c[size] = a, c
        size += 1
    return size


@njit(cache=True)
def relaxed_cost(counts, hull_a, hull_c, size, budget):  # type: ignore[no-untyped-def]
    """Least time of the layers with fractional strategies and total activation at most `budget`; -1: impossible."""
    kinds = len(counts)
    used = 0.0
    time = 0.0
    least = 0.0
    for k in range(kinds):
        if counts[k]:
            used += counts[k] * hull_a[k, 0]
            time += counts[k] * hull_c[k, 0]
            least += counts[k] * hull_a[k, size[k] - 1]
    if least > budget:
        return -1.0
    if used <= budget:
        return time
    at = np.zeros(kinds, np.int64)
    while used > budget:
        best = -1
        best_ratio = 1e300
        for k in range(kinds):
            if counts[k] and at[k] + 1 < size[k]:
                saved = hull_a[k, at[k]] - hull_a[k, at[k] + 1]
                ratio = (hull_c[k, at[k] + 1] - hull_c[k, at[k]]) / saved
                if ratio < best_ratio:
                    best_ratio = ratio
                    best = k
        if best < 0:
            return time
        saved = counts[best] * (hull_a[best, at[best]] - hull_a[best, at[best] + 1])
        share = min(1.0, (used - budget) / saved)
        time += share * counts[best] * (hull_c[best, at[best] + 1] - hull_c[best, at[best]])
        used -= share * saved
        at[best] += 1
        if share < 1.0:
            break
    return time


@njit(cache=True)
def transient_brackets(transient, lows, tops):  # type: ignore[no-untyped-def]
    """Split all transients at their widest gaps into at most ``len(lows)`` brackets; returns their number.

    A plan's largest transient on a rank lies in one bracket: it is at least the bracket's low, and no strategy above
    its top is used. Unused entries of `transient` are negative.
    """
    values = np.zeros(len(transient))
    size = 0
    for value in transient:
        if value < 0:
            continue
        place = size
        while place and values[place - 1] > value:
            values[place] = values[place - 1]
            place -= 1
        values[place] = value
        size += 1
    count = 0
    cuts = np.zeros(len(lows) - 1, np.int64)
    for _ in range(len(lows) - 1):
        best, widest = -1, 0.0
        for i in range(1, size):
            taken = False
            for j in range(count):
                taken |= cuts[j] == i
            if not taken and values[i] - values[i - 1] > widest:
                best, widest = i, values[i] - values[i - 1]
        if best < 0:
            break
        place = count
        while place and cuts[place - 1] > best:
            cuts[place] = cuts[place - 1]
            place -= 1
        cuts[place] = best
        count += 1
    start = 0
    for bracket in range(count + 1):
        stop = cuts[bracket] if bracket < count else size
        lows[bracket], tops[bracket] = values[start], values[stop - 1]
        start = stop
    return count + 1


@njit(cache=True)
def bracket_hulls(transient, activation, cost, lows, tops, hull_a, hull_c, size):  # type: ignore[no-untyped-def]
    """Convex hulls per bracket and kind of the strategies that a bracket allows; returns the number of brackets.

    ``size[bracket, kind]`` is 0 where a kind has no strategy.
    """
    kinds, strategies = cost.shape
    number = transient_brackets(transient.ravel(), lows, tops)
    some_a, some_c = np.zeros(strategies), np.zeros(strategies)
    for bracket in range(number):
        for k in range(kinds):
            n = 0
            for q in range(strategies):
                if 0 <= transient[k, q] <= tops[bracket]:
                    some_a[n], some_c[n] = activation[k, q], cost[k, q]
                    n += 1
            size[bracket, k] = convex_hull(some_a[:n], some_c[:n], hull_a[bracket, k], hull_c[bracket, k]) if n else 0
    return number


@njit(cache=True)
def least_cost(counts, number, lows, hull_a, hull_c, size, room, floor, live, end_activation):  # type: ignore[no-untyped-def]
    """Least relaxed time over the brackets; -1: impossible.

    `room` is the memory for activations and transients, `floor` the transient that is needed anyway.
    """
    layers = 0.0
    for k in range(len(counts)):
        layers += counts[k]
    if layers == 0:
        return 0.0 if room >= floor and (room - floor) / live >= end_activation else -1.0
    best = -1.0
    for bracket in range(number):
        missing = False
        for k in range(len(counts)):
            missing |= counts[k] > 0 and size[bracket, k] == 0
        left = room - max(lows[bracket], floor)
        if missing or left < 0:
            continue
        cost = relaxed_cost(counts, hull_a[bracket], hull_c[bracket], size[bracket], left / live - end_activation)
        if cost >= 0 and (best < 0 or cost < best):
            best = cost
    return best


@njit(cache=True)
def possible(  # type: ignore[no-untyped-def]
    targets, prefix_counts, cost, forward, activation, transient, static, step, buffers_kind, ends, ranks_table, shape
):
    """Whether a plan within the target cannot be excluded, per layout.

    Parameters
    ----------
    targets : float64[layouts]
        Pipeline time in seconds; infinity asks for memory alone.
    prefix_counts : int64[kinds, length + 1]
    cost, activation : float64[layouts, kinds, strategies]
        f + b + w in seconds; bytes per live micro-batch.
    transient : float64[layouts, kinds, strategies]
        Bytes while a layer's backward runs; negative where a kind has fewer strategies.
    forward, static, step, buffers_kind : float64[layouts, kinds]
        Least forward time; state bytes; bytes of the optimizer step; bytes paid once per rank with that kind.
    ends : float64[layouts, 2, 4]
        For the first and the last rank: time, activation, transient, static with buffers.
    ranks_table : float64[layouts, 4]
        Capacity, fixed bytes, least time before the first forward plus after the last backward, p2p.
    shape : int64[layouts, 4]
        Schedule, pp, micro-batches, least layers of a middle rank.
    """
    n, kinds, strategies = cost.shape
    length = prefix_counts.shape[1] - 1
    answer = np.zeros(n, np.bool_)
    hull_a = np.zeros((BRACKETS, kinds, strategies))
    hull_c = np.zeros((BRACKETS, kinds, strategies))
    size = np.zeros((BRACKETS, kinds), np.int64)
    lows, tops = np.zeros(BRACKETS), np.zeros(BRACKETS)
    base = np.zeros(length + 1)
    counts = np.zeros(kinds)
    for row in range(n):
        number = bracket_hulls(transient[row], activation[row], cost[row], lows, tops, hull_a, hull_c, size)
        for x in range(length + 1):
            base[x] = 0.0
            for k in range(kinds):
                base[x] += prefix_counts[k, x] * hull_c[number - 1, k, 0]
        schedule, p, m, least_layers = shape[row]
        if schedule == OTHER:
            answer[row] = True
            continue
        target = targets[row] * (1 + SLACK) + SLACK - ranks_table[row, 2]
        lat = ranks_table[row, 3]
        total = base[length] + ends[row, 1, 0]
        before = np.full(length + 1, 1e300)
        before[0] = 0.0
        for i in range(p):
            following = np.full(length + 1, 1e300)
            live = m if schedule == GPIPE else min(m, p - i)
            w = min(m, p - 1 - i)
            first, last = i == 0, i == p - 1
            end_time = end_activation = end_static = end_transient = 0.0
            if first:
                end_time += ends[row, 0, 0]
                end_activation += ends[row, 0, 1]
                end_transient = max(end_transient, ends[row, 0, 2])
                end_static += ends[row, 0, 3]
            if last:
                end_time += ends[row, 1, 0]
                end_activation += ends[row, 1, 1]
                end_transient = max(end_transient, ends[row, 1, 2])
                end_static += ends[row, 1, 3]
            for start in range(length + 1):
                if before[start] >= 1e300:
                    continue
                lowest = start if first or last else start + least_layers
                for stop in range(length if last else lowest, length + 1):
                    held = ranks_table[row, 1] + end_static
                    stepping = 0.0
                    for k in range(kinds):
                        counts[k] = prefix_counts[k, stop] - prefix_counts[k, start]
                        if counts[k]:
                            held += counts[k] * static[row, k] + buffers_kind[row, k]
                            stepping += counts[k] * step[row, k]
                    if held + stepping > ranks_table[row, 0]:
                        break
                    c = least_cost(
                        counts, number, lows, hull_a, hull_c, size, ranks_table[row, 0] - held, end_transient, live,
                        end_activation,
                    )  # fmt: skip
                    if c < 0:
                        break
                    c += end_time
                    if m * c > target:
                        break
                    after = 0.0 if last else total - base[stop]
                    pre = before[start]
                    if schedule == GPIPE:
                        if pre + m * c + after + 2 * (p - 1) * lat > target:
                            continue
                    else:
                        if pre + m * c + 2 * i * lat > target:
                            continue
                        if m - w >= 2 and pre + (m - w) * c + 2 * after > target:
                            continue
                        # the steady phase between this rank and the later ones, see the partition room
                        if m > w and pre + after + (m - w) * c > target:
                            continue
                    if pre + c < following[stop]:
                        following[stop] = pre + c
            before = following
        answer[row] = before[length] < 1e300
    return answer
