"""Second proof room: what a component may take of every path so that the others can still hold all other layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

Int64 = NDArray[np.int64]

NEVER = np.int64(1) << 60


def budgets(least: Sequence[Int64], held: Sequence[Int64], chain: Int64, room: Int64) -> list[Int64]:
    """Most that each component may take of every path, by the layers it holds.

    Parameters
    ----------
    least : sequence of int64 arrays [totals, paths]
        Per component, the least share of every path by what it holds.
    held : sequence of int64 arrays [totals, kinds]
        Distinct numbers of layers of every kind that each component can hold.
    chain : int64 array [kinds]
        Layers of the chain.
    room : int64 array [paths]

    Returns
    -------
    list of int64 arrays [totals, paths]
        Far below the least share where the others cannot hold the rest.
    """
    states = np.stack(np.unravel_index(np.arange(np.prod(chain + 1)), tuple(chain + 1)), axis=1)
    weights = np.append(np.cumprod((chain + 1)[:0:-1])[::-1], 1)  # of the kinds in a state's number
    nothing = np.full((len(states), len(room)), NEVER)
    nothing[0] = 0
    before = [nothing]
    for share, totals in zip(least[:-1], held[:-1], strict=True):
        before.append(_joined(before[-1], share, totals, states, weights))
    after = nothing
    result: list[Int64] = []
    for number in range(len(least) - 1, -1, -1):
        result.insert(0, room - _others(before[number], after, held[number], states, weights))
        if number:
            after = _joined(after, least[number], held[number], states, weights)
    return result


@njit(cache=True)
def _without(layers: Int64, taken: Int64, weights: Int64) -> int:  # pragma: no cover - compiled
    """Number of the state that is left of some layers; -1 where too few are."""
    number = 0
    for kind in range(len(weights)):
        left = layers[kind] - taken[kind]
        if left < 0:
            return -1
        number += left * weights[kind]
    return number


@njit(cache=True)
def _joined(
    values: Int64, share: Int64, held: Int64, states: Int64, weights: Int64
) -> Int64:  # pragma: no cover - compiled
    """Least values [states, paths] with one component more; a state says how many layers of each kind are held."""
    result = np.full_like(values, NEVER)
    for row in range(len(held)):
        for state in range(len(states)):
            source = _without(states[state], held[row], weights)
            if source >= 0 and values[source, 0] < NEVER:
                for x in range(values.shape[1]):
                    result[state, x] = min(result[state, x], values[source, x] + share[row, x])
    return result


@njit(cache=True)
def _others(
    before: Int64, after: Int64, held: Int64, states: Int64, weights: Int64
) -> Int64:  # pragma: no cover - compiled
    """Least that components on both sides take [totals, paths] while they hold all that a total leaves of the chain."""
    result = np.full((len(held), before.shape[1]), NEVER)
    for row in range(len(held)):
        left = states[-1] - held[row]
        for state in range(len(states)):
            other = _without(left, states[state], weights)
            if other >= 0 and before[state, 0] < NEVER and after[other, 0] < NEVER:
                for x in range(before.shape[1]):
                    result[row, x] = min(result[row, x], before[state, x] + after[other, x])
    return result
