"""Engine room: what one piece can choose: Pareto points of all strategy multisets of a composition.

A point has, for every table its piece is costed with, activation memory, largest transient, forward, input-gradient
and weight-gradient time. A dominated multiset can still be useful for one thing: it may hide more gradient reduction.
Its dominating point takes that over as *credit*, less the input-gradient time saved. Along any path that runs through
the input gradient of the stage at least as often as it counts the rank's tail this keeps every bound valid; other
paths use the most that any multiset hides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from prism_cp.stage_problem import StageProblem

Int64 = NDArray[np.int64]

ACTIVATION, TRANSIENT, FORWARD, INPUT_GRAD, WEIGHT_GRAD = range(5)
COLUMNS = 5
MOST_POINTS = 4_096  # per composition; beyond it points are merged into lower bounds
MOST_PAIRS = 1_000_000


@dataclass(frozen=True)
class Points:
    """Pareto points of one composition under the tables of a piece.

    Attributes
    ----------
    values : int64 array [points, tables, COLUMNS]
    credit : int64 array [points, tables]
        Hideable time, credit for dominated multisets included.
    counts : int64 array [points, strategies of all kinds]
        The multiset; -1 in the first column where a point stands for several (a lower bound of all of them).
    most_hidden : int64 array [tables]
        The most that any multiset hides.
    """

    values: Int64
    credit: Int64
    counts: Int64
    most_hidden: Int64


class Choices:
    """Points of every composition, for one tuple of tables; made when asked for and kept."""

    def __init__(self, problem: StageProblem, tables: tuple[int, ...]) -> None:
        self._costs: list[Int64] = []
        self._hide: list[Int64] = []
        self._offset = [0]
        for kind in range(problem.num_kinds):
            rows = [problem.tables[table][kind].strategies for table in tables]
            self._costs.append(
                np.array(
                    [
                        [(s.activation, s.transient, s.forward, s.input_grad, s.weight_grad) for s in each]
                        for each in zip(*rows, strict=True)
                    ],
                    np.int64,
                )
            )
            self._hide.append(np.array([[s.hideable for s in each] for each in zip(*rows, strict=True)], np.int64))
            self._offset.append(self._offset[-1] + len(rows[0]))
        empty = Points(
            np.zeros((1, len(tables), COLUMNS), np.int64),
            np.zeros((1, len(tables)), np.int64),
            np.zeros((1, self._offset[-1]), np.int64),
            np.zeros(len(tables), np.int64),
        )
        self._fronts = [[empty] for _ in range(problem.num_kinds)]
        self._kept: dict[tuple[int, ...], Points] = {}

    def points(self, composition: tuple[int, ...]) -> Points:
        """Pareto points of all strategy multisets of the composition."""
        found = self._kept.get(composition)
        if found is None:
            parts = [self._front(kind, n) for kind, n in enumerate(composition) if n]
            found = parts[0] if parts else self._fronts[0][0]
            for part in parts[1:]:
                found = _sum(found, part)
            self._kept[composition] = found
        return found

    def _front(self, kind: int, layers: int) -> Points:
        fronts = self._fronts[kind]
        single = np.zeros((len(self._costs[kind]), self._offset[-1]), np.int64)
        rows = np.arange(len(single))
        single[rows, self._offset[kind] + rows] = 1
        one = Points(self._costs[kind], self._hide[kind], single, self._hide[kind].max(axis=0))
        while len(fronts) <= layers:
            fronts.append(_sum(fronts[-1], one))
        return fronts[layers]


def _sum(one: Points, other: Points) -> Points:
    """All pairs, Pareto points only: everything adds up, but one transient lives at a time."""
    if len(one.values) * len(other.values) > MOST_PAIRS:
        one, other = _thin(one, 1_000), _thin(other, 1_000)
    values = one.values[:, None] + other.values[None, :]
    values[..., TRANSIENT] = np.maximum(one.values[:, None, :, TRANSIENT], other.values[None, :, :, TRANSIENT])
    values = values.reshape(-1, *values.shape[2:])
    credit = (one.credit[:, None] + other.credit[None, :]).reshape(len(values), -1)
    flat = values.reshape(len(values), -1)
    order = np.lexsort(np.hstack([flat, -credit]).T[::-1])
    flat, credit = np.ascontiguousarray(flat[order]), np.ascontiguousarray(credit[order])
    kept = pareto(flat, credit)
    first, second = np.divmod(order[kept], len(other.values))
    counts = one.counts[first] + other.counts[second]
    vague = (one.counts[first, 0] < 0) | (other.counts[second, 0] < 0)
    counts[vague, 0] = -1
    points = Points(values[order[kept]], credit[kept], counts, one.most_hidden + other.most_hidden)
    return _thin(points, MOST_POINTS)


def _thin(points: Points, most: int) -> Points:
    """At most `most` points: neighbouring ones replaced by their least values and their greatest credit."""
    if len(points.values) <= most:
        return points
    order = np.lexsort((points.values[:, 0, ACTIVATION], points.values[:, 0, TRANSIENT]))
    edges = np.arange(most) * len(order) // most
    counts = points.counts[order][edges]
    counts[np.diff(np.append(edges, len(order))) > 1, 0] = -1
    return Points(
        np.minimum.reduceat(points.values[order], edges),
        np.maximum.reduceat(points.credit[order], edges),
        counts,
        points.most_hidden,
    )


def _pareto(values: Any, credit: Any) -> Any:
    """Rows no other row dominates, of rows in lexicographic order; their credit grows by that of dominated ones."""
    rows, columns = values.shape
    tables = credit.shape[1]
    kept = np.empty(rows, np.int64)
    count = 0
    for i in range(rows):
        dominated = False
        for k in range(count - 1, -1, -1):
            j = kept[k]
            dominated = True
            for c in range(columns):
                if values[j, c] > values[i, c]:
                    dominated = False
                    break
            if dominated:
                for t in range(tables):
                    saved = values[i, 5 * t + 3] - values[j, 5 * t + 3]
                    credit[j, t] = max(credit[j, t], credit[i, t] - saved)
                break
        if not dominated:
            kept[count] = i
            count += 1
    return kept[:count]


pareto = njit(cache=True)(_pareto)
