"""A dual of the relaxation, and what it proves about any layout of its class.

With weights y >= 0 on paths (sum one) and prices z >= 0 on the memory rows of every bracket, every plan satisfies

    T >= sum of y · (path) + sum over groups of the sum of z · (memory held - room) in the group's own bracket,

because the time is the longest path and no row holds more than the room. Whatever the brackets, the right side is at
least what every layer costs on its cheapest piece and bracket with its cheapest strategy, less the dearest room of
every group. Without the weights a positive right side proves that nothing fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from prism_cp.relaxation.classes import LayoutClass
from prism_cp.relaxation.costs import RelaxationCosts

Float64 = NDArray[np.float64]

SCALES = np.array([0.0, 0.25, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 4.0, 8.0])  # tried factors on the memory prices
CLOSE = 1e-9  # share of the sum of all terms' sizes that rounding errors may make up


@dataclass(frozen=True, eq=False)
class Dual:
    """Weights on paths and prices on memory rows, summed up.

    Attributes
    ----------
    times : float64 array [pieces, 4]
        Prices of one forward, input gradient, weight gradient and head (second per second).
    held : float64 array [pieces, brackets, 5]
        Prices of activation, transient share, state, deferred (second per byte), and what a layer saves because the
        piece may not be empty (seconds).
    rooms : float64 array [groups, brackets, 6]
        Second per byte of room, of what a rank with some layer holds besides, of the larger of the loss's transient and
        the bracket's low, of the bracket's low, of the loss's transient; seconds for the first layers of all pieces
        that may not be empty.
    weight, transfers : float
        Sum of the weights on paths: one, or zero for a proof that nothing fits; transfers on them.
    first, last : int
        Groups of the first and the last piece.
    always : bool array [pieces]
        As in `LayoutClass`.
    """

    times: Float64
    held: Float64
    rooms: Float64
    weight: float
    transfers: float
    first: int
    last: int
    always: NDArray[np.bool_]


def make_dual(layout_class: LayoutClass, weights: Float64, memory: Float64, occupancy: Float64) -> Dual:
    """Sum up a dual solution; negative entries, which only rounding makes, are dropped.

    Parameters
    ----------
    weights : float64 array [paths]
        Empty where the dual proves that nothing fits.
    memory : float64 array [rows, brackets]
    occupancy : float64 array [pieces, brackets]
        Seconds for the first layer of a piece that may not be empty.
    """
    weights, memory, occupancy = (np.maximum(values, 0.0) for values in (weights, memory, occupancy))
    total = float(weights.sum())
    if total > 0:
        weights, memory, occupancy = weights / total, memory / total, occupancy / total
    brackets = memory.shape[1]
    held = np.zeros((layout_class.num_pieces, brackets, 5))
    held[:, :, :4] = np.tensordot(layout_class.memory, memory, (0, 0)).transpose(0, 2, 1)
    held[:, :, 4] = occupancy
    rooms = np.zeros((int(layout_class.group_of_row.max()) + 1, brackets, 6))
    occupied, loss = layout_class.occupied[:, None], layout_class.loss[:, None]
    layered = np.repeat(layout_class.filled[:, None], brackets, axis=1)
    layered[:, 1:] = 1.0  # only the lowest bracket allows that no layer is alive
    factors = (1.0, occupied, loss * layered, (1 - loss) * layered, loss * (1 - layered))
    for place, factor in enumerate(factors):
        np.add.at(rooms[:, :, place], layout_class.group_of_row, memory * factor)
    np.add.at(rooms[:, :, 5], layout_class.group_of_piece, occupancy)
    times, transfers = np.zeros((layout_class.num_pieces, 4)), 0.0
    if total > 0:
        times, transfers = np.tensordot(weights, layout_class.paths, 1), float(weights @ layout_class.transfers)
    return Dual(
        times, held, rooms, float(total > 0), transfers, int(layout_class.group_of_piece[0]),
        int(layout_class.group_of_piece[-1]), layout_class.always,
    )  # fmt: skip


@njit(cache=True)
def _end_time(prices, end):  # type: ignore[no-untyped-def]
    """Time of an end on a piece."""
    return prices[0] * end[0] + prices[1] * end[1] + prices[2] * end[2] + prices[3] * end[3]


@njit(cache=True)
def _end_held(prices, end):  # type: ignore[no-untyped-def]
    """Memory of an end on a piece, in one bracket."""
    return prices[0] * end[4] + prices[2] * end[5] + prices[3] * end[6]


@njit(cache=True)
def _least_price(times, held, always, strategies, bracket, lows, most, kind, scale):  # type: ignore[no-untyped-def]
    """Price of a layer on its cheapest piece and bracket with its cheapest strategy."""
    least = 1e300
    for piece in range(len(times)):
        t = times[piece]
        for b in range(held.shape[1]):
            if lows[b] == np.inf:
                continue
            h = held[piece, b]
            whatever = t[3] * kind[2] + scale * (h[2] * kind[0] + h[3] * kind[1]) - h[4]
            if whatever >= least:
                continue
            for q in range(len(strategies)):
                if bracket[q] > b and always[piece]:
                    continue
                s = strategies[q]
                share = max(0.0, s[4] - lows[b]) / most
                price = whatever + t[0] * s[0] + t[1] * s[1] + t[2] * s[2] + scale * (h[0] * s[3] + h[1] * share)
                least = min(least, price)
    return least


@njit(cache=True)
def _bounds(times, held, always, first, last, rooms, weight, transfers, groups, scales, strategies, bracket, lows, most, kinds, ends, layouts, layers):  # type: ignore[no-untyped-def]  # fmt: skip  # noqa: E501
    """Best bound over the scales, per layout; infinity where a scale proves that nothing fits.

    `times`, `held`, `always` of all different pieces, `first` and `last` (times, held) of the first and the last one.
    """
    result = np.full(len(layouts), -1e300)
    for row in range(len(layouts)):
        own, embedding, head = layouts[row], ends[row, 0], ends[row, 1]
        for scale in scales:
            bound = weight * own[0] + transfers * own[1] + _end_time(first[0], embedding) + _end_time(last[0], head)
            size = bound
            for k in range(len(layers)):
                if layers[k]:
                    price = layers[k] * _least_price(
                        times, held, always, strategies[row, k], bracket[row, k], lows[row], most[row], kinds[row, k],
                        scale,
                    )  # fmt: skip
                    bound += price
                    size += abs(price)
            for g in range(len(rooms)):
                dearest, largest = -1e300, 0.0
                for b in range(rooms.shape[1]):
                    low = lows[row, b]
                    if low == np.inf:
                        continue
                    r = rooms[g, b]
                    taken = r[1] * own[3] + r[2] * max(own[4], low) + r[3] * low + r[4] * own[4]
                    if g == groups[0]:
                        taken += _end_held(first[1][b], embedding)
                    if g == groups[1]:
                        taken += _end_held(last[1][b], head)
                    dearest = max(dearest, scale * (r[0] * own[2] - taken) - r[5])
                    largest = max(largest, scale * (abs(r[0] * own[2]) + taken) + r[5])
                bound -= dearest
                size += largest
            bound -= CLOSE * size
            if weight == 0.0:
                if bound > 0:
                    result[row] = np.inf
            else:
                result[row] = max(result[row], bound)
    return result


def dual_bounds(dual: Dual, costs: RelaxationCosts, scales: Float64 = SCALES) -> Float64:
    """Lower bound in seconds for every layout, the best over `scales` times the dual's memory prices.

    Returns
    -------
    float64 array [layouts]
        Infinity where nothing fits; very negative where a proof that nothing fits fails.
    """
    pieces = len(dual.times)
    parts = (dual.times, dual.held.reshape(pieces, -1), dual.always[:, None])
    flat = np.unique(np.concatenate(parts, axis=1), axis=0)
    times, always = np.ascontiguousarray(flat[:, :4]), flat[:, -1] == 1.0
    held = np.ascontiguousarray(flat[:, 4:-1].reshape(-1, *dual.held.shape[1:]))
    found: Float64 = _bounds(
        times, held, always, (dual.times[0], dual.held[0]), (dual.times[-1], dual.held[-1]), dual.rooms, dual.weight,
        dual.transfers, (dual.first, dual.last), scales if dual.weight else np.ones(1), costs.strategies, costs.bracket,
        costs.lows, costs.most, costs.kinds, costs.ends, costs.layouts, costs.layers,
    )  # fmt: skip
    return found
