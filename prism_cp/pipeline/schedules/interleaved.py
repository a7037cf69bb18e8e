"""Pipeline room, schedules: interleaved 1F1B, every rank holds vpp virtual stages.

Source: Narayanan et al. 2021, arXiv:2104.04473, section 2.2; Megatron-LM,
``megatron/core/pipeline_parallel/schedules.py``, ``get_schedule_table`` and ``get_pp_rank_microbatches``; with
overlapped expert communication ``combined_1f1b.py`` there.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from prism_cp.errors import InstanceError
from prism_cp.pipeline.schedules.base import OpType, Orders, Schedule, one_forward_one_backward, op_rows

GROUP_OPTION = "microbatch_group_size_per_vp_stage"
OVERLAP_OPTION = "overlap_moe_expert_parallel_comm"


class Interleaved(Schedule):
    """Virtual stage s lives on rank s mod pp; micro-batches advance in groups.

    Parameters
    ----------
    group_size : int, optional
        Megatron-LM's ``microbatch_group_size_per_vp_stage``: micro-batches that pass a virtual stage before the rank
        turns to its next one. By default the smallest one Megatron-LM accepts: pp where it divides the number of
        micro-batches.
    overlap : bool
        Megatron-LM's ``overlap_moe_expert_parallel_comm``: one forward more before the steady phase, in which every
        forward then runs as a pair with a backward of another micro-batch.
    """

    name = "interleaved"

    def __init__(self, group_size: int | None = None, overlap: bool = False) -> None:
        self._group_size, self._overlap = group_size, overlap

    def variant(self, options: Mapping[str, str]) -> Interleaved:
        """With another group size, or with overlapped expert communication."""
        unknown = set(options) - {GROUP_OPTION, OVERLAP_OPTION}
        if unknown:
            accepted = f"{GROUP_OPTION}, {OVERLAP_OPTION}"
            raise InstanceError("layout.schedule", f"interleaved has no option {min(unknown)}", accepted)
        size = options.get(GROUP_OPTION)
        return Interleaved(None if size is None else int(size), options.get(OVERLAP_OPTION) == "True")

    def group_size(self, pp: int, num_microbatches: int) -> int | None:
        """Micro-batches of a group; None when there is no size that Megatron-LM accepts.

        It wants groups of pp to all micro-batches, and a last group that is no smaller than pp.
        """
        sizes = range(pp, num_microbatches + 1) if self._group_size is None else (self._group_size,)
        for size in sizes:
            if pp <= size <= num_microbatches and not 0 < num_microbatches % size < pp:
                return size
        return None

    def why_not(self, pp: int, vpp: int, num_microbatches: int) -> str | None:
        """Needs pp >= 2, vpp >= 2 and at least pp micro-batches, which the group size splits rightly."""
        if pp < 2:
            return f"interleaving needs at least 2 pipeline ranks, pp is {pp}"
        if vpp < 2:
            return f"interleaving needs at least 2 virtual stages per rank, vpp is {vpp}"
        if num_microbatches < pp:
            return f"interleaving needs at least pp = {pp} micro-batches, there are {num_microbatches}"
        if self.group_size(pp, num_microbatches) is None:
            return (
                f"{GROUP_OPTION} = {self._group_size} must be from pp = {pp} to {num_microbatches}, the number of "
                f"micro-batches, and leave a last group of none or at least pp"
            )
        return None

    def virtual_stages(self, pp: int, vpp: int) -> tuple[tuple[int, int], ...]:
        """Pieces are dealt to the ranks in turn."""
        return tuple((stage % pp, stage) for stage in range(pp * vpp))

    def orders(self, pp: int, vpp: int, num_microbatches: int) -> Orders:
        """A group of micro-batches passes chunk after chunk, then the next group; backwards visit chunks in reverse."""
        size = self.group_size(pp, num_microbatches)
        assert size is not None, "why_not refuses these sizes"
        steps = [
            (chunk, microbatch)
            for first in range(0, num_microbatches, size)
            for chunk in range(vpp)
            for microbatch in range(first, min(first + size, num_microbatches))
        ]
        chunk, microbatch = np.array(steps).T
        orders = []
        for rank in range(pp):
            warmup = min(len(steps), 2 * (pp - 1 - rank) + (vpp - 1) * size + int(self._overlap))
            forwards = op_rows(OpType.FORWARD, chunk * pp + rank, microbatch)
            backwards = op_rows(OpType.BACKWARD, (vpp - 1 - chunk) * pp + rank, microbatch)
            if self._overlap:
                forwards[warmup:, 0] = OpType.OVERLAPPED_FORWARD
                backwards[: len(steps) - warmup, 0] = OpType.OVERLAPPED_BACKWARD
            orders.append(one_forward_one_backward(forwards, backwards, warmup))
        return orders

    def live_microbatches(self, pp: int, vpp: int, num_microbatches: int) -> int:
        """Three groups are enough where all are equally large.

        Warm-up is at most (vpp+1)·group ops whatever the number of micro-batches, so with three groups of them at least
        (2·vpp-1)·group >= group·vpp pairs of forward and backward follow. The pairs repeat after group·vpp with every
        chunk's count unchanged, so one period already shows every live vector, and the cool-down only frees.
        """
        size = self.group_size(pp, num_microbatches)
        if size is None or num_microbatches % size or (self._group_size is None and size != pp):
            return num_microbatches
        return min(num_microbatches, 3 * size)


SCHEDULE = Interleaved()
