"""Pipeline room: the exact pipeline time of any schedule, as the longest path through its ops, in integers.

Model: every rank executes its ops in order, the first not before its head time; an op starts when the op before it on
its rank and the data it needs are there; a transfer between ranks takes `p2p` and occupies no rank. An overlapped pair
lasts max(F, B + W, factor·(F + B + W)). The pipeline ends when the last rank has finished its ops and its tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from prism_cp.errors import InstanceError
from prism_cp.pipeline.kernels import longest_path_length, longest_path_lengths, trace_back
from prism_cp.pipeline.path_cut import PathCut, path_cut
from prism_cp.pipeline.program import Int64, Program, get_program
from prism_cp.pipeline.schedules.base import Op, Schedule

Times: TypeAlias = Sequence[int] | Int64

LARGEST_TIME = 2**62


@dataclass(frozen=True, eq=False)
class Simulation:
    """What one run of the pipeline does.

    Attributes
    ----------
    pipeline_time : int
        Heads and tails included.
    starts : list of int64 arrays
        Start of every op of every rank, in the rank's op order; an overlapped pair's backward ends with the pair.
    critical_path : PathCut
        A longest path; its value under the simulated times is `pipeline_time`.
    critical_ops : tuple of Op
        The ops of that path, first to last.
    """

    pipeline_time: int
    starts: list[Int64]
    critical_path: PathCut
    critical_ops: tuple[Op, ...]


def simulate(
    schedule: str | Schedule,
    pp: int,
    vpp: int,
    num_microbatches: int,
    forward: Times,
    input_grad: Times,
    weight_grad: Times,
    head: Times,
    tail: Times,
    p2p: int,
) -> Simulation:
    """Run the pipeline once.

    Parameters
    ----------
    schedule, pp, vpp, num_microbatches
        Which op orders.
    forward, input_grad, weight_grad : sequence of int [virtual stages]
        Times per micro-batch; a whole backward takes ``input_grad + weight_grad``. The denominator of the schedule's
        overlap factor divides them.
    head, tail : sequence of int [pp]
        Times of a rank before its first and after its last op.
    p2p : int
        Time of one transfer between ranks.

    Raises
    ------
    InstanceError
        The schedule refuses the sizes, or the times could exceed 62 bits.
    """
    program = get_program(schedule, pp, vpp, num_microbatches)
    durations, heads, tails = _one_row(program, forward, input_grad, weight_grad, head, tail, p2p)
    end = np.empty(len(program.code), dtype=np.int64)
    time = int(_longest(program, durations, heads, tails, p2p, end))
    finish = [int(end[ops[-1]]) + int(tails[rank]) for rank, ops in enumerate(program.rank_ops)]
    last = int(program.rank_ops[finish.index(time)][-1])
    path = trace_back(*program.links, program.rank_predecessor, durations, p2p, end, last)
    starts = end - durations[program.code]
    return Simulation(
        pipeline_time=time,
        starts=[starts[ops] for ops in program.rank_ops],
        critical_path=path_cut(program, path),
        critical_ops=tuple(program.op(int(number)) for number in path),
    )


def pipeline_time(
    schedule: str | Schedule,
    pp: int,
    vpp: int,
    num_microbatches: int,
    forward: Times,
    input_grad: Times,
    weight_grad: Times,
    head: Times,
    tail: Times,
    p2p: int,
) -> int:
    """The same as ``simulate(...).pipeline_time``, faster."""
    program = get_program(schedule, pp, vpp, num_microbatches)
    durations, heads, tails = _one_row(program, forward, input_grad, weight_grad, head, tail, p2p)
    return int(_longest(program, durations, heads, tails, p2p, np.empty(len(program.code), dtype=np.int64)))


def pipeline_times(
    schedule: str | Schedule,
    pp: int,
    vpp: int,
    num_microbatches: int,
    forward: ArrayLike,
    input_grad: ArrayLike,
    weight_grad: ArrayLike,
    head: ArrayLike,
    tail: ArrayLike,
    p2p: int,
) -> Int64:
    """Pipeline times of many plans of one schedule.

    Parameters
    ----------
    forward, input_grad, weight_grad : int arrays [plans, virtual stages]
    head, tail : int arrays [plans, pp]

    Returns
    -------
    int64 array [plans]
    """
    program = get_program(schedule, pp, vpp, num_microbatches)
    durations, heads, tails = _tables(program, forward, input_grad, weight_grad, head, tail, p2p)
    return longest_path_lengths(*program.links, program.rank, durations, heads, tails, p2p)


def _one_row(
    program: Program, forward: Times, input_grad: Times, weight_grad: Times, head: Times, tail: Times, p2p: int
) -> tuple[Int64, Int64, Int64]:
    f, b, w, heads, tails = (_row(times) for times in (forward, input_grad, weight_grad, head, tail))
    durations, heads, tails = _tables(program, f, b, w, heads, tails, p2p)
    return durations[0], heads[0], tails[0]


def _tables(
    program: Program,
    forward: ArrayLike,
    input_grad: ArrayLike,
    weight_grad: ArrayLike,
    head: ArrayLike,
    tail: ArrayLike,
    p2p: int,
) -> tuple[Int64, Int64, Int64]:
    """Durations by op code [plans, op types · stages], heads and tails [plans, pp], guarded against overflow."""
    f, b, w = (
        _integers(name, array)
        for name, array in (("forward", forward), ("input_grad", input_grad), ("weight_grad", weight_grad))
    )
    heads, tails = _integers("head", head), _integers("tail", tail)
    for array, width in (
        (f, program.num_stages),
        (b, program.num_stages),
        (w, program.num_stages),
        (heads, program.pp),
        (tails, program.pp),
    ):
        assert array.shape == (len(f), width), f"times of shape {array.shape}, expected {(len(f), width)}"
    # A path meets every op at most once, so no number on the way exceeds this sum.
    per_microbatch = sum(int(array.max(initial=0)) for array in (f, b, w)) * program.num_stages
    transfers = 2 * program.num_microbatches * program.num_stages * int(p2p)
    largest = (
        per_microbatch * program.num_microbatches + transfers + int(heads.max(initial=0)) + int(tails.max(initial=0))
    )
    if largest * program.schedule.overlap_factor.denominator >= LARGEST_TIME:
        raise _overflow(largest)
    if program.has_blocks:
        coarse = program.schedule.overlap_factor.denominator
        assert coarse == 1 or not any(np.any(array % coarse) for array in (f, b, w)), f"times no multiples of {coarse}"
    durations = np.concatenate((f, b + w, b, w, f, b + w), axis=1)  # by OpType
    return durations, heads, tails


def _integers(name: str, times: ArrayLike) -> Int64:
    array = np.asarray(times)
    assert array.dtype.kind in "iu", f"{name} times are {array.dtype}, not integers"
    assert int(array.min(initial=0)) >= 0, f"negative {name} time"
    if int(array.max(initial=0)) >= LARGEST_TIME:
        raise _overflow(int(array.max()))
    return array.astype(np.int64)


def _row(times: Times) -> Int64:
    """One plan's times as an array of one row."""
    try:
        return np.array([[index(time) for time in times]], dtype=np.int64)
    except OverflowError:
        raise _overflow(max(index(time) for time in times)) from None


def _overflow(largest: int) -> InstanceError:
    return InstanceError("time_unit_s", f"pipeline times up to {largest} units overflow", "a coarser time unit")


def _longest(program: Program, durations: Int64, head: Int64, tail: Int64, p2p: int, end: Int64) -> int:
    return longest_path_length(*program.links, program.rank, durations, head, tail, p2p, end)
