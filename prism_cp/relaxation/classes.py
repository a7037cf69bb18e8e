"""What all layouts of one (schedule, pp, vpp, num_microbatches) share: paths and live vectors, by piece."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from prism_cp.pipeline import PathCut, get_schedule, live_vectors, simulate, static_cuts
from prism_cp.stage_problem import live_counts

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

TICKS = 1e9  # simulated time units per second


class LayoutClass:
    """Paths, which grow as relaxations are solved, and live vectors of a class.

    A live vector that includes the last virtual stage makes two memory rows: the transient of the moment is at least
    that of the loss, and at least the mean one of the layers held.

    Attributes
    ----------
    may_be_empty : bool
        Whether middle pieces may hold no layer.
    paths : float64 array [paths, pieces, 4]
        Forwards, input gradients and weight gradients of the piece on the path, on any of its virtual stages, and how
        many of the path's heads belong to ranks that hold the piece.
    transfers : float64 array [paths]
    useful : set of int
        Paths that mattered to the program solved last.
    memory : float64 array [rows, pieces, 4]
        Live micro-batches; live virtual stages (zero on the rows of the loss); virtual stages of the piece on the rank;
        micro-batches whose weight gradient is deferred.
    occupied, filled, loss : float64 arrays [rows]
        One where the rank holds a piece that may not be empty; where such a piece is alive; on the rows of the loss.
    always : bool array [pieces]
        Alive in every row of every rank that holds the piece. Only the strategies of these pieces make a bracket: the
        transient of another one is absent from the rows it is not alive in.
    rank_of_row : int64 array [rows]
    group_of_row, group_of_piece : int64 arrays
        Ranks that hold the same pieces make a group.
    memory_digest : bytes
        Equal where schedule, pp, vpp and all memory rows are equal: what proves for a layout of one such class that
        nothing fits, bounds those of the others too.
    """

    def __init__(self, schedule: str, pp: int, vpp: int, num_microbatches: int, may_be_empty: bool) -> None:
        self.sizes = (schedule, pp, vpp, num_microbatches)
        self.may_be_empty = may_be_empty
        described = get_schedule(schedule)
        self._multiple = described.overlap_factor.denominator
        placed = described.virtual_stages(pp, vpp)
        self.pp, self.num_pieces = pp, described.num_pieces(pp, vpp)
        self._rank = np.array([rank for rank, _ in placed])
        self._belongs = np.zeros((len(placed), self.num_pieces))
        self._belongs[np.arange(len(placed)), [piece for _, piece in placed]] = 1.0
        self._on_rank = np.zeros((pp, self.num_pieces))
        np.add.at(self._on_rank, self._rank, self._belongs)
        self._known: dict[PathCut, int] = {}
        self._paths, self._transfers = np.zeros((0, self.num_pieces, 4)), np.zeros(0)
        self.useful: set[int] = set()
        self._memory_rows()

    @property
    def paths(self) -> Float64:
        """See the class. The first ones are made when they are asked for: a class in which nothing fits has none."""
        self._begin()
        return self._paths

    @property
    def transfers(self) -> Float64:
        """Of every path."""
        self._begin()
        return self._transfers

    def _begin(self) -> None:
        if not self._known:
            self._take(static_cuts(*self.sizes))

    def add(self, cut: PathCut) -> int:
        """The number of a path, which may be a new one."""
        self._begin()
        if cut not in self._known:
            self._take([cut])
        return self._known[cut]

    def _take(self, cuts: list[PathCut]) -> None:
        """Take new paths, all different."""
        self._known.update({cut: len(self._known) + number for number, cut in enumerate(cuts)})
        by_stage = ("forward", "input_grad", "weight_grad")
        scale = np.array([cut.scale for cut in cuts], np.float64)[:, None]
        fields = [np.array([getattr(cut, name) for cut in cuts]) / scale @ self._belongs for name in by_stage]
        fields.append(np.array([cut.head for cut in cuts]) / scale @ self._on_rank)
        self._paths = np.concatenate((self._paths, np.stack(fields, axis=2)))
        self._transfers = np.append(self._transfers, [cut.p2p / cut.scale for cut in cuts])

    @property
    def cuts(self) -> list[PathCut]:
        """The paths known, in the order of `paths`."""
        self._begin()
        return list(self._known)

    def longest_path(self, pieces: Float64, p2p_s: float) -> tuple[PathCut, float]:
        """Longest path and its length in seconds under given times.

        Parameters
        ----------
        pieces : float64 array [pieces, 4]
            Forward, input gradient, weight gradient and head time of every piece, seconds.
        """
        multiple = self._multiple
        ticks = multiple * np.rint(self._belongs @ pieces[:, :3] * TICKS / multiple).astype(np.int64)
        head = np.rint(self._on_rank @ pieces[:, 3] * TICKS).astype(np.int64)
        result = simulate(
            *self.sizes, ticks[:, 0].tolist(), ticks[:, 1].tolist(), ticks[:, 2].tolist(), head.tolist(), [0] * self.pp,
            round(p2p_s * TICKS),
        )  # fmt: skip
        return result.critical_path, result.pipeline_time / TICKS

    def _memory_rows(self) -> None:
        memory, occupied, filled, loss, row_rank = [], [], [], [], []
        self.always = np.ones(self.num_pieces, np.bool_)
        first_holder = self._rank_of_piece()
        leader = [min(first_holder[np.flatnonzero(self._on_rank[rank])]) for rank in range(self.pp)]
        groups = np.unique(leader, return_inverse=True)[1].astype(np.int64)
        for rank, vectors in enumerate(live_vectors(*self.sizes)):
            belongs, held = self._belongs[self._rank == rank], self._on_rank[rank]
            for vector in vectors:
                whole, deferred = (np.array(half, np.float64) for half in live_counts(vector, len(belongs)))
                active = (whole + deferred > 0).astype(np.float64) @ belongs
                self.always &= (active > 0) | (held == 0)
                for last in (False, True) if active[-1] > 0 else (False,):
                    memory.append(np.stack((whole @ belongs, active * (not last), held, deferred @ belongs), axis=1))
                    occupied.append(float(held[1:-1].any() and not self.may_be_empty))
                    filled.append(float(active[1:-1].any() and not self.may_be_empty))
                    loss.append(float(last))
                    row_rank.append(rank)
        self.memory, self.loss = np.array(memory), np.array(loss)
        self.occupied, self.filled = np.array(occupied), np.array(filled)
        self.rank_of_row = np.array(row_rank)
        self.group_of_row, self.group_of_piece = groups[np.array(row_rank)], groups[self._rank_of_piece()]
        rows = (self.memory, self.occupied, self.filled, self.loss, self.rank_of_row)
        self.memory_digest = hashlib.sha256(
            repr(self.sizes[:3]).encode() + b"".join(row.tobytes() for row in rows)
        ).digest()

    def _rank_of_piece(self) -> Int64:
        """The first rank that holds each piece."""
        return np.asarray(self._on_rank.argmax(axis=0))
