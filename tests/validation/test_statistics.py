"""Error statistics and rankings."""

from __future__ import annotations

import pytest

from prism_cp.validation.statistics import error_statistics, ranking


def test_errors() -> None:
    errors = error_statistics([(1.1, 1.0), (0.8, 1.0), (1.0, 1.0)])
    assert errors is not None
    assert errors.count == 3
    assert errors.bias == pytest.approx(-0.1 / 3)
    assert errors.mean == pytest.approx(0.1)
    assert errors.median == pytest.approx(0.1)
    assert errors.largest == pytest.approx(0.2)
    assert error_statistics([]) is None


def test_ranking_counts_pairs_that_differ() -> None:
    found = ranking("s", [(1.0, 10.0), (2.0, 10.1), (3.0, 12.0), (2.5, 15.0)])
    assert (found.pairs, found.ordered) == (5, 4)  # 10.0 and 10.1 are equal; 12 and 15 are exchanged
    assert found.regret == 0
    assert found.spearman == pytest.approx(0.8)


def test_regret() -> None:
    found = ranking("s", [(2.0, 10.0), (1.0, 11.0)])
    assert found.regret == pytest.approx(0.1)
    assert found.spearman is None
