"""Pipeline room: the compiled loops of the simulator. They see arrays of a `Program`, never a schedule."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit
from numpy.typing import NDArray

from prism_cp.pipeline.program import Int32, Int64


def _pair_length(forward: int, backward: int, numerator: int, denominator: int) -> int:
    """Length of an overlapped pair; `denominator` divides the times."""
    return max(forward, backward, (forward + backward) // denominator * numerator)


pair_length: Callable[..., int] = njit(cache=True)(_pair_length)


def _run(
    code: Int32,
    data_predecessor: Int32,
    crosses: NDArray[np.bool_],
    has_blocks: bool,
    opening: Int32,
    numerator: int,
    denominator: int,
    block_predecessor: Int32,
    block_crosses: NDArray[np.bool_],
    rank: Int32,
    durations: Int64,
    head: Int64,
    tail: Int64,
    p2p: int,
    end: Int64,
) -> int:
    """Fill `end` with the end of every op and return the pipeline time.

    The end of an overlapped forward is when it would end alone; the pair ends with the backward.
    """
    clock = head.copy()
    for i in range(len(code)):
        if has_blocks and opening[i] >= 0:
            alone = durations[code[opening[i]]]
            begin = end[opening[i]] - alone
            end[i] = begin + pair_length(alone, durations[code[i]], numerator, denominator)
            clock[rank[i]] = end[i]
            continue
        start = clock[rank[i]]
        data = data_predecessor[i]
        if data >= 0:
            arrival = end[data]
            if crosses[i]:
                arrival += p2p
            if arrival > start:
                start = arrival
        if has_blocks and block_predecessor[i] >= 0:
            arrival = end[block_predecessor[i]]
            if block_crosses[i]:
                arrival += p2p
            if arrival > start:
                start = arrival
        start += durations[code[i]]
        end[i] = start
        clock[rank[i]] = start
    latest = int(clock[0] + tail[0])
    for r in range(1, len(clock)):
        latest = max(latest, int(clock[r] + tail[r]))
    return latest


longest_path_length: Callable[..., int] = njit(cache=True)(_run)


def _set_durations(
    durations: Int64, num_stages: int, stage: int, forward: int, input_grad: int, weight_grad: int
) -> None:
    """Write the durations of one virtual stage's ops, which stand one `OpType` after another."""
    durations[stage] = forward
    durations[num_stages + stage] = input_grad + weight_grad
    durations[2 * num_stages + stage] = input_grad
    durations[3 * num_stages + stage] = weight_grad
    durations[4 * num_stages + stage] = forward
    durations[5 * num_stages + stage] = input_grad + weight_grad


set_durations: Callable[..., None] = njit(cache=True)(_set_durations)


def _run_batch(
    code: Int32,
    data_predecessor: Int32,
    crosses: NDArray[np.bool_],
    has_blocks: bool,
    opening: Int32,
    numerator: int,
    denominator: int,
    block_predecessor: Int32,
    block_crosses: NDArray[np.bool_],
    rank: Int32,
    durations: Int64,
    heads: Int64,
    tails: Int64,
    p2p: int,
) -> Int64:
    end = np.empty(len(code), dtype=np.int64)
    times = np.empty(len(durations), dtype=np.int64)
    for k in range(len(durations)):
        times[k] = longest_path_length(
            code,
            data_predecessor,
            crosses,
            has_blocks,
            opening,
            numerator,
            denominator,
            block_predecessor,
            block_crosses,
            rank,
            durations[k],
            heads[k],
            tails[k],
            p2p,
            end,
        )
    return times


longest_path_lengths: Callable[..., Int64] = njit(cache=True)(_run_batch)


def _trace_back(
    code: Int32,
    data_predecessor: Int32,
    crosses: NDArray[np.bool_],
    has_blocks: bool,
    opening: Int32,
    numerator: int,
    denominator: int,
    block_predecessor: Int32,
    block_crosses: NDArray[np.bool_],
    rank_predecessor: Int32,
    durations: Int64,
    p2p: int,
    end: Int64,
    last: int,
) -> Int64:
    """A longest path into `last`, first op first. Among equals the rank's own order is followed: fewer transfers.

    Of an overlapped pair the path has both ops where their sum matters, else the longer one.
    """
    path = np.empty(last + 1, dtype=np.int64)
    length = 0
    op = last
    while op >= 0:
        if has_blocks and opening[op] >= 0:
            backward, op = op, opening[op]
            alone, other = durations[code[op]], durations[code[backward]]
            both = (alone + other) // denominator * numerator
            if both >= max(alone, other) or other > alone:
                path[length] = backward
                length += 1
            if both >= max(alone, other) or alone >= other:
                path[length] = op
                length += 1
        else:
            path[length] = op
            length += 1
        start = end[op] - durations[code[op]]
        before, data = rank_predecessor[op], data_predecessor[op]
        if before >= 0 and end[before] == start:
            op = before
        elif data >= 0 and end[data] + (p2p if crosses[op] else 0) == start:
            op = data
        elif (
            has_blocks
            and block_predecessor[op] >= 0
            and end[block_predecessor[op]] + (p2p if block_crosses[op] else 0) == start
        ):
            op = block_predecessor[op]
        else:  # only the rank's head came before it
            op = -1
    reversed_path: Int64 = path[:length][::-1].copy()
    return reversed_path


trace_back: Callable[..., Int64] = njit(cache=True)(_trace_back)
