"""Pipeline room, schedules: ZB-V, two virtual stages per rank laid out as a V, weight gradients postponed at the end.

Source: Qi et al. 2023, arXiv:2401.10241, section 6; the fixed order that PyTorch runs,
``torch.distributed.pipelining.schedules.ScheduleZBVZeroBubble`` (made for equal f, b and w).
"""

from __future__ import annotations

import numpy as np

from prism_cp.pipeline.schedules.base import OpType, Orders, Schedule, count_microbatches


class ZeroBubbleV(Schedule):
    """Rank r holds virtual stages r and 2·pp-1-r, so the last rank turns the micro-batch round by itself."""

    name = "zb-v"
    splits_backward = True

    def why_not(self, pp: int, vpp: int, num_microbatches: int) -> str | None:
        """Needs vpp = 2 and enough micro-batches to fill the V."""
        if vpp != 2:
            return f"zb-v has two virtual stages per rank, vpp is {vpp}"
        if num_microbatches < 2 * pp - 1:
            return f"zb-v needs at least 2·pp-1 = {2 * pp - 1} micro-batches, there are {num_microbatches}"
        return None

    def virtual_stages(self, pp: int, vpp: int) -> tuple[tuple[int, int], ...]:
        """Down the ranks and up again."""
        return tuple((min(stage, 2 * pp - 1 - stage), stage) for stage in range(2 * pp))

    def orders(self, pp: int, vpp: int, num_microbatches: int) -> Orders:
        """Fill the first leg, alternate the legs, then one forward, input and weight gradient of each leg in turn."""
        f, b, w = OpType.FORWARD, OpType.INPUT_GRAD, OpType.WEIGHT_GRAD
        orders = []
        for rank in range(pp):
            ops = [(f, 0)] * (2 * (pp - rank) - 1)
            ops += [(f, 1), (f, 0)] * rank
            ops += [(f, 1), (b, 1), (w, 1)] * (pp - rank)
            ops += [(f, 0), (b, 0), (w, 0), (f, 1), (b, 1), (w, 1)] * (num_microbatches - 2 * pp + rank + 1)
            ops += [(b, 0), (w, 0), (f, 1), (b, 1), (w, 1)] * (pp - rank - 1)
            ops += [(b, 0), (b, 1)] * rank
            ops += [(b, 0), (w, 0)] * (pp - rank)
            ops += [(w, 1)] * rank + [(w, 0)] * rank
            types, leg = np.array(ops).T
            orders.append(count_microbatches(types, np.where(leg == 0, rank, 2 * pp - 1 - rank)))
        return orders


SCHEDULE = ZeroBubbleV()
