"""A dual of the relaxation, and what it proves about any layout of its class.

With weights y >= 0 on paths (sum one) and prices z >= 0 on memory rows, every plan satisfies

    T >= sum of y · (path) + sum of z · (memory held - room),

because the time is the longest path and no row holds more than the room. The right side is a sum over layers, so it is
at least what every layer costs on its cheapest piece with its cheapest strategy. Without the weights a positive right
side proves that nothing fits.
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
    """Weights on paths and prices on memory rows, summed up by piece.

    Attributes
    ----------
    pieces : float64 array [pieces, 8]
        Prices of one forward, input gradient, weight gradient, head (second per second), activation, transient share,
        state (second per byte), and what a layer saves because the piece may not be empty (seconds).
    layout : float64 array [5]
        Factors of the layout's own numbers, see `RelaxationCosts.layouts`.
    weight : float
        Sum of the weights on paths: one, or zero for a proof that nothing fits.
    occupancy : float
        Seconds for the first layers of all pieces that may not be empty.
    """

    pieces: Float64
    layout: Float64
    weight: float
    occupancy: float


def make_dual(layout_class: LayoutClass, weights: Float64, memory: Float64, occupancy: Float64) -> Dual:
    """Sum up a dual solution; negative entries, which only rounding makes, are dropped.

    Parameters
    ----------
    weights : float64 array [paths]
    memory : float64 array [rows]
    occupancy : float64 array [pieces]
        Seconds for the first layer of a piece that may not be empty.
    """
    weights, memory, occupancy = (np.maximum(values, 0.0) for values in (weights, memory, occupancy))
    total = float(weights.sum())
    if total > 0:
        weights, memory, occupancy = weights / total, memory / total, occupancy / total
    times = np.tensordot(weights, layout_class.paths[: len(weights)], 1)
    bytes_held = np.tensordot(memory, layout_class.memory, 1)
    weight = float(total > 0)
    transfers = weights @ layout_class.transfers[: len(weights)]
    layout = [weight, transfers, -memory.sum(), memory @ layout_class.occupied, memory @ layout_class.loss]
    pieces = np.ascontiguousarray(np.concatenate((times, bytes_held, occupancy[:, None]), axis=1))
    return Dual(pieces, np.array(layout), weight, float(occupancy.sum()))


@njit(cache=True)
def _end_price(prices, end, scale):  # type: ignore[no-untyped-def]
    """Price of an end on a piece."""
    time = prices[0] * end[0] + prices[1] * end[1] + prices[2] * end[2] + prices[3] * end[5]
    return time + scale * (prices[4] * end[3] + prices[6] * end[4])


@njit(cache=True)
def _least_price(pieces, strategies, kind, scale):  # type: ignore[no-untyped-def]
    """Price of a layer on its cheapest piece with its cheapest strategy."""
    least = 1e300
    for piece in range(len(pieces)):
        p = pieces[piece]
        whatever = p[3] * kind[1] + scale * p[6] * kind[0] - p[7]
        if whatever >= least:
            continue
        for q in range(len(strategies)):
            s = strategies[q]
            price = whatever + p[0] * s[0] + p[1] * s[1] + p[2] * s[2] + scale * (p[4] * s[3] + p[5] * s[4])
            least = min(least, price)
    return least


@njit(cache=True)
def _bounds(first, last, pieces, layout, weight, occupancy, scales, strategies, kinds, ends, layouts, layers):  # type: ignore[no-untyped-def]
    """Best bound over the scales, per layout; infinity where a scale proves that nothing fits."""
    result = np.full(len(layouts), -1e300)
    for row in range(len(layouts)):
        for scale in scales:
            own = layouts[row]
            time = layout[0] * own[0] + layout[1] * own[1]
            held = layout[3] * own[3] + layout[4] * own[4]
            room = layout[2] * own[2]
            needed = occupancy + time + scale * held
            needed += _end_price(first, ends[row, 0], scale) + _end_price(last, ends[row, 1], scale)
            for k in range(len(layers)):
                if layers[k]:
                    needed += layers[k] * _least_price(pieces, strategies[row, k], kinds[row, k], scale)
            bound = needed + scale * room - CLOSE * (abs(needed) + occupancy + scale * abs(room))
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
    pieces = np.unique(dual.pieces, axis=0)
    found: Float64 = _bounds(
        dual.pieces[0], dual.pieces[-1], pieces, dual.layout, dual.weight, dual.occupancy,
        scales if dual.weight else np.ones(1), costs.strategies, costs.kinds, costs.ends, costs.layouts, costs.layers,
    )  # fmt: skip
    return found
