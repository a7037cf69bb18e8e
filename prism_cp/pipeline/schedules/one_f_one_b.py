"""Pipeline room, schedules: 1F1B with a flush at the end of the step.

Source: Narayanan et al. 2021, arXiv:2104.04473 (PipeDream-Flush); Megatron-LM,
``megatron/core/pipeline_parallel/schedules.py``, ``forward_backward_pipelining_without_interleaving``.
"""

from __future__ import annotations

import numpy as np

from prism_cp.pipeline.schedules.base import OpType, Orders, Schedule, one_forward_one_backward, op_rows


class OneForwardOneBackward(Schedule):
    """Rank r runs pp-1-r forwards ahead, then one forward and one backward in turn, then the backwards left."""

    name = "1f1b"

    def why_not(self, pp: int, vpp: int, num_microbatches: int) -> str | None:
        """Any pipeline size and number of micro-batches; one virtual stage per rank."""
        return None if vpp == 1 else f"1f1b has one virtual stage per rank, vpp is {vpp} (interleaved has more)"

    def virtual_stages(self, pp: int, vpp: int) -> tuple[tuple[int, int], ...]:
        """Rank r holds piece r."""
        return tuple((rank, rank) for rank in range(pp))

    def orders(self, pp: int, vpp: int, num_microbatches: int) -> Orders:
        """Forwards and backwards both in micro-batch order."""
        microbatches = np.arange(num_microbatches)
        return [
            one_forward_one_backward(
                op_rows(OpType.FORWARD, rank, microbatches),
                op_rows(OpType.BACKWARD, rank, microbatches),
                min(num_microbatches, pp - 1 - rank),
            )
            for rank in range(pp)
        ]

    def live_microbatches(self, pp: int, vpp: int, num_microbatches: int) -> int:
        """pp is enough: after the first backward every forward follows a backward, so the count never grows again."""
        return min(num_microbatches, pp)


SCHEDULE = OneForwardOneBackward()
