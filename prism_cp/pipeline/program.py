"""Pipeline room: a schedule's op orders flattened into arrays in an order in which they can be executed.

Everything that depends on (schedule, pp, vpp, num_microbatches) alone is done here once and kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from prism_cp.errors import InstanceError
from prism_cp.pipeline.schedules import get_schedule
from prism_cp.pipeline.schedules.base import RESULT_OF, Op, OpType, Schedule

# An op takes about 40 bytes, so the programs kept take at most 160 MB unless one alone is larger.
MOST_OPS_KEPT = 4_000_000

Int32 = NDArray[np.int32]
Int64 = NDArray[np.int64]
Links: TypeAlias = tuple[Int32, Int32, NDArray[np.bool_], bool, Int32, int, int, Int32, NDArray[np.bool_]]


@dataclass(frozen=True, eq=False)
class Program:
    """Ops numbered so that every op comes after all ops it waits for.

    Attributes
    ----------
    op_type, virtual_stage, microbatch, rank : int32 arrays [ops]
    code : int32 array [ops]
        ``op_type · num_stages + virtual_stage``: where the op's duration stands in a flat table.
    data_predecessor : int32 array [ops]
        The op on this or another rank whose result it needs; -1 when the order of its rank already implies it.
    rank_predecessor : int32 array [ops]
        The op before it on its rank; -1 for the first.
    crosses : bool array [ops]
        Whether the data predecessor is on another rank, so that one transfer lies between.
    partner : int32 array [ops]
        The other op of an overlapped pair, -1 for all others.
    block_predecessor : int32 array [ops]
        For an overlapped forward the data predecessor of its partner, which the block waits for too; -1 for all others.
    block_crosses : bool array [ops]
        Whether that one is on another rank.
    opening : int32 array [ops]
        For an overlapped backward its partner, with which its block begins; -1 for all others.
    has_blocks : bool
        Whether there are overlapped pairs at all.
    rank_ops : list of int32 arrays
        Ops of every rank in the rank's order.
    index : int32 array [3, num_stages, microbatches]
        Op number of the forward, of the backward or input gradient, and of the weight gradient; -1 where none is.
    previous_stage, next_stage : int32 arrays [num_stages]
        Neighbours in the chain, -1 at its ends.
    """

    schedule: Schedule
    pp: int
    num_stages: int
    num_microbatches: int
    op_type: Int32
    virtual_stage: Int32
    microbatch: Int32
    rank: Int32
    code: Int32
    data_predecessor: Int32
    rank_predecessor: Int32
    crosses: NDArray[np.bool_]
    partner: Int32
    block_predecessor: Int32
    block_crosses: NDArray[np.bool_]
    opening: Int32
    has_blocks: bool
    rank_ops: list[Int32]
    index: Int32
    previous_stage: Int32
    next_stage: Int32

    @property
    def links(self) -> Links:
        """What every kernel needs of a program, in the order of their first parameters."""
        factor = self.schedule.overlap_factor
        return (
            self.code,
            self.data_predecessor,
            self.crosses,
            self.has_blocks,
            self.opening,
            factor.numerator,
            factor.denominator,
            self.block_predecessor,
            self.block_crosses,
        )

    def op(self, number: int) -> Op:
        """The op of that number, readable."""
        return Op(OpType(self.op_type[number]), int(self.virtual_stage[number]), int(self.microbatch[number]))


_kept: OrderedDict[tuple[Schedule, int, int, int], Program] = OrderedDict()  # the latest asked for is last


def check_sizes(schedule: Schedule, pp: int, vpp: int, num_microbatches: int) -> None:
    """Raise InstanceError when the schedule cannot run with these sizes."""
    for key, value in (("pp", pp), ("vpp", vpp), ("num_microbatches", num_microbatches)):
        if value < 1:
            raise InstanceError(f"layout.{key}", f"{value} is not positive", "an integer of at least 1")
    reason = schedule.why_not(pp, vpp, num_microbatches)
    if reason is not None:
        raise InstanceError("layout.schedule", reason)


def get_program(schedule: str | Schedule, pp: int, vpp: int, num_microbatches: int) -> Program:
    """The program of a schedule and its sizes, from the cache when it was asked for lately.

    Raises
    ------
    InstanceError
        The schedule is unknown, refuses these sizes, or its orders are incomplete or deadlock.
    """
    key = (get_schedule(schedule), pp, vpp, num_microbatches)
    program = _kept.get(key)
    if program is None:
        program = _kept[key] = _build(*key)
        while len(_kept) > 1 and sum(len(kept.code) for kept in _kept.values()) > MOST_OPS_KEPT:
            _kept.popitem(last=False)
    _kept.move_to_end(key)
    return program


def _build(schedule: Schedule, pp: int, vpp: int, num_microbatches: int) -> Program:
    check_sizes(schedule, pp, vpp, num_microbatches)
    stage_rank = np.array([rank for rank, _ in schedule.virtual_stages(pp, vpp)], dtype=np.int32)
    num_stages = len(stage_rank)
    previous_stage = np.full(num_stages, -1, dtype=np.int32)
    next_stage = np.full(num_stages, -1, dtype=np.int32)
    for chain in schedule.chains(pp, vpp):
        previous_stage[list(chain[1:])] = chain[:-1]
        next_stage[list(chain[:-1])] = chain[1:]

    orders = schedule.orders(pp, vpp, num_microbatches)
    if len(orders) != pp or not all(len(order) for order in orders):
        raise _broken(schedule, f"it orders {len(orders)} of {pp} ranks, or leaves one without ops")
    rows = np.concatenate(orders)
    offsets = np.cumsum([0, *(len(order) for order in orders)])
    rank = np.repeat(np.arange(pp, dtype=np.int32), np.diff(offsets))
    if np.any(stage_rank[rows[:, 1]] != rank):
        raise _broken(schedule, "a rank executes a virtual stage that it does not hold")
    index, predecessor = _link(schedule, rows, num_stages, previous_stage, next_stage)
    partner = _partners(schedule, rows, rank)
    # Results of a block leave it when it ends: who needs its forward waits for its backward.
    leaves = np.where(rows[:, 0] == OpType.OVERLAPPED_FORWARD, partner, np.arange(len(rows), dtype=np.int32))
    predecessor = np.where(predecessor >= 0, leaves[predecessor], np.int32(-1))
    opens = rows[:, 0] == OpType.OVERLAPPED_FORWARD
    block_predecessor = np.where(opens, predecessor[partner], np.int32(-1))

    sequence, reached = _executable_order(offsets, predecessor, block_predecessor)
    if len(sequence) < len(rows):
        stuck = [
            f"rank {r} at {Op(OpType(rows[i, 0]), int(rows[i, 1]), int(rows[i, 2]))}"
            for r, i in enumerate(reached)
            if i < offsets[r + 1]
        ]
        raise _broken(schedule, "its op orders deadlock: " + "; ".join(stuck[:4]))
    number = np.empty(len(rows), dtype=np.int32)
    number[sequence] = np.arange(len(rows), dtype=np.int32)

    rank_predecessor = np.arange(-1, len(rows) - 1, dtype=np.int32)
    rank_predecessor[offsets[:-1]] = -1
    crosses = (predecessor >= 0) & (rank[predecessor] != rank)
    block_crosses = (block_predecessor >= 0) & (rank[block_predecessor] != rank)
    columns = np.ascontiguousarray(rows[sequence].T)
    return Program(
        schedule=schedule,
        pp=pp,
        num_stages=num_stages,
        num_microbatches=num_microbatches,
        op_type=columns[0],
        virtual_stage=columns[1],
        microbatch=columns[2],
        rank=rank[sequence],
        code=columns[0] * np.int32(num_stages) + columns[1],
        data_predecessor=_renumber(number, predecessor)[sequence],
        rank_predecessor=_renumber(number, rank_predecessor)[sequence],
        crosses=crosses[sequence],
        partner=_renumber(number, partner)[sequence],
        block_predecessor=_renumber(number, block_predecessor)[sequence],
        block_crosses=block_crosses[sequence],
        opening=_renumber(number, np.where(rows[:, 0] == OpType.OVERLAPPED_BACKWARD, partner, np.int32(-1)))[sequence],
        has_blocks=bool(opens.any()),
        rank_ops=[number[offsets[r] : offsets[r + 1]] for r in range(pp)],
        index=_renumber(number, index),
        previous_stage=previous_stage,
        next_stage=next_stage,
    )


def _link(
    schedule: Schedule, rows: Int32, num_stages: int, previous_stage: Int32, next_stage: Int32
) -> tuple[Int32, Int32]:
    """Where every op stands, and the data predecessor of every op, both numbered rank by rank."""
    kind = RESULT_OF[rows[:, 0]]
    stage, microbatch = rows[:, 1], rows[:, 2]
    index = np.full((3, num_stages, int(microbatch.max()) + 1), -1, dtype=np.int32)
    index[kind, stage, microbatch] = np.arange(len(rows), dtype=np.int32)
    if np.count_nonzero(index >= 0) != len(rows):
        raise _broken(schedule, "an op occurs twice")
    forward, backward, weight = index
    if np.any((forward >= 0) != (backward >= 0)) or np.any(backward < forward):
        raise _broken(schedule, "a forward has no backward after it on its rank")
    split = np.where(backward >= 0, rows[backward, 0] == OpType.INPUT_GRAD, False)
    if np.any(split != (weight >= 0)) or np.any(split & (weight < backward)):
        raise _broken(schedule, "an input gradient has no weight gradient after it on its rank")

    neighbour = np.where(kind == 0, previous_stage[stage], np.where(kind == 1, next_stage[stage], -1))
    predecessor = np.where(neighbour >= 0, index[np.minimum(kind, 1), neighbour, microbatch], -1).astype(np.int32)
    if np.any((neighbour >= 0) & (predecessor < 0)):
        raise _broken(schedule, "a micro-batch does not pass every virtual stage of its chain")
    return index, predecessor


def _partners(schedule: Schedule, rows: Int32, rank: Int32) -> Int32:
    """The other op of every overlapped pair, -1 elsewhere."""
    opens = np.flatnonzero(rows[:, 0] == OpType.OVERLAPPED_FORWARD)
    closes = np.flatnonzero(rows[:, 0] == OpType.OVERLAPPED_BACKWARD)
    paired = len(opens) == len(closes) and np.array_equal(opens + 1, closes)
    if not paired or np.any(rank[opens] != rank[closes]) or np.any(np.all(rows[opens, 1:] == rows[closes, 1:], axis=1)):
        raise _broken(
            schedule, "an overlapped forward is not followed by the overlapped backward of another micro-batch"
        )
    partner = np.full(len(rows), -1, dtype=np.int32)
    partner[opens], partner[closes] = closes, opens
    return partner


def _renumber(number: Int32, old: Int32) -> Int32:
    """New numbers of old ones, -1 kept."""
    return np.where(old >= 0, number[old], np.int32(-1))


def _broken(schedule: Schedule, problem: str) -> InstanceError:
    return InstanceError("layout.schedule", f"{schedule.name} has unusable op orders: {problem}")


def _advance_ranks(offsets: Int64, predecessor: Int32, block_predecessor: Int32) -> tuple[Int64, Int64]:
    """Let every rank in turn run until it must wait; returns the sequence and where every rank stopped."""
    done = np.zeros(len(predecessor), dtype=np.bool_)
    sequence = np.empty(len(predecessor), dtype=np.int64)
    position = offsets[:-1].copy()
    count = 0
    moved = True
    while moved:
        moved = False
        for rank in range(len(position)):
            i = position[rank]
            while i < offsets[rank + 1]:
                data, block = predecessor[i], block_predecessor[i]
                if (data >= 0 and not done[data]) or (block >= 0 and not done[block]):
                    break
                done[i] = True
                sequence[count] = i
                count += 1
                i += 1
                moved = True
            position[rank] = i
    return sequence[:count], position


_executable_order: Callable[[Int64, Int32, Int32], tuple[Int64, Int64]] = njit(cache=True)(_advance_ranks)
