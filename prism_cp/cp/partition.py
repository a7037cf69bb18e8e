"""Where each rank's piece can lie in a plan up to a given time: exact bounds by dynamic programming over boundaries.

For schedules with one virtual stage per rank every path that runs through all micro-batches of one rank gives
``earlier ranks' work + multiple of the rank's work + constant <= time``. With the least work of every possible piece
under the rank's own memory, the smallest work of all earlier ranks is enough to know per boundary, so one pass over
ranks and boundaries decides whether a time is possible. Bisection gives a lower bound that sees whole layers and whole
strategies at once, and the pieces that survive at a given time are a short table for the solver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism_cp.cp.exact import LiveVectors
from prism_cp.partition.least_work import LeastWork
from prism_cp.pipeline import PathCut
from prism_cp.stage_problem import Assignment, KindCosts, StageProblem, live_counts

Int64 = NDArray[np.int64]
_NEVER = 1 << 60


@dataclass(frozen=True)
class Piece:
    """A position a rank's piece may have, and the least work it then has (time units per micro-batch)."""

    start: int
    end: int
    work: int


@dataclass(frozen=True)
class _Shape:
    """A path as seen by one rank: ``[earlier work] + multiple * own work + constant [+ own head]``."""

    multiple: int
    constant: int
    with_earlier: bool
    own_head: bool


