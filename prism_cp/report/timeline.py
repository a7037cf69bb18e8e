"""Report room: when every op and every transfer of a plan's pipeline runs, for traces and pictures.

Times count `Plan.time_unit_s`. Starts come from the simulator; an op's length is its virtual stage's time. The forward
and the backward of an overlapped pair are shown one after the other, each with its share of the pair's length.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prism_cp.errors import InstanceError, PlanError
from prism_cp.pipeline import OpType, get_schedule, simulate
from prism_cp.pipeline.schedules.base import RESULT_OF
from prism_cp.pipeline_schedule import pipeline_schedule
from prism_cp.plan import Plan, PlanLayout

Int64 = NDArray[np.int64]
FORWARD_RESULT, GRADIENT_RESULT = 0, 1  # what RESULT_OF says of forwards, and of whole and input-gradient backwards


@dataclass(frozen=True, eq=False)
class RankRun:
    """Ops of one rank in their order: parallel int64 arrays."""

    op_type: Int64
    virtual_stage: Int64
    microbatch: Int64
    start: Int64
    end: Int64

    def __len__(self) -> int:
        return len(self.start)


class Transfer(NamedTuple):
    """An activation or a gradient on its way from one rank to another."""

    source: int  # rank
    target: int  # rank
    is_gradient: bool
    virtual_stage: int  # that receives
    microbatch: int
    depart: int
    arrive: int
    used: int  # start of the op that needs it


class Cut(NamedTuple):
    """What is left out of a long run: everything between two moments."""

    first_end: int
    last_start: int


@dataclass(frozen=True, eq=False)
class Timeline:
    """One run of a plan's pipeline.

    Attributes
    ----------
    layout : PlanLayout
    ranks : tuple of RankRun
    chains : tuple of tuples of int
        Virtual stages in the order a micro-batch passes them; two chains where directions are mirrored.
    pipeline_time, barrier : int
    """

    plan: Plan
    layout: PlanLayout
    ranks: tuple[RankRun, ...]
    chains: tuple[tuple[int, ...], ...]
    pipeline_time: int
    barrier: int

    @property
    def num_ops(self) -> int:
        """Ops of all ranks."""
        return sum(len(rank) for rank in self.ranks)

    def transfers(self) -> list[Transfer]:
        """Every transfer between ranks, in order of departure."""
        assert self.plan.p2p is not None
        start, leave = self._results()
        rank_of = [stage.rank for stage in self.plan.virtual_stages]
        found = []
        for chain in self.chains:
            pairs = [(left, right, FORWARD_RESULT) for left, right in pairwise(chain)]
            pairs += [(right, left, GRADIENT_RESULT) for left, right in pairwise(chain)]
            for giver, taker, result in pairs:
                if rank_of[giver] == rank_of[taker]:
                    continue
                for microbatch in np.flatnonzero(leave[result, giver] >= 0).tolist():
                    depart = int(leave[result, giver, microbatch])
                    found.append(
                        Transfer(
                            rank_of[giver],
                            rank_of[taker],
                            result == GRADIENT_RESULT,
                            taker,
                            microbatch,
                            depart,
                            depart + self.plan.p2p,
                            int(start[result, taker, microbatch]),
                        )
                    )
        return sorted(found, key=lambda transfer: (transfer.depart, transfer.source, transfer.microbatch))

    def _results(self) -> tuple[Int64, Int64]:
        """Start of the op that makes a result and moment the result leaves, [result, virtual stage, micro-batch]."""
        shape = (2, len(self.plan.virtual_stages), self.layout.num_microbatches)
        start, leave = np.full(shape, -1, np.int64), np.full(shape, -1, np.int64)
        for rank in self.ranks:
            leaves = rank.end.copy()
            opens = np.flatnonzero(rank.op_type == OpType.OVERLAPPED_FORWARD)
            leaves[opens] = rank.end[opens + 1]  # both results of an overlapped pair leave when the pair ends
            result = RESULT_OF[rank.op_type]
            made = result <= GRADIENT_RESULT
            where = (result[made], rank.virtual_stage[made], rank.microbatch[made])
            start[where], leave[where] = rank.start[made], leaves[made]
        return start, leave

    def cut(self, microbatches: int) -> Cut | None:
        """The middle to leave out so that warm-up and cool-down stay, each with about that many micro-batches.

        The first part ends when the last virtual stage of every chain has executed as many ops as `microbatches` have
        there; the last part begins as many ops before its end. None when that leaves nothing out.
        """
        first_end, last_start = 0, self.pipeline_time
        for chain in self.chains:
            rank = self.ranks[self.plan.virtual_stages[chain[-1]].rank]
            mine = np.flatnonzero(rank.virtual_stage == chain[-1])
            through = len(set(rank.microbatch[mine].tolist()))
            kept = microbatches * len(mine) // through
            if 2 * kept >= len(mine):
                return None
            first_end = max(first_end, int(rank.end[mine[kept - 1]]))
            last_start = min(last_start, int(rank.start[mine[len(mine) - kept]]))
        return Cut(first_end, last_start) if first_end < last_start else None


def plan_timeline(plan: Plan) -> Timeline:
    """Run the pipeline of a plan.

    Raises
    ------
    PlanError
        The plan holds no layout, or its numbers contradict each other.
    """
    layout = plan.layout
    if layout is None or plan.p2p is None or plan.barrier is None:
        raise PlanError("layout", f"is null (status {plan.status})", "a plan with a layout")
    try:
        schedule = get_schedule(pipeline_schedule(plan.instance, layout.schedule))
        reason = schedule.why_not(layout.pp, layout.vpp, layout.num_microbatches)
    except InstanceError as error:
        raise PlanError(error.key, error.problem, error.accepted) from error
    if reason is not None:
        raise PlanError("layout.schedule", reason)
    placed = [rank for rank, _ in schedule.virtual_stages(layout.pp, layout.vpp)]
    if [stage.rank for stage in plan.virtual_stages] != placed:
        raise PlanError("virtual_stages", f"are not on the ranks that {layout.schedule} puts them on", str(placed))
    if len(plan.ranks) != layout.pp:
        raise PlanError("ranks", f"{len(plan.ranks)} ranks", f"pp = {layout.pp}")
    forward = np.array([stage.forward for stage in plan.virtual_stages])
    input_grad = np.array([stage.input_grad for stage in plan.virtual_stages])
    weight_grad = np.array([stage.weight_grad for stage in plan.virtual_stages])
    run = simulate(
        schedule,
        layout.pp,
        layout.vpp,
        layout.num_microbatches,
        forward.tolist(),
        input_grad.tolist(),
        weight_grad.tolist(),
        [rank.head for rank in plan.ranks],
        [rank.tail for rank in plan.ranks],
        plan.p2p,
    )
    if run.pipeline_time != plan.pipeline_time:
        raise PlanError("pipeline_time", f"is {plan.pipeline_time}, its stage times give {run.pipeline_time}")
    whole = input_grad + weight_grad
    durations = np.stack((forward, whole, input_grad, weight_grad, forward, whole))  # by OpType
    ranks = []
    orders = schedule.orders(layout.pp, layout.vpp, layout.num_microbatches)
    for order, start in zip(orders, run.starts, strict=True):
        op_type, stage, microbatch = order.T.astype(np.int64)
        end = start + durations[op_type, stage]
        opens = np.flatnonzero(op_type == OpType.OVERLAPPED_FORWARD)
        if len(opens):
            forward_time, backward_time = (durations[op_type[i], stage[i]] for i in (opens, opens + 1))
            both, length = np.maximum(forward_time + backward_time, 1), end[opens + 1] - start[opens]
            end[opens] = start[opens] + length * forward_time // both
            start[opens + 1] = end[opens]
        ranks.append(RankRun(op_type, stage, microbatch, start, end))
    chains = schedule.chains(layout.pp, layout.vpp)
    return Timeline(plan, layout, tuple(ranks), chains, run.pipeline_time, plan.barrier)
