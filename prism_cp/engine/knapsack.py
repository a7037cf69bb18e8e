"""Engine room: the least weighted time of one item over whole strategies, all memory rows together.

A depth-first search over the pieces' points in the order of their reduced costs, with prices on the memory rows from a
short ascent on the dual. It ends within `TOLERANCE` of the least value; where that takes too many nodes, the dual's
value is all that is claimed. Floating point only decides what is looked at, with a margin far above its errors.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

TOLERANCE = 3e-4  # of what an item's strategies cost beyond the fastest ones
ASCENT_STEPS = 40
MOST_NODES = 4_000  # per item
IMPOSSIBLE_COST = 1 << 52  # nothing fits


@dataclass(frozen=True)
class ItemPoints:
    """Points of all compositions of a group's pieces, each of which has one stage and one table.

    Attributes
    ----------
    activation, transient, slower : int64 arrays [points]
        The last one: input-gradient time beyond the composition's fastest point.
    span : int64 array [pieces, compositions, 2]
        First point of a composition, and one after its last.
    live : int64 array [rows, pieces]
    alive : bool array [rows, pieces]
        Live or with deferred weight gradients.
    ends : int64 array [rows]
        Largest transient of the live stages' ends.
    """

    activation: Int64
    transient: Int64
    slower: Int64
    span: Int64
    live: Int64
    alive: NDArray[np.bool_]
    ends: Int64

    def least_costs(self, choice: Int64, budget: Int64, weights: Int64, most_nodes: int = MOST_NODES) -> Int64:
        """Lower bounds [items] of the least weighted time beyond the fastest points.

        Parameters
        ----------
        choice : int64 array [items, pieces]
        budget : int64 array [items, rows]
            Memory left for activations and the largest transient.
        weights : int64 array [pieces]
            Of the input-gradient times, not negative.
        """
        out = np.zeros(len(choice), np.int64)
        _least_costs(
            self.activation, self.transient, self.slower, self.span, self.live, self.alive, self.ends, choice, budget,
            weights, most_nodes, out,
        )  # fmt: skip
        return out


@njit(cache=True)
def _first_picks(activation, transient, slower, first, count, live, alive, ends, budget, weights, at):  # type: ignore[no-untyped-def]
    """Picks that fit, by greed from the fastest points on; their cost, or -1."""
    pieces, rows = len(first), len(budget)
    at[:] = 0
    while True:
        worst, over = -1, np.int64(0)
        for row in range(rows):
            used, largest = np.int64(0), ends[row]
            for k in range(pieces):
                point = first[k] + at[k]
                used += live[row, k] * activation[point]
                if alive[row, k]:
                    largest = max(largest, transient[point])
            if used + largest - budget[row] > over:
                worst, over = row, used + largest - budget[row]
        if worst < 0:
            cost = np.int64(0)
            for k in range(pieces):
                cost += weights[k] * slower[first[k] + at[k]]
            return cost
        best, best_k, best_i = 0.0, -1, -1
        for k in range(pieces):
            now = first[k] + at[k]
            for i in range(at[k] + 1, count[k]):
                saved = live[worst, k] * (activation[now] - activation[first[k] + i])
                if saved > 0:
                    value = min(saved, over) / (1.0 + max(0, weights[k] * (slower[first[k] + i] - slower[now])))
                    if value > best:
                        best, best_k, best_i = value, k, i
        if best_k < 0:
            return np.int64(-1)
        at[best_k] = best_i


@njit(cache=True)
def _ascend(activation, slower, first, count, live, room, weights, upper, prices):  # type: ignore[no-untyped-def]
    """Prices on the rows whose dual value is large; returns it."""
    pieces, rows = len(first), len(room)
    now, gradient = np.zeros(rows), np.zeros(rows)
    picked = np.zeros(pieces, np.int64)
    best, step = -1e300, 1.0
    for _ in range(ASCENT_STEPS):
        value = 0.0
        for row in range(rows):
            value -= now[row] * room[row]
        for k in range(pieces):
            price = 0.0
            for row in range(rows):
                price += now[row] * live[row, k]
            least = 1e300
            for point in range(first[k], first[k] + count[k]):
                cost = weights[k] * slower[point] + price * activation[point]
                if cost < least:
                    least, picked[k] = cost, point
            value += least
        if value > best:
            best = value
            prices[:] = now
        else:
            step *= 0.7
        length = 0.0
        for row in range(rows):
            over = -room[row]
            for k in range(pieces):
                over += live[row, k] * activation[picked[k]]
            gradient[row] = over
            if now[row] > 0 or over > 0:
                length += over * over
        if length == 0.0 or value >= upper:
            break
        for row in range(rows):
            now[row] = max(0.0, now[row] + step * (upper - value) / length * gradient[row])
    return best


@njit(cache=True)
def _least_costs(  # type: ignore[no-untyped-def]
    activation, transient, slower, span, live, alive, ends, choice, budgets, weights, most_nodes, out
):
    items, pieces = choice.shape
    rows = live.shape[0]
    at = np.zeros(pieces, np.int64)
    first, count = np.zeros(pieces, np.int64), np.zeros(pieces, np.int64)
    room, prices = np.zeros(rows), np.zeros(rows)
    widest = 0
    for k in range(pieces):
        for c in range(span.shape[1]):
            widest = max(widest, span[k, c, 1] - span[k, c, 0])
    reduced, order = np.zeros((pieces, widest)), np.zeros((pieces, widest), np.int64)
    suffix, partial = np.zeros(pieces + 1), np.zeros(pieces + 1)
    cost = np.zeros(pieces + 1, np.int64)
    used, largest = np.zeros((pieces + 1, rows), np.int64), np.zeros((pieces + 1, rows), np.int64)
    least_used = np.zeros((pieces + 1, rows), np.int64)
    for item in range(items):
        budget = budgets[item]
        hopeless = False
        for k in range(pieces):
            first[k] = span[k, choice[item, k], 0]
            count[k] = span[k, choice[item, k], 1] - first[k]
            hopeless |= count[k] == 0
        if hopeless:
            continue
        for row in range(rows):
            tall, small = ends[row], np.int64(0)
            for k in range(pieces):
                shortest, least = np.int64(1) << 60, np.int64(1) << 60
                for point in range(first[k], first[k] + count[k]):
                    shortest = min(shortest, transient[point])
                    least = min(least, activation[point])
                if alive[row, k]:
                    tall = max(tall, shortest)
                small += live[row, k] * least
            room[row] = budget[row] - tall
            hopeless |= small + tall > budget[row]
        if hopeless:
            out[item] = IMPOSSIBLE_COST
            continue
        best = _first_picks(activation, transient, slower, first, count, live, alive, ends, budget, weights, at)
        if best == 0:
            continue
        found = best > 0
        upper = float(best)
        if not found:
            upper = 1.0
            for k in range(pieces):
                dearest = np.int64(0)
                for point in range(first[k], first[k] + count[k]):
                    dearest = max(dearest, slower[point])
                upper += float(weights[k]) * float(dearest)
            best = np.int64(upper) + 1
        dual = _ascend(activation, slower, first, count, live, room, weights, upper, prices)
        size = 0.0
        for row in range(rows):
            size += prices[row] * abs(room[row])
        margin = 1e-9 * (size + upper) + 1e-3
        for k in range(pieces):
            price = 0.0
            for row in range(rows):
                price += prices[row] * live[row, k]
            for i in range(count[k]):
                reduced[k, i] = weights[k] * slower[first[k] + i] + price * activation[first[k] + i]
            order[k, : count[k]] = np.argsort(reduced[k, : count[k]])
        suffix[pieces] = 0.0
        for k in range(pieces - 1, -1, -1):
            suffix[k] = suffix[k + 1] + reduced[k, order[k, 0]]
            least = np.int64(1) << 60
            for point in range(first[k], first[k] + count[k]):
                least = min(least, activation[point])
            for row in range(rows):
                least_used[k, row] = least_used[k + 1, row] + live[row, k] * least
        partial[0] = 0.0
        for row in range(rows):
            partial[0] -= prices[row] * room[row]
            largest[0, row] = ends[row]
            used[0, row] = 0
        nodes, depth = 0, 0
        at[0] = -1
        cut = float(best) * (1.0 - TOLERANCE) if found else 1e300
        while depth >= 0 and nodes <= most_nodes:
            at[depth] += 1
            if at[depth] >= count[depth]:
                depth -= 1
                continue
            i = order[depth, at[depth]]
            bound = partial[depth] + reduced[depth, i] + suffix[depth + 1]
            if bound - margin >= cut:
                depth -= 1
                continue
            nodes += 1
            point = first[depth] + i
            fits = True
            for row in range(rows):
                used[depth + 1, row] = used[depth, row] + live[row, depth] * activation[point]
                tall = largest[depth, row]
                if alive[row, depth]:
                    tall = max(tall, transient[point])
                largest[depth + 1, row] = tall
                if used[depth + 1, row] + least_used[depth + 1, row] + tall > budget[row]:
                    fits = False
                    break
            if not fits:
                continue
            cost[depth + 1] = cost[depth] + weights[depth] * slower[point]
            partial[depth + 1] = partial[depth] + reduced[depth, i]
            if depth == pieces - 1:
                if cost[pieces] < best or not found:
                    found = True
                    best = min(best, cost[pieces])
                    cut = float(best) * (1.0 - TOLERANCE)
                continue
            depth += 1
            at[depth] = -1
        if depth < 0:
            out[item] = np.int64(np.floor(cut)) - 1 if found else IMPOSSIBLE_COST
        else:
            out[item] = np.int64(np.floor(dual - margin))
        out[item] = max(np.int64(0), out[item])