class Partition:
    """Bounds for one stage problem; see the module's text.

    Parameters
    ----------
    cap : int
        Largest pipeline time of interest, in time units; later questions must not exceed it.
    """

    def __init__(self, problem: StageProblem, live_vectors: LiveVectors, cuts: Sequence[PathCut], cap: int) -> None:
        self.problem, self.live_vectors = problem, live_vectors
        self.length = len(problem.layers)
        self.stage_of_rank = {stage.rank: i for i, stage in enumerate(problem.virtual_stages)}
        self.prefix = np.array(problem.prefix_counts, dtype=np.int64)
        # Pieces with the same layers of every kind cost the same wherever they lie: number them once.
        self.sizes = np.arange(self.length + 1)[None, :] - np.arange(self.length + 1)[:, None]
        held = (self.prefix[:, None, :] - self.prefix[:, :, None])[:, self.sizes >= 0].T
        distinct, numbers = np.unique(held, axis=0, return_inverse=True)
        self.compositions = [tuple(row) for row in distinct.tolist()]
        self.composition = np.zeros(self.sizes.shape, dtype=np.int64)
        self.composition[self.sizes >= 0] = numbers.ravel()
        shapes = _shapes(problem, cuts)
        self._solvers = [_least_work(table) for table in problem.tables]
        self.chosen: list[dict[tuple[int, ...], Int64]] = []
        self.work: list[Int64] = []  # per piece [start, end]
        self.needs: list[Int64] = []  # least pipeline time minus earlier work
        self.alone: list[Int64] = []  # least pipeline time whatever comes earlier
        for piece in range(problem.num_pieces):
            self._tabulate(piece, shapes[piece], cap)

    @staticmethod
    def applies(problem: StageProblem) -> bool:
        """One chain, virtual stage i on rank i with piece i, and numbers small enough for 64 bits."""
        in_order = all(stage.rank == i and stage.piece == i for i, stage in enumerate(problem.virtual_stages)) and len(
            problem.virtual_stages
        ) == problem.num_pieces == len(problem.ranks)
        return in_order and all(_least_work(table).fits_integers(len(problem.layers)) for table in problem.tables)

    def _tabulate(self, piece: int, shapes: list[_Shape], cap: int) -> None:
        """Least work of every possible position of a piece, and the least times that follow from it."""
        problem = self.problem
        ends = problem.virtual_stages[piece].ends
        table = problem.tables[problem.virtual_stages[piece].table]
        ends_work = ends.forward + ends.input_grad + ends.weight_grad
        most = min(((cap - s.constant) // s.multiple for s in shapes), default=cap) - ends_work
        lightest = min(s.forward + s.input_grad + s.weight_grad for kind in table for s in kind.strategies)
        largest = min(problem.max_layers[piece], most // lightest if lightest else self.length)
        possible = (self.sizes >= problem.min_layers[piece]) & (self.sizes <= largest)
        work, needs, alone = (np.full(len(self.compositions), _NEVER, dtype=np.int64) for _ in range(3))
        self.chosen.append({})
        for number in np.unique(self.composition[possible]):
            counts = self.compositions[number]
            least = self._least(piece, counts, most)
            if least is None:
                continue
            own = ends_work + least
            head = problem.ranks[piece].head + ends.head
            head += sum(n * kind.head for n, kind in zip(counts, table, strict=True))
            times = [(s, s.multiple * own + s.constant + (head if s.own_head else 0)) for s in shapes]
            work[number] = own
            needs[number] = max((time for s, time in times if s.with_earlier), default=0)
            alone[number] = max((time for _, time in times), default=0)
        for target, values in ((self.work, work), (self.needs, needs), (self.alone, alone)):
            target.append(np.where(possible, values[self.composition], _NEVER))

    def _least(self, piece: int, counts: tuple[int, ...], most: int) -> int | None:
        """Least work of the piece's layers under its rank's memory; None when they cannot fit, or not up to `most`."""
        problem = self.problem
        rank, stage = problem.ranks[piece], problem.virtual_stages[piece]
        table, ends = problem.tables[stage.table], stage.ends
        held = {kind for kind, n in enumerate(counts) if n}
        room = rank.capacity - rank.fixed - ends.static
        room -= sum(b.memory for b in problem.buffers if b.kinds & held or piece in b.virtual_stages)
        room -= sum(n * kind.static for n, kind in zip(counts, table, strict=True))
        optimizer = ends.optimizer_step + sum(n * kind.optimizer_step for n, kind in zip(counts, table, strict=True))
        if optimizer > room:
            return None
        # Any one live vector is a valid relaxation; schedules with one virtual stage per rank have just one.
        (live,), (deferred,) = live_counts(self.live_vectors[piece][0], 1)
        room -= deferred * (ends.deferred + sum(n * kind.deferred for n, kind in zip(counts, table, strict=True)))
        found = self._solvers[stage.table](counts, room - live * ends.activation, live, ends.transient, most)
        if found is None:
            return None
        if found[1] is not None:
            self.chosen[piece][counts] = found[1]
        return found[0]

    def _earliest(self, time: int) -> list[Int64]:
        """Per rank and boundary, the least work of all earlier ranks in a partition that keeps `time`."""
        best = np.full(self.length + 1, _NEVER, dtype=np.int64)
        best[0] = 0
        rows = [best]
        for work, needs, alone in zip(self.work, self.needs, self.alone, strict=True):
            possible = (best[:, None] + needs <= time) & (alone <= time)
            best = np.where(possible, best[:, None] + work, _NEVER).min(axis=0)
            rows.append(best)
        return rows

    def lower_bound(self, low: int, high: int) -> int:
        """Least time within [low, high] that some partition may keep; ``high + 1`` when none."""
        high += 1
        while low < high:
            middle = (low + high) // 2
            if self._earliest(middle)[-1][-1] < _NEVER:
                high = middle
            else:
                low = middle + 1
        return low

    def plan(self, time: int) -> Assignment | None:
        """A plan whose partition keeps `time` as far as the bounds know; None when none is known."""
        rows = self._earliest(time)
        if rows[-1][-1] >= _NEVER:
            return None
        boundaries = [self.length]
        for piece in range(self.problem.num_pieces - 1, -1, -1):
            end, before = boundaries[0], rows[piece]
            possible = (before + self.needs[piece][:, end] <= time) & (self.alone[piece][:, end] <= time)
            totals = np.where(possible, before + self.work[piece][:, end], _NEVER)
            boundaries.insert(0, int(totals.argmin()))
        counts = []
        for piece in range(self.problem.num_pieces):
            held = tuple((self.prefix[:, boundaries[piece + 1]] - self.prefix[:, boundaries[piece]]).tolist())
            chosen = self.chosen[piece].get(held)
            if chosen is None:
                return None
            counts.append(
                tuple(
                    tuple(int(n) for n in chosen[kind, : len(costs.strategies)])
                    for kind, costs in enumerate(self.problem.tables[0])
                )
            )
        return Assignment(tuple(boundaries), tuple(counts))

    def pieces(self, time: int) -> list[list[Piece]]:
        """Per rank, every position that occurs in some partition that keeps `time` as far as the bounds know."""
        earliest = self._earliest(time)
        # Largest earlier work with which the rest, from a boundary on, can still keep the time; -1: none.
        latest = np.full(self.length + 1, -1, dtype=np.int64)
        latest[self.length] = _NEVER
        result: list[list[Piece]] = []
        for piece in range(self.problem.num_pieces - 1, -1, -1):
            work, needs, alone = self.work[piece], self.needs[piece], self.alone[piece]
            allowed = np.minimum(time - needs, latest[None, :] - work)
            allowed[(alone > time) | (latest[None, :] < 0)] = -1
            starts, ends = np.nonzero((allowed >= 0) & (earliest[piece][:, None] <= allowed))
            result.insert(0, [Piece(int(s), int(e), int(work[s, e])) for s, e in zip(starts, ends, strict=True)])
            latest = allowed.max(axis=1)
        return result


def _least_work(table: tuple[KindCosts, ...]) -> LeastWork:
    width = max(len(kind.strategies) for kind in table)
    shape = (len(table), width)
    work, activation, transient = (np.zeros(shape, dtype=np.int64) for _ in range(3))
    exists = np.zeros(shape, dtype=np.bool_)
    for k, kind in enumerate(table):
        for q, s in enumerate(kind.strategies):
            work[k, q], activation[k, q] = s.forward + s.input_grad + s.weight_grad, s.activation
            transient[k, q], exists[k, q] = s.transient, True
    return LeastWork(work, activation, transient, exists)


def _shapes(problem: StageProblem, cuts: Sequence[PathCut]) -> list[list[_Shape]]:
    """What the known paths say at least about every rank: a path counts a rank as often as its rarest op."""
    assert all(cut.scale == 1 for cut in cuts), "no schedule with one virtual stage per rank overlaps pairs"
    work = np.array([(c.forward, c.input_grad, c.weight_grad) for c in cuts], dtype=np.int64).min(axis=1)
    heads = np.array([cut.head for cut in cuts], dtype=np.int64)
    fixed_head = np.array([r.head + s.ends.head for r, s in zip(problem.ranks, problem.virtual_stages, strict=True)])
    constant = np.array([cut.p2p for cut in cuts], dtype=np.int64) * problem.p2p + heads @ fixed_head
    constant += np.array([cut.tail for cut in cuts]) @ np.array([rank.last_bucket for rank in problem.ranks])
    result = []
    for rank in range(len(problem.ranks)):
        own_head = heads[:, rank] > 0  # then the head is added exactly, not by its fixed part
        rows = np.stack(
            (
                work[:, rank],
                constant - np.where(own_head, fixed_head[rank], 0),
                (work[:, :rank] >= 1).all(axis=1),
                own_head,
            ),
            axis=1,
        )
        rows = np.unique(rows[work[:, rank] > 0], axis=0)
        beaten = ((rows[None, :] >= rows[:, None]).all(axis=2).sum(axis=1)) > 1  # by another than itself
        result.append([_Shape(int(m), int(c), bool(e), bool(h)) for m, c, e, h in rows[~beaten]])
    return result
