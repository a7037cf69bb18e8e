"""Unrounded costs of many layouts as the relaxation needs them: seconds and bytes, never above the rounded tables."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

FORWARD, INPUT_GRAD, WEIGHT_GRAD, ACTIVATION, TRANSIENT = range(5)  # of a strategy
STATE, HEAD = range(2)  # of a layer
OFFSET, P2P, ROOM, BUFFER, LOSS = range(5)  # of a layout


@dataclass(frozen=True, eq=False)
class RelaxationCosts:
    """Costs of some layouts.

    Attributes
    ----------
    strategies : float64 array [layouts, kinds, strategies, 5]
        Forward, input gradient, weight gradient, activation, and the transient beyond the least one of any layer,
        divided by the most layers a rank can hold. Where a kind has fewer strategies, its first one is repeated.
    kinds : float64 array [layouts, kinds, 2]
        State of a layer; its optimizer update and parameter gather, before the rank's first forward.
    ends : float64 array [layouts, 2, 6]
        Embedding and output head: forward, input gradient, weight gradient, activation, state, head.
    layouts : float64 array [layouts, 5]
        Seconds every path contains; one transfer; capacity without what every rank holds whatever its layers and
        without the least transient of any layer; what that room is smaller by on a rank that holds some layer, and
        while the last virtual stage is live.
    layers : float64 array [kinds]
        Layers of every kind in the chain.
    """

    strategies: Float64
    kinds: Float64
    ends: Float64
    layouts: Float64
    layers: Float64

    def rows(self, indices: NDArray[np.integer]) -> RelaxationCosts:
        """Some of the layouts."""
        return RelaxationCosts(
            self.strategies[indices], self.kinds[indices], self.ends[indices], self.layouts[indices], self.layers
        )
