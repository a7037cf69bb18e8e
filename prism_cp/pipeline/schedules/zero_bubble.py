"""Pipeline room, schedules: ZB-H1, 1F1B with the weight gradients postponed into the bubble.

Source: Qi et al. 2023, "Zero Bubble Pipeline Parallelism", arXiv:2401.10241, section 3.1;
sail-sg/zero-bubble-pipeline-parallelism. The order is the hand-made one: rank r postpones every weight gradient by r
micro-batches. (The order found by that repository's automatic search depends on the times and is not modelled.)
"""

from __future__ import annotations

import numpy as np

from prism_cp.pipeline.schedules.base import OpType, Orders, Schedule, count_microbatches


class ZeroBubbleH1(Schedule):
    """As many forwards ahead as 1F1B; the weight gradient of micro-batch i follows the input gradient of i + r."""

    name = "zb-h1"
    splits_backward = True

    def why_not(self, pp: int, vpp: int, num_microbatches: int) -> str | None:
        """Any pipeline size and number of micro-batches; one virtual stage per rank."""
        return None if vpp == 1 else f"zb-h1 has one virtual stage per rank, vpp is {vpp} (zb-v has two)"

    def virtual_stages(self, pp: int, vpp: int) -> tuple[tuple[int, int], ...]:
        """Rank r holds piece r."""
        return tuple((rank, rank) for rank in range(pp))

    def orders(self, pp: int, vpp: int, num_microbatches: int) -> Orders:
        """All three kinds of ops in micro-batch order."""
        f, b, w = OpType.FORWARD, OpType.INPUT_GRAD, OpType.WEIGHT_GRAD
        orders = []
        for rank in range(pp):
            m, ahead, late = num_microbatches, min(num_microbatches, pp - 1 - rank), min(num_microbatches, rank)
            steady = m - ahead  # pairs of forward and input gradient
            before = min(steady, late)  # input gradients that no weight gradient follows yet
            types = [f] * ahead + [f, b] * before + [f, b, w] * (steady - before)
            types += [b] * (late - before) + [b, w] * (m - max(steady, late)) + [w] * late
            orders.append(count_microbatches(np.array(types), np.full(len(types), rank)))
        return orders


SCHEDULE = ZeroBubbleH1()
