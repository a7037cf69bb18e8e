"""Engine room: the compiled loops behind the tables: worth of items and points, and sums over groups."""

from __future__ import annotations

import numpy as np
from numba import njit


@njit(cache=True)
def tail_kernel(p, r, weight, credit, most_hidden, reduce, rank_of, bucket, times, x):  # type: ignore[no-untyped-def]
    """Least tail of rank r along cut x: hidden time counts as credit only where the path pays for what it saves."""
    hidden = np.int64(0)
    for s in range(len(rank_of)):
        if rank_of[s] == r:
            hidden += credit[p, s] if times[x, s, 1] >= weight else most_hidden[s]
    return weight * max(bucket[r], reduce[r] - hidden)


@njit(cache=True)
def worth_kernel(  # type: ignore[no-untyped-def]
    first, last, base, extra, credit, most_hidden, head, reduce, rank_of, bucket, times, heads, tails, varies, out
):
    rows, stages = times.shape[0], times.shape[1]
    ranks = len(bucket)
    for x in range(rows):
        with_tail = False
        for r in range(ranks):
            with_tail |= tails[x, r] > 0
        for i in range(len(base)):
            value = np.int64(0)
            for s in range(stages):
                for c in range(3):
                    value += times[x, s, c] * base[i, s, c]
            for r in range(ranks):
                value += heads[x, r] * head[i, r]
            best = np.int64(1) << 60
            for p in range(first[i], last[i]):
                more = np.int64(0)
                for v in varies:
                    more += times[x, v // 3, v % 3] * extra[p, v // 3, v % 3]
                if with_tail:
                    for r in range(ranks):
                        if tails[x, r] > 0:
                            more += tail_kernel(
                                p, r, tails[x, r], credit, most_hidden[i], reduce[i], rank_of, bucket, times, x
                            )
                best = min(best, more)
            out[i, x] = value + best


@njit(cache=True)
def points_kernel(  # type: ignore[no-untyped-def]
    base, extra, credit, most_hidden, head, reduce, rank_of, bucket, times, heads, tails, out
):
    for x in range(times.shape[0]):
        for p in range(len(extra)):
            value = np.int64(0)
            for s in range(times.shape[1]):
                for c in range(3):
                    value += times[x, s, c] * (base[s, c] + extra[p, s, c])
            for r in range(len(bucket)):
                value += heads[x, r] * head[r]
                if tails[x, r] > 0:
                    value += tail_kernel(p, r, tails[x, r], credit, most_hidden, reduce, rank_of, bucket, times, x)
            out[p, x] = value


@njit(cache=True)
def least_kernel(delta_item, worth, least, first, stop):  # type: ignore[no-untyped-def]
    least[:, first:stop] = np.int64(1) << 60
    for delta in range(len(least)):
        for i in range(delta_item[delta], delta_item[delta + 1]):
            for x in range(first, stop):
                least[delta, x] = min(least[delta, x], worth[i, x])


@njit(cache=True)
def after_kernel(down, least, following, after, first, stop):  # type: ignore[no-untyped-def]
    impossible = np.int64(1) << 60
    after[:, first:stop] = impossible
    for delta in range(down.shape[0]):
        for state in range(down.shape[1]):
            rest = down[delta, state]
            if rest < 0 or following[rest, first] >= impossible:
                continue
            for x in range(first, stop):
                after[state, x] = min(after[state, x], least[delta, x] + following[rest, x])


@njit(cache=True)
def before_kernel(down, least, previous, before, columns):  # type: ignore[no-untyped-def]
    impossible = np.int64(1) << 60
    for delta in range(down.shape[0]):
        for state in range(down.shape[1]):
            rest = down[delta, state]
            if rest < 0 or previous[state, 0] >= impossible:
                continue
            for x in range(columns):
                before[rest, x] = min(before[rest, x], least[delta, x] + previous[state, x])


@njit(cache=True)
def useful_kernel(item_delta, down, worth, before, after, limits, columns, mask):  # type: ignore[no-untyped-def]
    impossible = np.int64(1) << 60
    for i in range(len(item_delta)):
        killer = 0  # the cut that told last is tried first
        for state in range(down.shape[1]):
            rest = down[item_delta[i], state]
            if rest < 0 or before[state, 0] >= impossible or after[rest, 0] >= impossible:
                continue
            if before[state, killer] + worth[i, killer] + after[rest, killer] > limits[killer]:
                continue
            fits = True
            for x in range(columns):
                if before[state, x] + worth[i, x] + after[rest, x] > limits[x]:
                    fits = False
                    killer = x
                    break
            if fits:
                mask[i] = True
                break
