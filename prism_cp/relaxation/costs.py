"""Unrounded costs of many layouts as the relaxation needs them: seconds and bytes, never above the rounded tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

BRACKETS = 3  # of transients
FORWARD, INPUT_GRAD, WEIGHT_GRAD, ACTIVATION, TRANSIENT = range(5)  # of a strategy
STATE, DEFERRED, HEAD = range(3)  # of a layer
OFFSET, P2P, ROOM, BUFFER, LOSS = range(5)  # of a layout


@dataclass(frozen=True, eq=False)
class RelaxationCosts:
    """Costs of some layouts.

    The transients of all strategies are split into brackets. The largest one on the pieces of a rank that are always
    alive lies in some bracket: then it is at least the bracket's low, and those pieces use no strategy of a higher one.

    Attributes
    ----------
    strategies : float64 array [layouts, kinds, strategies, 5]
        Forward, input gradient, weight gradient, activation, transient. Where a kind has fewer strategies, its first
        one is repeated.
    bracket : int64 array [layouts, kinds, strategies]
        Bracket of the strategy's transient.
    lows : float64 array [layouts, brackets]
        Least transient of every bracket; infinity for those there are not.
    most : float64 array [layouts]
        The most layers a rank can hold.
    kinds : float64 array [layouts, kinds, 3]
        State of a layer; what a deferred weight gradient holds; optimizer update and parameter gather, before the
        rank's first forward.
    ends : float64 array [layouts, 2, 7]
        Embedding and output head: forward, input gradient, weight gradient, head, activation, state, deferred.
    layouts : float64 array [layouts, 5]
        Seconds every path contains; one transfer; capacity without what every rank holds whatever its layers; what a
        rank with some layer holds besides; transient of the loss.
    layers : float64 array [kinds]
        Layers of every kind in the chain.
    """

    strategies: Float64
    bracket: Int64
    lows: Float64
    most: Float64
    kinds: Float64
    ends: Float64
    layouts: Float64
    layers: Float64

    def rows(self, indices: NDArray[np.integer]) -> RelaxationCosts:
        """Some of the layouts."""
        return RelaxationCosts(
            self.strategies[indices], self.bracket[indices], self.lows[indices], self.most[indices],
            self.kinds[indices], self.ends[indices], self.layouts[indices], self.layers,
        )  # fmt: skip

    def joined(self, other: RelaxationCosts) -> RelaxationCosts:
        """These layouts and others."""
        names = ("strategies", "bracket", "lows", "most", "kinds", "ends", "layouts")
        both = {name: np.concatenate((getattr(self, name), getattr(other, name))) for name in names}
        return RelaxationCosts(**both, layers=self.layers)


def brackets_of(transients: Float64, most: int = BRACKETS) -> tuple[Int64, Float64]:
    """Split the transients of every layout at their widest gaps.

    Parameters
    ----------
    transients : float64 array [layouts, values]
    most
        Brackets.

    Returns
    -------
    (int64 array [layouts, values], float64 array [layouts, brackets])
        Bracket of every value; low of every bracket.
    """
    ordered = np.sort(transients, axis=1)
    gaps = np.diff(ordered, axis=1)
    cuts = min(most - 1, gaps.shape[1])
    widest = np.sort(np.argsort(-gaps, axis=1, kind="stable")[:, :cuts], axis=1) + 1  # first value of the next bracket
    starts = np.take_along_axis(ordered, widest, axis=1)
    starts[np.take_along_axis(gaps, widest - 1, axis=1) <= 0] = np.inf
    starts.sort(axis=1)
    lows = np.full((len(transients), most), np.inf)
    lows[:, 0], lows[:, 1 : 1 + cuts] = ordered[:, 0], starts
    bracket = (transients[:, :, None] >= lows[:, None, 1:]).sum(axis=2)
    return bracket.astype(np.int64), lows
