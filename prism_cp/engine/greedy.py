"""Engine room: one real choice of strategies per item, by greed: what annealing over boundaries takes for its plans."""

from __future__ import annotations

import numpy as np
from numba import njit

from prism_cp.engine.choices import ACTIVATION, FORWARD, INPUT_GRAD, TRANSIENT, WEIGHT_GRAD


@njit(cache=True)
def greedy_picks(  # type: ignore[no-untyped-def]
    choice, budget, values, offset, piece, column, rows, alive, transient, executed, ordered
):
    """Picks [items, pieces] that fit: from the fastest points on, always the change that saves most for its time.

    The first pick of an item is -1 where nothing was found.

    Parameters
    ----------
    choice : int64[items, pieces]; compositions
    budget : int64[items, rows]
    values : int64[points, tables, COLUMNS]
    offset : int64[pieces, compositions, 2]; first and last point of a composition
    piece, column : int64[stages]
    rows : int64[rows, stages]; live micro-batches
    alive : bool[rows, stages]
    transient, executed : int64[stages]
    ordered : bool; whether points of a composition differ in input-gradient time only, and come in its order
    """
    items, pieces = choice.shape
    picks = np.zeros((items, pieces), np.int64)
    for i in range(items):
        at = picks[i]
        while True:
            worst, over = -1, np.int64(0)
            for row in range(len(rows)):
                used, largest = np.int64(0), np.int64(0)
                for s in range(len(piece)):
                    if alive[row, s]:
                        p = offset[piece[s], choice[i, piece[s]], 0] + at[piece[s]]
                        used += rows[row, s] * values[p, column[s], ACTIVATION]
                        largest = max(largest, values[p, column[s], TRANSIENT], transient[s])
                if used + largest - budget[i, row] > over:
                    worst, over = row, used + largest - budget[i, row]
            if worst < 0:
                break
            best, best_k, best_p = 0.0, -1, -1
            for k in range(pieces):
                first, last = offset[k, choice[i, k]]
                for p in range(first + at[k] + 1, last):
                    saved, slower = np.int64(0), np.int64(1)
                    for s in range(len(piece)):
                        if piece[s] == k:
                            now, then = values[first + at[k], column[s]], values[p, column[s]]
                            saved += rows[worst, s] * (now[ACTIVATION] - then[ACTIVATION])
                            more = then[FORWARD] + then[INPUT_GRAD] + then[WEIGHT_GRAD]
                            more -= now[FORWARD] + now[INPUT_GRAD] + now[WEIGHT_GRAD]
                            slower += executed[s] * max(0, more)
                    if ordered and over < best * slower:
                        break
                    if min(saved, over) / slower > best:  # saving more than is needed is worth nothing
                        best, best_k, best_p = min(saved, over) / slower, k, p - first
            if best_k < 0:
                at[0] = -1
                break
            at[best_k] = best_p
    return picks
