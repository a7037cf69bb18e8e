"""Second proof room: what a component may take of every path so that the others can still hold all other layers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
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
    nothing = np.full((*(chain + 1), len(room)), NEVER)
    nothing[(0,) * len(chain)] = 0
    before = [nothing]
    for share, totals in zip(least, held, strict=True):
        before.append(_joined(before[-1], share, totals))
    after = nothing
    result: list[Int64] = []
    kinds = tuple(range(len(chain)))
    for number in range(len(least) - 1, -1, -1):
        others = np.full((len(held[number]), len(room)), NEVER)
        for row, total in enumerate(held[number]):
            rest = chain - total
            if np.all(rest >= 0):
                part = tuple(slice(0, n + 1) for n in rest.tolist())
                others[row] = np.minimum((before[number][part] + np.flip(after[part], kinds)).min(axis=kinds), NEVER)
        result.insert(0, room - others)
        after = _joined(after, least[number], held[number])
    return result


def _joined(values: Int64, share: Int64, held: Int64) -> Int64:
    """Least values [layers of every kind, paths] with one component more."""
    result = np.full_like(values, NEVER)
    for row, total in enumerate(held.tolist()):
        if all(n < size for n, size in zip(total, values.shape, strict=False)):
            target = tuple(slice(n, None) for n in total)
            source = tuple(slice(0, size - n) for n, size in zip(total, values.shape, strict=False))
            np.minimum(result[target], values[source] + share[row], out=result[target])
    np.minimum(result, NEVER, out=result)
    return result
