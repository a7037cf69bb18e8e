"""Pipeline room, schedules: interleaved 1F1B, every rank holds vpp virtual stages.

Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; Megatron-LM,
``megatron/core/pipeline_parallel/schedules.py``, ``get_schedule_table`` and ``get_pp_rank_microbatches``, with its
default ``microbatch_group_size_per_vp_stage`` = pp and without the extra warm-up of expert-communication overlap.
"""

from __future__ import annotations

import numpy as np

from prism_cp.pipeline.schedules.base import OpType, Orders, Schedule, one_forward_one_backward, op_rows


class Interleaved(Schedule):
    """Virtual stage s lives on rank s mod pp; micro-batches advance in groups of pp."""

    name = "interleaved"

    def why_not(self, pp: int, vpp: int, num_microbatches: int) -> str | None:
        """Needs pp >= 2, vpp >= 2 and whole groups of pp micro-batches."""
        if pp < 2:
            return f"interleaving needs at least 2 pipeline ranks, pp is {pp}"
        if vpp < 2:
            return f"interleaving needs at least 2 virtual stages per rank, vpp is {vpp}"
        if num_microbatches % pp:
            return f"interleaving needs num_microbatches a multiple of pp, {num_microbatches} is none of {pp}"
        return None

    def virtual_stages(self, pp: int, vpp: int) -> tuple[tuple[int, int], ...]:
        """Pieces are dealt to the ranks in turn."""
        return tuple((stage % pp, stage) for stage in range(pp * vpp))

    def orders(self, pp: int, vpp: int, num_microbatches: int) -> Orders:
        """Groups of pp micro-batches pass chunk after chunk; backwards visit the chunks in reverse."""
        step = np.arange(num_microbatches * vpp)
        group, within = np.divmod(step, pp * vpp)
        chunk, member = np.divmod(within, pp)
        microbatch = group * pp + member
        orders = []
        for rank in range(pp):
            warmup = min(len(step), 2 * (pp - 1 - rank) + (vpp - 1) * pp)
            forwards = op_rows(OpType.FORWARD, chunk * pp + rank, microbatch)
            backwards = op_rows(OpType.BACKWARD, (vpp - 1 - chunk) * pp + rank, microbatch)
            orders.append(one_forward_one_backward(forwards, backwards, warmup))
        return orders

    def live_microbatches(self, pp: int, vpp: int, num_microbatches: int) -> int:
        """3·pp is enough.

        Warm-up is at most (vpp+1)·pp ops whatever the number of micro-batches, so with 3·pp of them at least
        (2·vpp-1)·pp >= pp·vpp pairs of forward and backward follow. The pairs repeat after pp·vpp with every chunk's
        count unchanged, so one period already shows every live vector, and the cool-down only frees.
        """
        return min(num_microbatches, 3 * pp)


SCHEDULE = Interleaved()
