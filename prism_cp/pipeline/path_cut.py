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
    because the time is the longest path; and it equals the largest value over all paths.

    Attributes
    ----------
    forward, input_grad, weight_grad : tuple of int, one per virtual stage
    head, tail : tuple of int, one per rank
    p2p : int
        Transfers between ranks on the path.
    """

    forward: tuple[int, ...]
    input_grad: tuple[int, ...]
    weight_grad: tuple[int, ...]
    head: tuple[int, ...]
    tail: tuple[int, ...]
    p2p: int

    def value(
        self,
        forward: Sequence[int],
        input_grad: Sequence[int],
        weight_grad: Sequence[int],
        head: Sequence[int],
        tail: Sequence[int],
        p2p: int,
    ) -> int:
        """Length of the path under these times, in their unit."""
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
        return total


def path_cut(program: Program, path: NDArray[np.integer]) -> PathCut:
    """The cut of a path.

    Parameters
    ----------
    program : Program
    path : int array [length]
        Op numbers; each waits for the one before it, through its data or on its rank.
    """
    before, after = path[:-1], path[1:]
    by_data = program.data_predecessor[after] == before
    by_block = program.block_predecessor[after] == before
    # A backward also needs its own forward, a weight gradient its own input gradient: on one rank, so no transfer.
    needed = RESULT_OF[program.op_type[after]] - 1
    own = program.index[needed, program.virtual_stage[after], program.microbatch[after]]
    by_itself = (needed >= 0) & (own == before)
    by_order = program.rank_predecessor[after] == before
    assert np.all(by_data | by_block | by_itself | by_order), "not a path of the event graph"
    stages, pp = program.num_stages, program.pp
    counts = np.bincount(program.code[path], minlength=len(OpType) * stages).reshape(-1, stages)
    first, last = int(program.rank[path[0]]), int(program.rank[path[-1]])
    whole = counts[list(WHOLE_BACKWARDS)].sum(axis=0)
    return PathCut(
        forward=tuple(counts[list(FORWARDS)].sum(axis=0).tolist()),
        input_grad=tuple((whole + counts[OpType.INPUT_GRAD]).tolist()),
        weight_grad=tuple((whole + counts[OpType.WEIGHT_GRAD]).tolist()),
        head=tuple(int(rank == first) for rank in range(pp)),
        tail=tuple(int(rank == last) for rank in range(pp)),
        p2p=int(np.count_nonzero((by_data & program.crosses[after]) | (by_block & program.block_crosses[after]))),
    )
