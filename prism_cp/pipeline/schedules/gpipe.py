"""Pipeline room, schedules: GPipe, all forwards and then all backwards.

Source: Huang et al. 2019, "GPipe", arXiv:1811.06965, figure 2.
"""

from __future__ import annotations

import numpy as np

from prism_cp.pipeline.schedules.base import Op, OpType, Orders, Schedule, op_rows


class GPipe(Schedule):
    """Every rank runs all its forwards in order, then all its backwards in the same order."""

    name = "gpipe"

    def why_not(self, pp: int, vpp: int, num_microbatches: int) -> str | None:
        """Any pipeline size and number of micro-batches; one virtual stage per rank."""
        return None if vpp == 1 else f"gpipe has one virtual stage per rank, vpp is {vpp}"

    def virtual_stages(self, pp: int, vpp: int) -> tuple[tuple[int, int], ...]:
        """Rank r holds piece r."""
        return tuple((rank, rank) for rank in range(pp))

    def orders(self, pp: int, vpp: int, num_microbatches: int) -> Orders:
        """Forwards 0..m-1, then backwards 0..m-1."""
        microbatches = np.arange(num_microbatches)
        return [
            np.concatenate((op_rows(OpType.FORWARD, rank, microbatches), op_rows(OpType.BACKWARD, rank, microbatches)))
            for rank in range(pp)
        ]

    def turns(self, pp: int, vpp: int, num_microbatches: int) -> tuple[tuple[Op, Op], ...]:
        """The last forward of the last rank, and its first backward: no longest path turns elsewhere."""
        return ((Op(OpType.FORWARD, pp - 1, num_microbatches - 1), Op(OpType.BACKWARD, pp - 1, 0)),)


SCHEDULE = GPipe()
