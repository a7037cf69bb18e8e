"""Engine room: strategies of a complete choice of boundaries, and plans made from points."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prism_cp.engine.items import ItemMaker
from prism_cp.engine.tables import Tables
from prism_cp.pipeline import PathCut
from prism_cp.pipeline.kernels import longest_path_length, trace_back
from prism_cp.pipeline.path_cut import path_cut
from prism_cp.pipeline.program import get_program
from prism_cp.stage_problem import Assignment, StageProblem

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


def boundaries(tables: Tables, chosen: Sequence[int]) -> tuple[int, ...]:
    """The boundaries of one item (numbered over all groups) per group."""
    chain = tables.chain
    sizes = np.zeros(tables.problem.num_pieces, np.int64)
    for g, number in enumerate(chosen):
        items = tables.items[g]
        row = items.choice[number - tables.start[g]]
        for k, piece in enumerate(items.group.pieces):
            sizes[piece] = chain.sizes[chain.pieces[piece][row[k]]]
    return (0, *np.cumsum(sizes).tolist())


def assignment(maker: ItemMaker, tables: Tables, chosen: Sequence[int], points: Sequence[int]) -> Assignment | None:
    """The plan of one item and one of its points per group; None when a point stands for several multisets."""
    problem, chain = tables.problem, tables.chain
    counts: list[tuple[tuple[int, ...], ...]] = [()] * problem.num_pieces
    for g, (number, point) in enumerate(zip(chosen, points, strict=True)):
        items = tables.items[g]
        row = items.choice[number - tables.start[g]]
        for k, piece in enumerate(items.group.pieces):
            pick = int(items.pick[point, k])
            if pick < 0:
                return None
            flat = maker.points(piece, int(chain.pieces[piece][row[k]])).counts[pick].tolist()
            if flat and flat[0] < 0:
                return None
            split, begin = [], 0
            for kind in problem.tables[0]:
                split.append(tuple(flat[begin : begin + len(kind.strategies)]))
                begin += len(kind.strategies)
            counts[piece] = tuple(split)
    return Assignment(boundaries(tables, chosen), tuple(counts))


def simulate_points(tables: Tables, chosen: Sequence[int], points: Sequence[int]) -> tuple[int, PathCut]:
    """Pipeline time and critical path under one point per group, gradient reduction hidden by its credit."""
    problem = tables.problem
    times = np.zeros((len(problem.virtual_stages), 3), np.int64)
    head, tail = np.zeros(len(problem.ranks), np.int64), np.zeros(len(problem.ranks), np.int64)
    for g, (number, point) in enumerate(zip(chosen, points, strict=True)):
        items, item = tables.items[g], number - tables.start[g]
        group = items.group
        times[list(group.stages)] = items.base[item] + items.extra[point]
        for r, rank in enumerate(group.ranks):
            head[rank] = items.head[item, r]
            hidden = sum(int(items.credit[point, s]) for s, owner in enumerate(group.rank_of) if owner == r)
            tail[rank] = max(problem.ranks[rank].last_bucket, int(items.reduce[item, r]) - hidden)
    return critical_path(problem, times, head, tail)


def path_of_mixture(problem: StageProblem, mixture: Int64 | Float64) -> tuple[int, PathCut]:
    """Pipeline time and a longest path for mixed times [virtual stages, 3], rounded.

    Heads are left out, and so is all of the gradient reduction but the last buckets.
    """
    tail = np.array([rank.last_bucket for rank in problem.ranks], np.int64)
    return critical_path(problem, np.rint(mixture).astype(np.int64), np.zeros_like(tail), tail)


def critical_path(problem: StageProblem, times: Int64, head: Int64, tail: Int64) -> tuple[int, PathCut]:
    """Pipeline time and a longest path for times [virtual stages, 3]; `simulate` without its readable parts."""
    program = get_program(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)
    f, b, w = times.T
    durations = np.concatenate((f, b + w, b, w, f, b + w))  # by OpType
    links = program.links
    end = np.empty(len(program.code), np.int64)
    value = int(longest_path_length(*links, program.rank, durations, head, tail, problem.p2p, end))
    finish = [int(end[ops[-1]]) + int(tail[rank]) for rank, ops in enumerate(program.rank_ops)]
    last = int(program.rank_ops[finish.index(value)][-1])
    path = trace_back(*links, program.rank_predecessor, durations, problem.p2p, end, last)
    return value, path_cut(program, path)
