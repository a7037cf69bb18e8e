"""Second proof room: the strategies of one piece's layers that can matter, as Pareto fronts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from prism_cp.stage_problem import KindCosts, StageProblem

Int64 = NDArray[np.int64]

FORWARD, INPUT_GRAD, WEIGHT_GRAD, HIDEABLE, ACTIVATION, TRANSIENT = range(6)


@dataclass(frozen=True)
class Front:
    """Choices of strategies for a piece's layers, none of which another one beats in everything.

    Attributes
    ----------
    counts : int64 array [choices, strategies of all kinds]
    costs : int64 array [choices, tables, 6]
        Sums over the layers, of transients the largest; in the order of the constants above.
    """

    counts: Int64
    costs: Int64


class Fronts:
    """Fronts of all contents, each made from that with one layer fewer."""

    def __init__(self, problem: StageProblem) -> None:
        self._tables = problem.tables
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...], bool], Front] = {}
        self._first = np.append(0, np.cumsum([len(kind.strategies) for kind in problem.tables[0]]))

    @property
    def num_strategies(self) -> int:
        """Strategies of all kinds."""
        return int(self._first[-1])

    def front(self, tables: tuple[int, ...], content: tuple[int, ...], hiding: bool) -> Front:
        """The front of a content, costed with some of the problem's tables.

        Parameters
        ----------
        hiding
            Whether it matters how much of the gradient reduction a choice can hide.
        """
        key = (tables, content, hiding)
        if key not in self._known:
            self._known[key] = self._made(*key)
        return self._known[key]

    def _made(self, tables: tuple[int, ...], content: tuple[int, ...], hiding: bool) -> Front:
        held = [kind for kind, n in enumerate(content) if n]
        if not held:
            return Front(np.zeros((1, self.num_strategies), np.int64), np.zeros((1, len(tables), 6), np.int64))
        kind = held[-1]
        fewer = self.front(tables, (*content[:kind], content[kind] - 1, *content[kind + 1 :]), hiding)
        more = np.stack([_strategies(self._tables[table][kind]) for table in tables], axis=1)
        added = np.eye(self.num_strategies, dtype=np.int64)[self._first[kind] : self._first[kind + 1]]
        counts = (fewer.counts[:, None] + added).reshape(-1, self.num_strategies)
        costs = fewer.costs[:, None] + more
        costs[..., TRANSIENT] = np.maximum(fewer.costs[:, None, :, TRANSIENT], more[..., TRANSIENT])
        costs = costs.reshape(-1, len(tables), 6)
        signs = np.ones(6, np.int64)
        signs[HIDEABLE] = -1 if hiding else 0
        kept = pareto_minimal((costs * signs).reshape(len(costs), -1))
        return Front(counts[kept], costs[kept])


def _strategies(kind: KindCosts) -> Int64:
    return np.array(
        [(s.forward, s.input_grad, s.weight_grad, s.hideable, s.activation, s.transient) for s in kind.strategies],
        np.int64,
    )


def pareto_minimal(values: Int64) -> NDArray[np.intp]:
    """Indices of rows that no other row is smaller or equal to everywhere, one of equal ones."""
    varying = values[:, np.any(values != values[:1], axis=0)]
    if not varying.shape[1]:
        return np.arange(min(1, len(values)))
    distinct, index = np.unique(varying, axis=0, return_index=True)  # a row can only be beaten by an earlier one
    kept: NDArray[np.intp] = index[_unbeaten(np.ascontiguousarray(distinct))]
    return kept


@njit(cache=True)
def _unbeaten(values: Int64) -> NDArray[np.bool_]:  # pragma: no cover - compiled
    rows, columns = values.shape
    kept = np.empty(rows, np.int64)
    result = np.zeros(rows, np.bool_)
    count = 0
    for i in range(rows):
        beaten = False
        for j in range(count - 1, -1, -1):
            beaten = True
            for x in range(1, columns):
                if values[kept[j], x] > values[i, x]:
                    beaten = False
                    break
            if beaten:
                break
        if not beaten:
            kept[count] = i
            count += 1
            result[i] = True
    return result
