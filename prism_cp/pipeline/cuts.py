"""Pipeline room: paths every solve starts from, for any schedule.

For every rank four paths that work through the rank's ops, which for 1F1B are (c, f, b: whole, forward and backward
time of a stage, w: warm-up forwards of rank i)

* A: in, all m·c of the rank, out;
* B: in, the first micro-batch to the last stage and back instead of the warm-up, the rest of the rank, out;
* C: in, the rank up to its last forward, that micro-batch to the last stage and back instead of the cool-down, out;
* D: both detours.

"In" and "out" run along the other ranks' first forwards and last backwards, or not at all: a path may begin with the
rank's own head and end with its own tail, which is the work bound head + m·c + tail. Each is a path of the event graph
by construction (and checked to be one), hence a lower bound for every plan. Where overlapped pairs take less than both
ops together, each is there three times: with the share of both, with the forwards alone, and with the backwards alone.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from prism_cp.pipeline.path_cut import PathCut, path_cut
from prism_cp.pipeline.program import Int32, Int64, Program, get_program
from prism_cp.pipeline.schedules import get_schedule
from prism_cp.pipeline.schedules.base import Op, OpType, Schedule

# Up to this pipeline size a turn gives a cut for every pair of ranks, beyond it for equal ranks only (pp² gets many,
# and the solver finds missing ones by simulation).
MOST_RANKS_FOR_PAIRS = 32


def static_cuts(schedule: str | Schedule, pp: int, vpp: int, num_microbatches: int) -> list[PathCut]:
    """Valid lower bounds on the pipeline time of every plan of these sizes; each one a path of the event graph.

    For GPipe with equal heads and tails and pp up to 32 their maximum is the exact pipeline time.
    """
    return list(_static_cuts(get_schedule(schedule), pp, vpp, num_microbatches))


@lru_cache(maxsize=256)
def _static_cuts(schedule: Schedule, pp: int, vpp: int, num_microbatches: int) -> tuple[PathCut, ...]:
    program = get_program(schedule, pp, vpp, num_microbatches)
    paths = [path for rank in range(pp) for path in rank_paths(program, rank)]
    for turn in schedule.turns(pp, vpp, num_microbatches):
        paths += turning_paths(program, turn)
    if schedule.overlap_factor != 1:
        paths = [branch for path in paths for branch in _branches(program, path)]
    return tuple(dict.fromkeys(path_cut(program, path) for path in paths))


def _branches(program: Program, path: Int64) -> list[Int64]:
    """A path, and what is left of it with only one op of every overlapped pair."""
    partner = program.partner[path]
    return [path, path[(partner < 0) | (path < partner)], path[(partner < 0) | (path > partner)]]


def rank_paths(program: Program, rank: int) -> list[Int64]:
    """The paths A–D of one rank, A also with the rank's own head, tail or both."""
    ops = program.rank_ops[rank].astype(np.int64)
    first = int(ops[0])
    # The last op of a split backward is a weight gradient, which no other rank waits for.
    last = int(ops[program.op_type[ops] != OpType.WEIGHT_GRAD][-1])
    way_in, way_out = _way_in(program, first), _way_out(program, last)
    opening = _position(ops, _block_end(program, first)) + 1
    closing = _position(ops, last) + 1
    resumed = _position(ops, _block_start(program, _same(program, 1, first)))  # the first micro-batch is back
    leaving = _same(program, 0, last)
    left = _position(ops, _block_end(program, leaving)) + 1  # the last micro-batch has left for the later stages
    until_last = ops[:closing]
    paths = [(way_in, until_last, way_out), (way_in, ops), (until_last, way_out), (ops,)]
    there = np.concatenate((ops[:opening], _there_and_back(program, first)))
    returning = _position(ops, _block_start(program, last))
    back = np.concatenate((_there_and_back(program, leaving), ops[returning:closing]))
    if resumed >= opening:
        paths.append((way_in, there, ops[resumed:closing], way_out))
    if returning >= left:
        paths.append((way_in, ops[:left], back, way_out))
    if opening <= resumed < left <= returning:
        paths.append((way_in, there, ops[resumed:left], back, way_out))
    return [np.concatenate(parts) for parts in paths]


