"""Pipeline room, schedules: what a schedule has to say so that the generic machinery can run it.

A schedule is data: which rank holds which virtual stage, and in which order every rank executes its ops. Simulator,
event graph, live vectors and cuts read that data and never ask which schedule it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import IntEnum
from fractions import Fraction
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from prism_cp.errors import InstanceError

Orders: TypeAlias = list[NDArray[np.int32]]


class OpType(IntEnum):
    """What a rank executes for one virtual stage and one micro-batch."""

    FORWARD = 0
    BACKWARD = 1  # input gradient and weight gradient in one go
    INPUT_GRAD = 2  # the gradient the previous virtual stage waits for, recomputation included
    WEIGHT_GRAD = 3  # the rest of a split backward; nobody on another rank waits for it
    # A forward and the backward of another micro-batch executed as one block, in this order in the rank's order: the
    # block starts when the data of both are there, and both results leave when it ends. It lasts as long as the longer
    # of both, and at least the schedule's overlap factor times both together.
    OVERLAPPED_FORWARD = 4
    OVERLAPPED_BACKWARD = 5


FORWARDS = (OpType.FORWARD, OpType.OVERLAPPED_FORWARD)
WHOLE_BACKWARDS = (OpType.BACKWARD, OpType.OVERLAPPED_BACKWARD)
# Which result an op makes: 0 forward, 1 input gradient (alone or with the weight gradient), 2 weight gradient alone.
RESULT_OF = np.array([0, 1, 1, 2, 0, 1], dtype=np.int32)


class Op(NamedTuple):
    """One row of an op order."""

    type: OpType
    virtual_stage: int
    microbatch: int


class Schedule(ABC):
    """Op orders of one pipeline schedule, for any pipeline size and number of micro-batches.

    Data dependencies are the same for all schedules and need not be said:

    * the forward of a virtual stage needs the forward of the one before it in its chain,
    * the backward (or input gradient) needs the one of the virtual stage after it, and its own forward,
    * the weight gradient needs its own input gradient.

    Attributes
    ----------
    name : str
        How users and layouts call it.
    splits_backward : bool
        Whether weight gradients are ops of their own (at least for some micro-batches).
    overlap_factor : Fraction
        Length of an overlapped pair over the sum of both, 1 when overlapping hides nothing; never less than the longer
        of both.
    """

    name: str
    splits_backward: bool = False
    overlap_factor: Fraction = Fraction(1)

    def variant(self, options: Mapping[str, str]) -> Schedule:
        """The schedule with some options changed.

        Raises
        ------
        InstanceError
            It has no such option, or does not take that value.
        """
        for key, value in options.items():
            raise InstanceError("layout.schedule", f"{self.name} has no option {key}={value}")
        return self

    @abstractmethod
    def why_not(self, pp: int, vpp: int, num_microbatches: int) -> str | None:
        """Why these sizes cannot run under this schedule, as a sentence; None when they can."""

    @abstractmethod
    def virtual_stages(self, pp: int, vpp: int) -> tuple[tuple[int, int], ...]:
        """(rank, piece) of every virtual stage, in forward order; mirrored copies share their piece."""

    @abstractmethod
    def orders(self, pp: int, vpp: int, num_microbatches: int) -> Orders:
        """Op order of every rank: arrays ``[ops, 3]`` of op type, virtual stage and micro-batch."""

    def num_pieces(self, pp: int, vpp: int) -> int:
        """Contiguous pieces the model is cut into."""
        return 1 + max(piece for _, piece in self.virtual_stages(pp, vpp))

    def chains(self, pp: int, vpp: int) -> tuple[tuple[int, ...], ...]:
        """Virtual stages that a micro-batch runs through; more than one chain where directions are mirrored."""
        return (tuple(range(len(self.virtual_stages(pp, vpp)))),)

    def turns(self, pp: int, vpp: int, num_microbatches: int) -> tuple[tuple[Op, Op], ...]:
        """Pairs (forward, backward) on the last virtual stage of a chain where long paths change direction.

        For every pair the cut generator adds the paths that work on one rank before the turn and on another one
        after it. They are needed where all forwards end before the backwards begin; elsewhere the ranks' own paths
        do, and the default is none.
        """
        return ()

    def live_microbatches(self, pp: int, vpp: int, num_microbatches: int) -> int:
        """A number of micro-batches, at most `num_microbatches`, that already has the same live vectors.

        Only for speed. Override where the order is provably periodic; the default replays everything.
        """
        return num_microbatches


def op_rows(
    op_type: OpType, virtual_stage: int | NDArray[np.int64], microbatches: NDArray[np.int64]
) -> NDArray[np.int32]:
    """Rows of an order that differ in the micro-batch (and possibly the virtual stage) only; shape ``[n, 3]``."""
    rows = np.empty((len(microbatches), 3), dtype=np.int32)
    rows[:, 0] = op_type
    rows[:, 1] = virtual_stage
    rows[:, 2] = microbatches
    return rows


def one_forward_one_backward(
    forwards: NDArray[np.int32], backwards: NDArray[np.int32], warmup: int
) -> NDArray[np.int32]:
    """`warmup` forwards, then forward and backward in turn, then the backwards that are left."""
    total = len(forwards)
    order = np.empty((2 * total, 3), dtype=np.int32)
    order[:warmup] = forwards[:warmup]
    steady = order[warmup : 2 * total - warmup]
    steady[0::2] = forwards[warmup:]
    steady[1::2] = backwards[: total - warmup]
    order[2 * total - warmup :] = backwards[total - warmup :]
    return order


def count_microbatches(types: NDArray[np.integer], virtual_stages: NDArray[np.integer]) -> NDArray[np.int32]:
    """An order in which every virtual stage takes its micro-batches first come, first served.

    Parameters
    ----------
    types, virtual_stages : int arrays [ops]

    Returns
    -------
    int32 array [ops, 3]
        The n-th forward of a virtual stage has micro-batch n; so have its n-th backward or input gradient, and a
        weight gradient the micro-batch of the oldest input gradient that still waits for it.
    """
    microbatches = np.empty(len(types), dtype=np.int64)
    for stage in np.unique(virtual_stages):
        mine = virtual_stages == stage
        for result in (0, 1):
            ops = np.flatnonzero(mine & (RESULT_OF[types] == result))
            microbatches[ops] = np.arange(len(ops))
        input_grads = np.flatnonzero(mine & (types == OpType.INPUT_GRAD))
        microbatches[mine & (types == OpType.WEIGHT_GRAD)] = microbatches[input_grads]
    return np.stack((types, virtual_stages, microbatches), axis=1).astype(np.int32)


def overlap_option(schedule: str, options: Mapping[str, str]) -> Fraction:
    """The overlap factor that a schedule's options state, their only one; 1 when they state none."""
    unknown = set(options) - {"overlap_factor"}
    if unknown:
        raise InstanceError("layout.schedule", f"{schedule} has no option {min(unknown)}", "overlap_factor")
    factor = Fraction(options.get("overlap_factor", "1"))
    if not 0 <= factor <= 1:
        raise InstanceError("job.overlap_factor", f"{factor} is out of range", "0 … 1")
    return factor
