"""Pipeline room: how many micro-batches' activations a rank holds at once, for all its virtual stages together.

A count per virtual stage on its own is not enough: under interleaving the virtual stages of a rank peak at different
moments, so a rank's memory is the maximum over several *vectors* of counts, of which only the Pareto-maximal matter.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from prism_cp.pipeline.program import check_sizes
from prism_cp.pipeline.schedules import get_schedule
from prism_cp.pipeline.schedules.base import FORWARDS, WHOLE_BACKWARDS, OpType, Schedule

LiveVectors = tuple[tuple[tuple[int, ...], ...], ...]


def live_vectors(schedule: str | Schedule, pp: int, vpp: int, num_microbatches: int) -> LiveVectors:
    """Pareto-maximal live vectors of every rank.

    A micro-batch is live on a virtual stage from the start of its forward to the end of the op that frees it: its
    backward, or its weight gradient where the backward is split. Replayed from the op order, which needs no times.

    Returns
    -------
    tuple per rank of tuples
        Each vector has one count per virtual stage of the rank, in forward order; largest first.

    Raises
    ------
    InstanceError
        The schedule is unknown or refuses these sizes.
    """
    return _live_vectors(get_schedule(schedule), pp, vpp, num_microbatches)


@lru_cache(maxsize=4096)
def _live_vectors(schedule: Schedule, pp: int, vpp: int, num_microbatches: int) -> LiveVectors:
    check_sizes(schedule, pp, vpp, num_microbatches)
    enough = schedule.live_microbatches(pp, vpp, num_microbatches)
    if enough != num_microbatches:
        return _live_vectors(schedule, pp, vpp, enough)
    stage_rank = np.array([rank for rank, _ in schedule.virtual_stages(pp, vpp)])
    return tuple(
        _rank_vectors(order, np.flatnonzero(stage_rank == rank))
        for rank, order in enumerate(schedule.orders(pp, vpp, num_microbatches))
    )


def _rank_vectors(order: NDArray[np.int32], stages: NDArray[np.intp]) -> tuple[tuple[int, ...], ...]:
    """Pareto-maximal live vectors of one rank's order, for its virtual stages `stages`."""
    starts = np.isin(order[:, 0], FORWARDS)
    frees = np.isin(order[:, 0], (*WHOLE_BACKWARDS, OpType.WEIGHT_GRAD))
    change = starts.astype(np.int32) - frees.astype(np.int32)
    live = np.cumsum(np.where(order[:, 1:2] == stages, change[:, None], 0), axis=0)
    # Between two frees the counts only grow, so the last forward before a free dominates the ones before it.
    moments = np.flatnonzero(change)
    moments = moments[starts[moments] & np.append(frees[moments[1:]], True)]
    return pareto_maximal(np.unique(live[moments], axis=0))


def pareto_maximal(vectors: NDArray[np.integer]) -> tuple[tuple[int, ...], ...]:
    """The rows that no other row dominates, in descending lexicographic order.

    Parameters
    ----------
    vectors : int array [rows, columns]
        Distinct rows.
    """
    kept: list[tuple[int, ...]] = []
    # A dominating row is lexicographically larger, so it is met first.
    for row in sorted(map(tuple, vectors.tolist()), reverse=True):
        if not any(all(a >= b for a, b in zip(other, row, strict=True)) for other in kept):
            kept.append(row)
    return tuple(kept)
