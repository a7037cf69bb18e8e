"""Pipeline room: how many micro-batches' activations a rank holds at once, for all its virtual stages together.

A count per virtual stage on its own is not enough: under interleaving the virtual stages of a rank peak at different
moments, so a rank's memory is the maximum over several *vectors* of counts, of which only the Pareto-maximal matter.

Where a backward is split, a micro-batch holds something else between the start of its input gradient and the end of its
weight gradient, never less than before: such micro-batches are counted apart.
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
    backward, or its weight gradient where the backward is split. Replayed from the op order, which needs no times. One
    vector dominates another when it has no fewer micro-batches alive and no fewer deferred ones on every virtual stage.

    Returns
    -------
    tuple per rank of tuples
        Each vector has one count per virtual stage of the rank, in forward order; largest first. For a schedule that
        splits backwards as many counts follow: those of micro-batches whose input gradient has started and whose
        weight gradient has not ended, which the first counts leave out.

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
        _rank_vectors(order, np.flatnonzero(stage_rank == rank), schedule.splits_backward)
        for rank, order in enumerate(schedule.orders(pp, vpp, num_microbatches))
    )


def _rank_vectors(order: NDArray[np.int32], stages: NDArray[np.intp], splits: bool) -> tuple[tuple[int, ...], ...]:
    """Pareto-maximal live vectors of one rank's order, for its virtual stages `stages`."""
    starts = np.isin(order[:, 0], FORWARDS)
    defers = order[:, 0] == OpType.INPUT_GRAD
    frees = np.isin(order[:, 0], (*WHOLE_BACKWARDS, OpType.WEIGHT_GRAD))
    own = order[:, 1:2] == stages
    live = np.cumsum(np.where(own, (starts.astype(np.int32) - frees)[:, None], 0), axis=0)
    # Between two frees the counts only grow, so the last op that adds before a free dominates the ones before it.
    moments = np.flatnonzero(starts | defers | frees)
    moments = moments[~frees[moments] & np.append(frees[moments[1:]], True)]
    if not splits:
        return pareto_maximal(np.unique(live[moments], axis=0))
    waits = defers.astype(np.int32) - (order[:, 0] == OpType.WEIGHT_GRAD)
    deferred = np.cumsum(np.where(own, waits[:, None], 0), axis=0)
    largest = np.array(pareto_maximal(np.unique(np.hstack((live, deferred))[moments], axis=0)))
    largest[:, : len(stages)] -= largest[:, len(stages) :]
    return tuple(sorted(map(tuple, largest.tolist()), reverse=True))


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
