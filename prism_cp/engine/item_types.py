"""Engine room: items, the ways one group of ranks can hold layers, as arrays.

An item is one composition for every piece of the group. Its *points* are the Pareto-minimal times of its virtual stages
over all strategy multisets that fit every memory row of every rank of the group.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism_cp.engine.chain import Group
from prism_cp.engine.outline import Outline
from prism_cp.engine.pricing import ItemMemory

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Items:
    """All items of a group that can be part of a plan within the time limit they were made for.

    Attributes
    ----------
    group : Group
    choice : int64 array [items, pieces]
        Position of every piece's composition in `Chain.pieces`.
    base : int64 array [items, stages, 3]
        Least forward, input-gradient and weight-gradient time over the item's points.
    first : int64 array [items + 1]
        Where the points of every item begin.
    extra : int64 array [points, stages, 3]
        Times of the points beyond `base`.
    credit : int64 array [points, stages]
        Hideable time, see `choices`.
    most_hidden : int64 array [items, stages]
    head, reduce : int64 arrays [items, ranks]
        Time before the first forward; gradient reduction before anything is hidden.
    pick : int64 array [points, pieces]
        Position of every piece's point in the sorted points of its composition.
    best : int64 array [items]
        The point with the least work.
    """

    group: Group
    choice: Int64
    base: Int64
    first: Int64
    extra: Int64
    credit: Int64
    most_hidden: Int64
    head: Int64
    reduce: Int64
    pick: Int64
    best: Int64
    vague: NDArray[np.bool_]  # [items] points merged into lower bounds
    outline: Outline | None = None  # bounds more than the points do
    full_rows: Int64 | None = None  # [items, MOST_ROWS], see `outline`
    excess: Int64 | None = None  # of these rows with the fastest points
    memory: ItemMemory | None = None  # beside outlines, see `pricing`

    def select(self, keep: NDArray[np.bool_]) -> Items:
        """Only some of the items."""
        return self.take(np.flatnonzero(keep))

    def take(self, order: NDArray[np.integer]) -> Items:
        """Some of the items, in another order."""
        counts = np.diff(self.first)[order]
        first = np.append(0, np.cumsum(counts))
        points = np.repeat(self.first[:-1][order] - first[:-1], counts) + np.arange(first[-1])
        best = (self.best - self.first[:-1])[order] + first[:-1]
        return Items(
            self.group, self.choice[order], self.base[order], first, self.extra[points], self.credit[points],
            self.most_hidden[order], self.head[order], self.reduce[order], self.pick[points], best, self.vague[order],
            self.outline, None if self.full_rows is None else self.full_rows[order],
            None if self.excess is None else self.excess[order],
            None if self.memory is None else self.memory.take(order),
        )  # fmt: skip


def join_items(group: Group, choice: Int64, head: Int64, reduce: Int64, parts: list[tuple[Any, ...]]) -> Items:
    """Items of their points: (times, picks, hidden, most hidden, vague, whether the last one is real) of every item."""
    stages, pieces = len(group.stages), len(group.pieces)
    if not parts:
        none = np.zeros((0, stages, 3), np.int64)
        flat = np.zeros((0, stages), np.int64)
        empty = np.zeros(0, np.int64)
        return Items(
            group, choice, none, np.zeros(1, np.int64), none, flat, flat, head, reduce,
            np.zeros((0, pieces), np.int64), empty, np.zeros(0, np.bool_),
        )  # fmt: skip
    first = np.append(0, np.cumsum([len(part[0]) for part in parts]))
    times = np.concatenate([part[0] for part in parts])
    base = np.minimum.reduceat(times, first[:-1])
    work = times.sum(axis=(1, 2))
    # of merged points only the last one may be real
    best = np.array(
        [
            stop - 1 if part[4] and part[5] else start + int(np.argmin(work[start:stop]))
            for (start, stop), part in zip(pairwise(first), parts, strict=True)
        ]
    )
    return Items(
        group, choice, base, first, times - np.repeat(base, np.diff(first), axis=0),
        np.concatenate([part[2] for part in parts]), np.array([part[3] for part in parts]), head, reduce,
        np.concatenate([part[1] for part in parts]), best, np.array([part[4] for part in parts]),
    )  # fmt: skip
