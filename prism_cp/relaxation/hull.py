"""Lower convex hulls of time and memory: what a linear program can use of many strategies."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]


def lower_hull(time: Float64, memory: Float64) -> NDArray[np.intp]:
    """Positions of the points on the lower convex hull, the fastest first, each with less memory than the one before.

    Parameters
    ----------
    time, memory : float64 arrays [points]
    """
    kept: list[int] = []
    for q in np.lexsort((memory, time)):
        x, y = time[q], memory[q]
        if kept and memory[kept[-1]] <= y:
            continue
        while len(kept) >= 2:
            a, b = kept[-2], kept[-1]
            if (memory[b] - memory[a]) * (x - time[a]) < (y - memory[a]) * (time[b] - time[a]):
                break
            kept.pop()
        kept.append(int(q))
    return np.array(kept)
