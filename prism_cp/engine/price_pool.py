"""Engine room: prices on memory that were best for some item; good ones for others too."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prism_cp.engine.pricing import ItemMemory, Prices, memory_costs_by_bracket

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

MOST_KEPT = 10  # price vectors per group and bracket
ENOUGH = 1e-7  # relative improvement that counts


class PricePool:
    """Prices of every group, per unit of the scale of the row they were found for.

    Parameters
    ----------
    memories
        Of every group; None where items are not bounded by prices.
    other
        A pool for other items of the same groups; both go on together.
    """

    def __init__(self, memories: Sequence[ItemMemory | None], other: PricePool | None = None) -> None:
        self._memories = memories
        self._kept: list[list[list[Float64]]] = (
            [[] if memory is None else [[] for _ in memory.rows.lows] for memory in memories]
            if other is None
            else other._kept
        )

    def seed(self, g: int, vectors: Float64) -> None:
        """Keep price vectors [vectors, rows] for every bracket of a group."""
        for bracket in range(len(self._kept[g])):
            for vector in vectors:
                self._keep(g, bracket, vector)

    def applies(self, g: int) -> bool:
        """Whether items of a group are bounded by prices."""
        return self._memories[g] is not None

    def prices(self, scale: int) -> tuple[Prices | None, ...]:
        """What is kept, for a row of some scale."""
        result: list[Prices | None] = []
        for memory, kept in zip(self._memories, self._kept, strict=True):
            if memory is None:
                result.append(None)
                continue
            bracket = [number for number, vectors in enumerate(kept) for _ in vectors]
            vectors = [vector for each in kept for vector in each]
            rows = len(memory.rows.live)
            result.append(Prices(np.array(bracket, np.int64), scale * np.array(vectors).reshape(-1, rows)))
        return tuple(result)

    def settle(self, g: int, item: int, weights: Float64, scale: int) -> bool:
        """Find the best prices of one item under some weights; whether they bound it better than those kept."""
        own, prices = self._one(g, item), self._group_prices(g, scale)
        low = float(memory_costs_by_bracket(own, prices, weights).min())
        found, high = own.finder.settle(own, prices, weights)
        for bracket, vector in found:
            self._keep(g, bracket, vector / scale)
        return high > low + ENOUGH * max(1.0, abs(low))

    def slower(self, g: int, item: int, weights: Float64, scale: int) -> Float64:
        """Times [pieces] beyond the fastest strategies of the mixture that is best for one item under some weights."""
        own = self._one(g, item)
        reached = memory_costs_by_bracket(own, self._group_prices(g, scale), weights)[0]
        best, value = np.zeros(len(weights)), np.inf
        for bracket in np.argsort(reached, kind="stable").tolist():
            if reached[bracket] >= value:
                break
            found = own.finder.program(bracket).solve(own.counts[0], own.budget[0], weights)
            if found is not None and float(weights @ found[1]) < value:
                best, value = found[1], float(weights @ found[1])
        return best

    def _one(self, g: int, item: int) -> ItemMemory:
        memory = self._memories[g]
        assert memory is not None
        return memory.take(np.array([item]))

    def _group_prices(self, g: int, scale: int) -> Prices:
        prices = self.prices(scale)[g]
        assert prices is not None
        return prices

    def _keep(self, g: int, bracket: int, vector: Float64) -> None:
        kept = self._kept[g][bracket]
        kept.insert(0, vector)
        del kept[MOST_KEPT:]