def turning_paths(program: Program, turn: tuple[Op, Op]) -> list[Int64]:
    """Paths that work on one rank until the turn's micro-batch leaves it, turn, and work on a rank until the end."""
    forward, backward = turn
    down = int(program.index[0, forward.virtual_stage, forward.microbatch])
    up = int(program.index[1, backward.virtual_stage, backward.microbatch])
    turning_rank = program.rank_ops[int(program.rank[down])].astype(np.int64)
    begin, end = _position(turning_rank, _block_end(program, down)), _position(turning_rank, _block_start(program, up))
    between = turning_rank[begin + 1 : end]

    coming = np.append(_forwards_before(program, down), down)
    going = np.append(up, _backwards_after(program, up))
    befores, afters = [], []
    for i, op in enumerate(coming):
        ops = program.rank_ops[int(program.rank[op])].astype(np.int64)
        work = np.concatenate((ops[: _position(ops, int(op))], _with_blocks(program, coming[i:])))
        befores.append((_way_in(program, int(ops[0])), work))
    for i, op in enumerate(going):
        ops = program.rank_ops[int(program.rank[op])].astype(np.int64)
        rest = ops[_position(ops, _block_start(program, int(op))) :]
        work = np.concatenate((_with_blocks(program, going[:i]), rest))
        afters.append((work, _way_out(program, int(ops[-1]))))
    afters.reverse()  # by virtual stage, like befores

    paths: list[Int64] = []
    pairs = program.pp <= MOST_RANKS_FOR_PAIRS
    for a, (way_in, work_before) in enumerate(befores):
        for c, (work_after, way_out) in enumerate(afters):
            if a == c or pairs:
                paths.append(np.concatenate((way_in, work_before, between, work_after, way_out)))
            if a == c:
                paths.append(np.concatenate((way_in, work_before, between, work_after)))
                paths.append(np.concatenate((work_before, between, work_after, way_out)))
                paths.append(np.concatenate((work_before, between, work_after)))
    return paths


def _position(ops: Int64, op: int) -> int:
    """Where `op` stands among its rank's ops; these are numbered in ascending order."""
    position = int(np.searchsorted(ops, op))
    assert ops[position] == op, "the op belongs to another rank"
    return position


def _block_start(program: Program, op: int) -> int:
    """The forward of an overlapped pair; any other op itself."""
    partner = int(program.partner[op])
    return op if partner < 0 else min(op, partner)


def _block_end(program: Program, op: int) -> int:
    """The backward of an overlapped pair; any other op itself."""
    return max(op, int(program.partner[op]))


def _with_blocks(program: Program, ops: Int64) -> Int64:
    """The ops with every overlapped one replaced by its pair: data enter a block at its start, leave it at its end."""
    partner = program.partner[ops]
    pairs = np.stack((np.where(partner < 0, ops, np.minimum(ops, partner)), np.maximum(ops, partner)), axis=1)
    expanded: Int64 = pairs[np.stack((np.ones(len(ops), dtype=np.bool_), partner >= 0), axis=1)].astype(np.int64)
    return expanded


def _same(program: Program, row: int, op: int) -> int:
    """The forward (row 0) or backward (row 1) of the same virtual stage and micro-batch."""
    return int(program.index[row, program.virtual_stage[op], program.microbatch[op]])


def _along(program: Program, row: int, op: int, neighbours: Int32) -> Int64:
    """Ops of the same micro-batch on the following virtual stages, nearest first."""
    numbers = []
    stage, microbatch = int(neighbours[program.virtual_stage[op]]), int(program.microbatch[op])
    while stage >= 0:
        numbers.append(int(program.index[row, stage, microbatch]))
        stage = int(neighbours[stage])
    return np.array(numbers, dtype=np.int64)


def _forwards_before(program: Program, forward: int) -> Int64:
    """Forwards of the micro-batch on the earlier virtual stages, first stage first."""
    return _along(program, 0, forward, program.previous_stage)[::-1]


def _backwards_after(program: Program, backward: int) -> Int64:
    """Backwards of the micro-batch on the earlier virtual stages, first stage last."""
    return _along(program, 1, backward, program.previous_stage)


def _there_and_back(program: Program, forward: int) -> Int64:
    """Forwards on the later virtual stages and the backwards on the way back."""
    later = _along(program, 0, forward, program.next_stage)
    back = _along(program, 1, forward, program.next_stage)[::-1]
    return _with_blocks(program, np.concatenate((later, back)))


def _way_in(program: Program, forward: int) -> Int64:
    """What precedes a rank's first forward: that micro-batch on the earlier stages, all before it on the first one."""
    before = _forwards_before(program, forward)
    if not len(before):
        return before
    ops = program.rank_ops[int(program.rank[before[0]])].astype(np.int64)
    return np.concatenate((ops[: _position(ops, int(before[0]))], _with_blocks(program, before)))


def _way_out(program: Program, last: int) -> Int64:
    """What follows a rank's last backward: that micro-batch on the stages before, and all after it on the first."""
    after = _backwards_after(program, last)
    if not len(after):
        ops = program.rank_ops[int(program.rank[last])].astype(np.int64)
        return ops[_position(ops, last) + 1 :]
    ops = program.rank_ops[int(program.rank[after[-1]])].astype(np.int64)
    return np.concatenate((_with_blocks(program, after), ops[_position(ops, int(after[-1])) + 1 :]))
