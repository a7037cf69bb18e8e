"""Pipeline room, schedules: DualPipe, two copies of the model run by the same ranks in opposite directions.

Source: DeepSeek-V3 technical report, arXiv:2412.19437, section 3.2.1; deepseek-ai/DualPipe, ``dualpipe/dualpipe.py``,
``DualPipe.step``. A forward and a backward that DualPipe overlaps are one block; the overlap factor says how much of
both together it takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from prism_cp.pipeline.schedules.base import OpType, Orders, Schedule, count_microbatches, overlap_option


class DualPipe(Schedule):
    """Rank r holds piece r for one half of the micro-batches and piece pp-1-r for the other half.

    Virtual stages 0..pp-1 are the first direction, pp..2·pp-1 the second one, whose stage s is on rank pp-1-s.
    Micro-batches 0..m/2-1 go the first way, the others the second.
    """

    name = "dualpipe"
    splits_backward = True

    def __init__(self, overlap_factor: Fraction = Fraction(1)) -> None:
        self.overlap_factor = overlap_factor

    def variant(self, options: Mapping[str, str]) -> DualPipe:
        """With another overlap factor."""
        return DualPipe(overlap_option(self.name, options))

    def why_not(self, pp: int, vpp: int, num_microbatches: int) -> str | None:
        """Needs even pp, vpp = 1, and an even number of at least 2·pp micro-batches."""
        if vpp != 1:
            return f"dualpipe cuts the model into pp pieces, vpp is {vpp} (dualpipev has two per rank)"
        if pp % 2:
            return f"dualpipe needs an even number of pipeline ranks, pp is {pp}"
        if num_microbatches % 2 or num_microbatches < 2 * pp:
            return f"dualpipe needs an even number of at least 2·pp = {2 * pp} micro-batches, not {num_microbatches}"
        return None

    def virtual_stages(self, pp: int, vpp: int) -> tuple[tuple[int, int], ...]:
        """First direction, then the mirrored one."""
        return tuple((stage, stage) for stage in range(pp)) + tuple((pp - 1 - stage, stage) for stage in range(pp))

    def chains(self, pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
        """One chain per direction."""
        return tuple(range(pp)), tuple(range(pp, 2 * pp))

    def orders(self, pp: int, vpp: int, num_microbatches: int) -> Orders:
        """Rank r and rank pp-1-r do the same with the directions exchanged."""
        half = num_microbatches // 2
        orders = []
        for rank in range(pp):
            first_way, second_way = rank, 2 * pp - 1 - rank
            near, far = (first_way, second_way) if rank < pp // 2 else (second_way, first_way)
            order = bidirectional_order(pp // 2, min(rank, pp - 1 - rank), half, near, far)
            order[order[:, 1] >= pp, 2] += half
            orders.append(order)
        return orders


def bidirectional_order(ranks: int, rank: int, microbatches: int, near: int, far: int) -> NDArray[np.int32]:
    """The order of DualPipe and DualPipeV on one rank.

    Parameters
    ----------
    ranks, rank : int
        Length of the way from a source of micro-batches to the turning point, and the rank's place on it.
    microbatches : int
        Per leg, at least ``2·ranks``.
    near, far : int
        The rank's virtual stages on the leg it is reached by first, and on the other one.

    Returns
    -------
    int32 array [ops, 3]
    """
    f, full, b, w = OpType.FORWARD, OpType.BACKWARD, OpType.INPUT_GRAD, OpType.WEIGHT_GRAD
    block_f, block_b = OpType.OVERLAPPED_FORWARD, OpType.OVERLAPPED_BACKWARD
    later = ranks - rank - 1
    main = [(block_f, near), (block_b, far), (block_f, far), (block_b, near)]
    main *= microbatches - 2 * ranks + rank + 1
    if later == 0:  # the rank at the turning point does not overlap its first pair
        main[:2] = [(f, near), (full, far)]
    ops = [(f, near)] * (2 * later)
    ops += [(f, near), (f, far)] * (rank + 1)
    ops += [(b, far), (w, far), (f, far)] * later
    ops += main
    ops += [(full, far), (block_f, far), (block_b, near)] * later
    # Of the last backwards of both legs the second half is split, from the middle of the alternation on.
    whole = rank + 1
    ending = [far, near] * (rank + 1)
    ops += [(full, stage) for stage in ending[:whole]] + [(b, stage) for stage in ending[whole:]]
    ops += [(w, near), (b, near)] * later
    ops += [(w, near)] * (rank + 1)
    types, stages = np.array(ops).T
    # Weight gradients wait in one queue for both legs: the oldest input gradient is next.
    stages[types == w] = stages[types == b]
    return count_microbatches(types, stages)


SCHEDULE = DualPipe()
