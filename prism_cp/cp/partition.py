"""Where each rank's piece can lie in a plan up to a given time: exact bounds by dynamic programming over boundaries.

For schedules with one virtual stage per rank every path that runs through all micro-batches of one rank gives
``earlier ranks' work + multiple of the rank's work + constant <= time``. With the least work of every possible piece
under the rank's own memory, the smallest work of all earlier ranks is enough to know per boundary, so one pass over
ranks and boundaries decides whether a time is possible. Bisection gives a lower bound that sees whole layers and whole
strategies at once, and the pieces that survive at a given time are a short table for the solver.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism_cp.cp.exact import LiveVectors
from prism_cp.cp.least_work import LeastWork
from prism_cp.pipeline import PathCut
from prism_cp.stage_problem import Assignment, KindCosts, StageProblem

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

    def __init__(self, problem: StageProblem, live_vectors: LiveVectors, cuts: list[PathCut], cap: int) -> None:
        self.problem, self.live_vectors = problem, live_vectors
        self.length = len(problem.layers)
        self.stage_of_rank = {stage.rank: i for i, stage in enumerate(problem.virtual_stages)}
        self.prefix = np.array(problem.prefix_counts, dtype=np.int64)
        self._solvers = [_least_work(table) for table in problem.tables]
        self.chosen: list[dict[tuple[int, ...], Int64]] = []
        self.work: list[Int64] = []  # per piece [start, end]
        self.needs: list[Int64] = []  # least pipeline time minus earlier work
        self.alone: list[Int64] = []  # least pipeline time whatever comes earlier
        for piece in range(problem.num_pieces):
            self._tabulate(piece, _shapes(problem, cuts, piece), cap)

    @staticmethod
    def applies(problem: StageProblem) -> bool:
        """One chain, virtual stage i on rank i with piece i, and numbers small enough for 64 bits."""
        in_order = all(stage.rank == i and stage.piece == i for i, stage in enumerate(problem.virtual_stages)) and len(
            problem.virtual_stages
        ) == problem.num_pieces == len(problem.ranks)
        return in_order and all(_least_work(table).fits_integers(len(problem.layers)) for table in problem.tables)

    def _tabulate(self, piece: int, shapes: list[_Shape], cap: int) -> None:
        """Least work of every possible position of a piece, and the least times that follow from it."""
        problem, size = self.problem, self.length + 1
        work = np.full((size, size), _NEVER, dtype=np.int64)
        needs, alone = work.copy(), work.copy()
        table, ends = problem.tables[problem.virtual_stages[piece].table], problem.virtual_stages[piece].ends
        ends_work = ends.forward + ends.input_grad + ends.weight_grad
        most = min(((cap - s.constant) // s.multiple for s in shapes if s.multiple), default=cap)
        lightest = min(s.forward + s.input_grad + s.weight_grad for kind in table for s in kind.strategies)
        known: dict[tuple[int, ...], int | None] = {}
        self.chosen.append({})
        for start in range(size):
            for end in range(
                start + problem.min_layers[piece], min(self.length, start + problem.max_layers[piece]) + 1
            ):
                if ends_work + (end - start) * lightest > most:
                    break
                counts = tuple((self.prefix[:, end] - self.prefix[:, start]).tolist())
                if counts not in known:
                    known[counts] = self._least(piece, counts, most - ends_work)
                least = known[counts]
                if least is None:
                    continue
                own = ends_work + least
                head = problem.ranks[piece].head + ends.head
                head += sum(n * kind.head for n, kind in zip(counts, table, strict=True))
                times = [(s, s.multiple * own + s.constant + (head if s.own_head else 0)) for s in shapes]
                work[start, end] = own
                needs[start, end] = max((time for s, time in times if s.with_earlier), default=0)
                alone[start, end] = max((time for _, time in times), default=0)
        self.work.append(work)
        self.needs.append(needs)
        self.alone.append(alone)

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
        live = max((vector[0] for vector in self.live_vectors[piece]), default=0)
        found = self._solvers[stage.table](counts, room - live * ends.activation, live, ends.transient, most)
        if found is None:
            return None
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
        """A plan whose partition keeps `time` as far as the bounds know; None when there is none."""
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
            chosen = self.chosen[piece][held]
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


def _shapes(problem: StageProblem, cuts: list[PathCut], rank: int) -> list[_Shape]:
    """What every known path says about one rank at least; a path counts an op of a rank once per multiple."""
    shapes = set()
    for cut in cuts:
        work = [min(triple) for triple in zip(cut.forward, cut.input_grad, cut.weight_grad, strict=True)]
        constant, own_head = cut.p2p * problem.p2p, False
        for other, costs in enumerate(problem.ranks):
            constant += cut.tail[other] * costs.last_bucket
            if cut.head[other] and other == rank:
                own_head = True
            elif cut.head[other]:
                constant += costs.head + problem.virtual_stages[other].ends.head
        with_earlier = all(multiple >= 1 for multiple in work[:rank])
        if work[rank]:
            shapes.add(_Shape(work[rank], constant, with_earlier, own_head))
    return [
        shape
        for shape in shapes
        if not any(
            other != shape
            and other.multiple >= shape.multiple
            and other.constant >= shape.constant
            and other.with_earlier >= shape.with_earlier
            and other.own_head >= shape.own_head
            for other in shapes
        )
    ]
