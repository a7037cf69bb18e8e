"""Pipeline room: one path of the event graph as an affine lower bound on the pipeline time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism_cp.pipeline.program import Program
from prism_cp.pipeline.schedules.base import FORWARDS, RESULT_OF, WHOLE_BACKWARDS, OpType


@dataclass(frozen=True, slots=True)
class PathCut:
    """How often a path executes each op kind, waits for a transfer, and which head and tail it has.

    The pipeline time of every plan with the same schedule, pp, vpp and num_microbatches is at least the path's value,
    because the time is the longest path; and it equals the largest value over all paths. Counts are multiplied by
    `scale`, so that they are integers where an overlapped pair counts for less than the sum of its ops.

    Attributes
    ----------
    forward, input_grad, weight_grad : tuple of int, one per virtual stage
    head, tail : tuple of int, one per rank
    p2p : int
        Transfers between ranks on the path.
    scale : int
        `scale` times the pipeline time is at least the weighted sum of the times.
    """

    forward: tuple[int, ...]
    input_grad: tuple[int, ...]
    weight_grad: tuple[int, ...]
    head: tuple[int, ...]
    tail: tuple[int, ...]
    p2p: int
    scale: int = 1

    def value(
        self,
        forward: Sequence[int],
        input_grad: Sequence[int],
        weight_grad: Sequence[int],
        head: Sequence[int],
        tail: Sequence[int],
        p2p: int,
    ) -> int:
        """Length of the path under these times, in their unit, rounded up: the pipeline time is an integer."""
        pairs = (
            (self.forward, forward),
            (self.input_grad, input_grad),
            (self.weight_grad, weight_grad),
            (self.head, head),
            (self.tail, tail),
        )
        total = self.p2p * int(p2p)
        for counts, times in pairs:
            total += sum(n * int(time) for n, time in zip(counts, times, strict=True))
        return -(-total // self.scale)


def path_cut(program: Program, path: NDArray[np.integer]) -> PathCut:
    """The cut of a path.

    Parameters
    ----------
    program : Program
    path : int array [length]
        Op numbers; each waits for the one before it, through its data or on its rank. Of an overlapped pair a path has
        both ops, which then count for the overlap factor times their sum, or one of them.
    """
    before, after = path[:-1], path[1:]
    partner = program.partner
    paired = partner[after] == before
    left = np.maximum(before, partner[before])  # results leave an overlapped pair when it ends
    entered = np.where(partner[after] >= 0, np.minimum(after, partner[after]), after)
    by_data = ~paired & (program.data_predecessor[entered] == left)
    by_block = ~paired & (program.block_predecessor[entered] == left)
    # A backward also needs its own forward, a weight gradient its own input gradient: on one rank, so no transfer.
    needed = RESULT_OF[program.op_type[after]] - 1
    own = program.index[needed, program.virtual_stage[after], program.microbatch[after]]
    by_itself = (needed >= 0) & (own >= 0) & (np.maximum(own, partner[own]) == left)
    by_order = program.rank_predecessor[entered] == left
    assert np.all(paired | by_data | by_block | by_itself | by_order), "not a path of the event graph"
    stages, pp = program.num_stages, program.pp
    together = np.append(False, paired)
    together[:-1] |= paired
    factor, scale = program.schedule.overlap_factor, 1
    weights = np.ones(len(path), np.int64)
    if factor != 1 and together.any():
        scale = factor.denominator
        weights = np.where(together, factor.numerator, scale)
    flat = np.zeros(len(OpType) * stages, np.int64)
    np.add.at(flat, program.code[path], weights)
    counts = flat.reshape(-1, stages)
    first, last = int(program.rank[path[0]]), int(program.rank[path[-1]])
    whole = counts[list(WHOLE_BACKWARDS)].sum(axis=0)
    transfers = np.count_nonzero((by_data & program.crosses[entered]) | (by_block & program.block_crosses[entered]))
    return PathCut(
        forward=tuple(counts[list(FORWARDS)].sum(axis=0).tolist()),
        input_grad=tuple((whole + counts[OpType.INPUT_GRAD]).tolist()),
        weight_grad=tuple((whole + counts[OpType.WEIGHT_GRAD]).tolist()),
        head=tuple(scale * int(rank == first) for rank in range(pp)),
        tail=tuple(scale * int(rank == last) for rank in range(pp)),
        p2p=scale * int(transfers),
        scale=scale,
    )
