"""Engine room: the compositions a group of ranks can hold together, by their least work and memory alone."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from prism_cp.engine.chain import Chain, Group
from prism_cp.engine.limits import SearchStopped
from prism_cp.pipeline import live_vectors
from prism_cp.pipeline.program import Program, get_program
from prism_cp.pipeline.schedules.base import OpType
from prism_cp.stage_problem import StageProblem, live_counts

Int64 = NDArray[np.int64]

# Of combinations with compositions of the next piece, looked at together: with more the tables of a group become so
# large that CP-SAT is quicker.
MOST_COMBINATIONS = 6_000_000


@dataclass(frozen=True)
class _Piece:
    """What the compositions of a piece add: arrays [compositions, ranks], of activations [compositions, rows].

    `work` counts everything a rank is busy with, its share of `head` included.
    """

    numbers: Int64
    work: Int64
    static: Int64
    optimizer_step: Int64
    head: Int64
    reduce: Int64
    active: Int64
    waiting: Int64
    held: NDArray[np.bool_]  # [compositions, ranks, kinds]
    stop: Int64  # [compositions, layers + 2]: least end of the piece when its first layer is no earlier than that


@dataclass(frozen=True)
class _Held:
    """The same sums for the compositions `choice` [combinations, pieces] of the first pieces of a group."""

    choice: Int64
    work: Int64
    static: Int64
    optimizer_step: Int64
    head: Int64
    reduce: Int64
    active: Int64  # least activations of every row, of which
    waiting: Int64  # those of deferred micro-batches, which no strategy changes
    held: NDArray[np.bool_]
    stop: Int64  # least end of the last piece

    def and_then(self, piece: _Piece, between: int, one: NDArray[np.intp], two: NDArray[np.intp]) -> _Held:
        """With composition `two` of the next piece after combination `one` and at least so many layers between."""
        return _Held(
            np.column_stack((self.choice[one], piece.numbers[two])),
            self.work[one] + piece.work[two],
            self.static[one] + piece.static[two],
            self.optimizer_step[one] + piece.optimizer_step[two],
            self.head[one] + piece.head[two],
            self.reduce[one] + piece.reduce[two],
            self.active[one] + piece.active[two],
            self.waiting[one] + piece.waiting[two],
            self.held[one] | piece.held[two],
            piece.stop[two, np.minimum(self.stop[one] + between, piece.stop.shape[1] - 1)],
        )

    def select(self, mask: NDArray[np.bool_]) -> _Held:
        """Some of them."""
        return _Held(*(getattr(self, name)[mask] for name in self.__dataclass_fields__))


class Combinations:
    """Finds the combinations of compositions of every group of a stage problem.

    Attributes
    ----------
    executed : int64 array [virtual stages]
        See `least_executed`.
    """

    def __init__(self, problem: StageProblem, chain: Chain) -> None:
        self.problem, self.chain = problem, chain
        self.executed = least_executed(get_program(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches))
        self._live = live_vectors(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)
        self._all_work = self._least_work_of_all()

    def rows(self, group: Group) -> tuple[Int64, Int64, Int64]:
        """Live and deferred micro-batches [rows, stages] of every memory row of a group, and the row's rank in it."""
        rows, waiting, ranks = [], [], []
        for position, rank in enumerate(group.ranks):
            mine = [k for k, owner in enumerate(group.rank_of) if owner == position]
            for live in self._live[rank]:
                row, deferred = np.zeros((2, len(group.stages)), np.int64)
                row[mine], deferred[mine] = live_counts(live, len(mine))
                rows.append(row)
                waiting.append(deferred)
                ranks.append(position)
        return np.array(rows), np.array(waiting), np.array(ranks)

    def of_group(self, group: Group, limit: int, wanted: Int64 | None = None) -> tuple[Int64, Int64, Int64, Int64]:
        """Compositions [items, pieces] that pass the work and least-memory tests, with what every row leaves.

        No rank may work longer than `limit`, nor so little that the others would have to, and the pieces must stand
        in the chain one after another.

        Parameters
        ----------
        limit
            Time units.
        wanted : int64 array [items, pieces]
            Only what consists of compositions that occur here.

        Returns
        -------
        (choice, budget, head, reduce)
            `budget` [items, rows] of activations, memory units; `head` and `reduce` [items, ranks], time units.

        Raises
        ------
        SearchStopped
            There are more than `MOST_COMBINATIONS`.
        """
        problem = self.problem
        ranks = [problem.ranks[r] for r in group.ranks]
        rows, deferred, row_rank = self.rows(group)
        capacity = np.array([r.capacity for r in ranks])
        pieces = [
            self._piece(group, k, rows, deferred, None if wanted is None else np.unique(wanted[:, k]))
            for k in range(len(group.pieces))
        ]
        rest = np.append(np.cumsum([int(each.work.sum(axis=1).max(initial=0)) for each in pieces][::-1])[::-1], 0)
        least = self._all_work - limit * (len(problem.ranks) - len(group.ranks))

        def fits(held: _Held) -> NDArray[np.bool_]:
            ok: NDArray[np.bool_] = held.stop <= len(problem.layers)
            ok &= held.work.sum(axis=1) + rest[held.choice.shape[1]] >= least
            ok &= (held.static + held.optimizer_step <= capacity).all(axis=1)
            ok &= (held.active + held.static[:, row_rank] <= capacity[row_rank]).all(axis=1)
            return ok

        none, no_rows = np.zeros((1, len(ranks)), np.int64), np.zeros((1, len(rows)), np.int64)
        found = _Held(
            np.zeros((1, 0), np.int64), np.array([[r.head + r.last_bucket for r in ranks]], np.int64),
            np.array([[r.fixed for r in ranks]], np.int64), none, np.array([[r.head for r in ranks]], np.int64), none,
            no_rows, no_rows, np.zeros((1, len(ranks), problem.num_kinds), np.bool_), np.zeros(1, np.int64),
        )  # fmt: skip
        for k, piece in enumerate(pieces):
            between = sum(problem.min_layers[group.pieces[k - 1] + 1 if k else 0 : group.pieces[k]])
            size, width = len(found.choice), len(piece.numbers)
            if size * width > MOST_COMBINATIONS:
                raise SearchStopped
            one, two = np.repeat(np.arange(size), width), np.tile(np.arange(width), size)
            quick = (found.work[one] + piece.work[two] <= limit).all(axis=1)  # most fail this, and the rest is large
            found = found.and_then(piece, between, one[quick], two[quick])
            found = found.select(fits(found))
        held_memory = found.static + self._buffers(group, found.held)
        ok = (held_memory + found.optimizer_step <= capacity).all(axis=1)
        end_load = np.array([problem.virtual_stages[i].ends.activation for i in group.stages]) @ rows.T
        budget = (capacity - held_memory)[:, row_rank] - end_load - found.waiting
        return found.choice[ok], budget[ok], found.head[ok], found.reduce[ok]

    def _least_work_of_all(self) -> int:
        """Least work of all ranks together, whoever holds what."""
        problem = self.problem
        layer = np.zeros((problem.num_pieces, problem.num_kinds), np.int64)
        total = sum(rank.head + rank.last_bucket for rank in problem.ranks)
        for index, stage in enumerate(problem.virtual_stages):
            fast, head = self._layer_work(index)
            layer[stage.piece] += fast + head
            total += self._end_work(index) + stage.ends.head
        return total + sum(int(layer[:, kind].min()) for kind in problem.layers)

    def _layer_work(self, stage: int) -> tuple[Int64, Int64]:
        """Least work [kinds] of a layer on a virtual stage, and its head."""
        kinds = self.problem.tables[self.problem.virtual_stages[stage].table]
        fast = np.array([min(q.forward + q.input_grad + q.weight_grad for q in c.strategies) for c in kinds])
        return self.executed[stage] * fast, np.array([c.head for c in kinds], np.int64)

    def _end_work(self, stage: int) -> int:
        """Work of embedding or head on a virtual stage."""
        ends = self.problem.virtual_stages[stage].ends
        return int(self.executed[stage]) * (ends.forward + ends.input_grad + ends.weight_grad)

    def _piece(self, group: Group, k: int, rows: Int64, deferred: Int64, numbers: Int64 | None) -> _Piece:
        """What the compositions of the group's k-th piece add; of all, or those of some numbers."""
        problem, index = self.problem, group.pieces[k]
        numbers = np.arange(len(self.chain.pieces[index])) if numbers is None else numbers
        vectors = self.chain.vectors[self.chain.pieces[index][numbers]]
        size, ranks, length = len(vectors), len(group.ranks), len(problem.layers)
        bits = np.unpackbits(self.chain.starts[index][numbers].astype("<u8").view(np.uint8), axis=1, bitorder="little")
        stop = np.full((size, length + 2), length + 1)
        for start in range(length, -1, -1):
            own = np.where(bits[:, start] > 0, start + self.chain.sizes[self.chain.pieces[index][numbers]], length + 1)
            stop[:, start] = np.minimum(stop[:, start + 1], own)
        work, static, step, head, reduce = np.zeros((5, size, ranks), np.int64)
        active, waiting = np.zeros((2, size, len(rows)), np.int64)
        held = np.zeros((size, ranks, problem.num_kinds), np.bool_)
        for s, stage_index in enumerate(group.stages):
            if group.piece_of[s] != k:
                continue
            stage, r = problem.virtual_stages[stage_index], group.rank_of[s]
            kinds, ends = problem.tables[stage.table], stage.ends
            fast, heads = self._layer_work(stage_index)
            work[:, r] += vectors @ (fast + heads) + self._end_work(stage_index) + ends.head
            head[:, r] += vectors @ heads + ends.head
            static[:, r] += vectors @ np.array([c.static for c in kinds], np.int64) + ends.static
            step[:, r] += vectors @ np.array([c.optimizer_step for c in kinds], np.int64) + ends.optimizer_step
            reduce[:, r] += vectors @ np.array([c.reduce for c in kinds], np.int64) + ends.reduce
            small = np.array([min(q.activation for q in c.strategies) for c in kinds])
            held_back = vectors @ np.array([c.deferred for c in kinds], np.int64) + ends.deferred
            waiting += held_back[:, None] * deferred[None, :, s]
            active += (vectors @ small + ends.activation)[:, None] * rows[None, :, s]
            held[:, r] |= vectors > 0
        return _Piece(numbers, work, static, step, head, reduce, active + waiting, waiting, held, stop)

    def _buffers(self, group: Group, held: NDArray[np.bool_]) -> Int64:
        """Shared buffers [items, ranks] for the kinds held [items, ranks, kinds]."""
        total = np.zeros(held.shape[:2], np.int64)
        for r in range(len(group.ranks)):
            mine = {stage for stage, owner in zip(group.stages, group.rank_of, strict=True) if owner == r}
            for buffer in self.problem.buffers:
                if buffer.virtual_stages & mine:
                    total[:, r] += buffer.memory
                elif buffer.kinds:
                    total[:, r] += buffer.memory * held[:, r, sorted(buffer.kinds)].any(axis=1)
        return total


def least_executed(program: Program) -> Int64:
    """Per virtual stage, micro-batches whose whole times its rank spends at least on it.

    An overlapped pair lasts no less than half of both ops together, and than the overlap factor times that.
    """
    executed = np.count_nonzero(program.index[0] >= 0, axis=1)
    hidden = 1 - max(program.schedule.overlap_factor, Fraction(1, 2))
    overlapped = [
        np.bincount(program.virtual_stage[program.op_type == kind], minlength=program.num_stages)
        for kind in (OpType.OVERLAPPED_FORWARD, OpType.OVERLAPPED_BACKWARD)
    ]
    saved = -(-np.maximum(*overlapped) * hidden.numerator // hidden.denominator)
    left: Int64 = (executed - saved).astype(np.int64)
    return left
