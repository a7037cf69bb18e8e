"""One contested stage problem: what happens when the engine is stopped."""

from __future__ import annotations

from typing import Any

import pytest

from prism_cp.benchmark.family import FAMILY, family_problem
from prism_cp.engine.items import ItemMaker
from prism_cp.engine.limits import SearchStopped
from prism_cp.search.stage import solve_contested


@pytest.mark.parametrize("step", ["sketch", "make"])
def test_an_engine_that_stops_early_leaves_the_problem_open(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deadline may pass while the engine makes its first plans or its tables; that is no failure of the search."""
    problem = family_problem(next(case for case in FAMILY if case.schedule == "interleaved"))

    def stopped(*arguments: Any, **options: Any) -> None:
        raise SearchStopped

    monkeypatch.setattr(ItemMaker, step, stopped)
    solution = solve_contested(problem, 1, None, time_limit_s=0.1)
    assert solution.status in ("unknown", "feasible")
    assert solution.bound >= 1
