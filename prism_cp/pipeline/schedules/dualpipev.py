"""Pipeline room, schedules: DualPipeV, DualPipe folded in the middle so that no parameter is held twice.

Source: deepseek-ai/DualPipe, ``dualpipe/dualpipev.py``; ``torch.distributed.pipelining.schedules.ScheduleDualPipeV``.
As for DualPipe, an overlapped forward and backward are one block.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction

from prism_cp.pipeline.schedules.base import Orders, Schedule, overlap_option
from prism_cp.pipeline.schedules.dualpipe import bidirectional_order


class DualPipeV(Schedule):
    """Rank r holds virtual stages r and 2·pp-1-r."""

    name = "dualpipev"
    splits_backward = True

    def __init__(self, overlap_factor: Fraction = Fraction(1)) -> None:
        self.overlap_factor = overlap_factor

    def variant(self, options: Mapping[str, str]) -> DualPipeV:
        """With another overlap factor."""
        return DualPipeV(overlap_option(self.name, options))

    def why_not(self, pp: int, vpp: int, num_microbatches: int) -> str | None:
        """Needs vpp = 2 and at least 2·pp micro-batches."""
        if vpp != 2:
            return f"dualpipev has two virtual stages per rank, vpp is {vpp}"
        if num_microbatches < 2 * pp:
            return f"dualpipev needs at least 2·pp = {2 * pp} micro-batches, there are {num_microbatches}"
        return None

    def virtual_stages(self, pp: int, vpp: int) -> tuple[tuple[int, int], ...]:
        """Down the ranks and up again."""
        return tuple((min(stage, 2 * pp - 1 - stage), stage) for stage in range(2 * pp))

    def orders(self, pp: int, vpp: int, num_microbatches: int) -> Orders:
        """The two legs of the V take the place of DualPipe's two directions."""
        return [bidirectional_order(pp, rank, num_microbatches, rank, 2 * pp - 1 - rank) for rank in range(pp)]


SCHEDULE = DualPipeV()
