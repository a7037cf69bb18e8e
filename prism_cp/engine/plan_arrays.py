"""Engine room: a whole stage problem as arrays, for compiled loops over plans."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from prism_cp.pipeline import live_vectors
from prism_cp.stage_problem import StageProblem, live_counts

Int64 = NDArray[np.int64]

# Columns: of strategies, of kinds, of ranks; an end's are those of a strategy and then, from LIKE_A_KIND on, of a kind.
FORWARD, INPUT_GRAD, WEIGHT_GRAD, HIDEABLE, ACTIVATION, TRANSIENT = range(6)
STATIC, OPTIMIZER_STEP, HEAD, REDUCE, DEFERRED = range(5)
CAPACITY, FIXED, FIRST_FORWARD, LAST_BUCKET = range(4)  # the third one: time before the first forward
LIKE_A_KIND = 6


class PlanArrays(NamedTuple):
    """A stage problem as the compiled loops take it.

    Attributes
    ----------
    strategies : int64 array [tables, kinds, strategies, 6]
        Times, activation and transient of a layer.
    kinds : int64 array [tables, kinds, 5]
        What a layer costs whatever its strategy.
    num_strategies : int64 array [kinds]
    ends : int64 array [stages, 11]
    stages : int64 array [stages, 3]
        Rank, piece, table.
    live, deferred : int64 arrays [rows, stages]
        Micro-batches of the rank's own stages, row after row.
    row_rank : int64 array [rows]
    ranks : int64 array [ranks, 4]
    buffer_memory : int64 array [buffers]
    buffer_kinds, buffer_stages : bool arrays [buffers, kinds], [buffers, stages]
    prefix : int64 array [kinds, layers + 1]
        Layers of a kind among the first ones.
    least, most : int64 arrays [pieces]
        Layers of a piece.
    """

    strategies: Int64
    kinds: Int64
    num_strategies: Int64
    ends: Int64
    stages: Int64
    live: Int64
    deferred: Int64
    row_rank: Int64
    ranks: Int64
    buffer_memory: Int64
    buffer_kinds: NDArray[np.bool_]
    buffer_stages: NDArray[np.bool_]
    prefix: Int64
    least: Int64
    most: Int64


def plan_arrays(problem: StageProblem) -> PlanArrays:
    """The arrays of a stage problem."""
    tables = problem.tables
    widest = max(len(kind.strategies) for kind in tables[0])
    strategies = np.zeros((len(tables), problem.num_kinds, widest, 6), np.int64)
    kinds = np.zeros((len(tables), problem.num_kinds, 5), np.int64)
    for t, table in enumerate(tables):
        for k, kind in enumerate(table):
            kinds[t, k] = kind.static, kind.optimizer_step, kind.head, kind.reduce, kind.deferred
            for q, s in enumerate(kind.strategies):
                strategies[t, k, q] = s.forward, s.input_grad, s.weight_grad, s.hideable, s.activation, s.transient
    stages = problem.virtual_stages
    ends = [
        (
            e.forward, e.input_grad, e.weight_grad, e.hideable, e.activation, e.transient,
            e.static, e.optimizer_step, e.head, e.reduce, e.deferred,
        )
        for e in (stage.ends for stage in stages)
    ]  # fmt: skip
    live, deferred, row_rank = [], [], []
    for rank, vectors in enumerate(live_vectors(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)):
        mine = [s for s, stage in enumerate(stages) if stage.rank == rank]
        for vector in vectors:
            row = np.zeros((2, len(stages)), np.int64)
            row[0, mine], row[1, mine] = live_counts(vector, len(mine))
            live.append(row[0])
            deferred.append(row[1])
            row_rank.append(rank)
    buffers = problem.buffers
    return PlanArrays(
        strategies, kinds, np.array([len(kind.strategies) for kind in tables[0]], np.int64), np.array(ends, np.int64),
        np.array([(stage.rank, stage.piece, stage.table) for stage in stages], np.int64),
        np.array(live), np.array(deferred), np.array(row_rank, np.int64),
        np.array([(r.capacity, r.fixed, r.head, r.last_bucket) for r in problem.ranks], np.int64),
        np.array([b.memory for b in buffers], np.int64),
        np.array([[k in b.kinds for k in range(problem.num_kinds)] for b in buffers], np.bool_).reshape(
            len(buffers), problem.num_kinds
        ),
        np.array([[s in b.virtual_stages for s in range(len(stages))] for b in buffers], np.bool_).reshape(
            len(buffers), len(stages)
        ),
        np.array(problem.prefix_counts, np.int64),
        np.array(problem.min_layers, np.int64), np.array(problem.max_layers, np.int64),
    )  # fmt: skip
