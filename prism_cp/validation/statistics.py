"""Statistics of errors, and of how well predictions rank what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

PAIR_DIFFERENCE = 0.02  # measurements that differ by less are not worth ordering


@dataclass(frozen=True)
class ErrorStatistics:
    """Relative errors, as fractions: predicted over measured, minus one.

    Attributes
    ----------
    count
    bias
        Mean error.
    mean, median, p95, largest
        Of the absolute error.
    """

    count: int
    bias: float
    mean: float
    median: float
    p95: float
    largest: float


def error_statistics(pairs: Sequence[tuple[float, float]]) -> ErrorStatistics | None:
    """Statistics of (predicted, measured) pairs; None when there are none."""
    if not pairs:
        return None
    errors = np.array([predicted / measured - 1 for predicted, measured in pairs])
    sizes = np.abs(errors)
    return ErrorStatistics(
        len(pairs),
        float(errors.mean()),
        float(sizes.mean()),
        float(np.median(sizes)),
        float(np.percentile(sizes, 95)),
        float(sizes.max()),
    )


@dataclass(frozen=True)
class UnderPrediction:
    """By how much measured values exceed predicted ones, as fractions of the measured; 0 where they do not.

    Attributes
    ----------
    count
    p95, p99, largest
    """

    count: int
    p95: float
    p99: float
    largest: float


def under_prediction(pairs: Sequence[tuple[float, float]]) -> UnderPrediction:
    """Of (predicted, measured) pairs, at least one; percentiles are interpolated."""
    lacking = np.array([max(0.0, 1 - predicted / measured) for predicted, measured in pairs])
    p95, p99 = np.percentile(lacking, (95, 99))
    return UnderPrediction(len(pairs), float(p95), float(p99), float(lacking.max()))


@dataclass(frozen=True)
class Ranking:
    """How predictions order the rows of one section.

    Attributes
    ----------
    count
        Rows.
    pairs, ordered
        Pairs whose measurements differ by more than `PAIR_DIFFERENCE`, and those of them that are ordered right.
    spearman
        Rank correlation; None with fewer than three rows or with equal values only.
    regret
        What choosing the row of the smallest prediction costs over the best measured one, as a fraction.
    """

    section: str
    count: int
    pairs: int
    ordered: int
    spearman: float | None
    regret: float


def ranking(section: str, rows: Sequence[tuple[float, float]]) -> Ranking:
    """Ranking of the (predicted, measured) rows of one section, at least one."""
    pairs = ordered = 0
    for (p, m), (q, n) in combinations(rows, 2):
        if abs(m - n) > PAIR_DIFFERENCE * min(m, n):
            pairs += 1
            ordered += (p - q) * (m - n) > 0
    chosen = min(rows, key=lambda row: row[0])[1]
    best = min(measured for _, measured in rows)
    return Ranking(section, len(rows), pairs, ordered, _spearman(rows), chosen / best - 1)


def _spearman(rows: Sequence[tuple[float, float]]) -> float | None:
    if len(rows) < 3:
        return None
    ranks = [_average_ranks(np.array(column)) for column in zip(*rows, strict=True)]
    if any(column.std() == 0 for column in ranks):
        return None
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _average_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 0, equal values share the mean of theirs."""
    order = np.argsort(values, kind="stable")
    ranks = np.empty(len(values))
    ranks[order] = np.arange(len(values))
    for value in np.unique(values):
        same = values == value
        ranks[same] = ranks[same].mean()
    return ranks
