"""Points merged until there is room for them stay lower bounds: the optimum is found all the same."""

from __future__ import annotations

import pytest

from prism_cp.baselines.exhaustive import all_assignments
from prism_cp.cp.exact import evaluate, is_feasible
from prism_cp.engine import items, points, solve_with_engine
from tests.engine.problems import small_problem


@pytest.mark.parametrize("room", [1, 2])
def test_the_optimum_is_found_whatever_the_room(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    merged = []
    merge = points._merge
    monkeypatch.setattr(points, "_merge", lambda block, most: merged.append(most) or merge(block, most))
    monkeypatch.setattr(items, "POINTS_AT_ONCE", room)
    monkeypatch.setattr(points, "MOST_TRIALS", (1 << 40, 1 << 40))
    for seed in range(40):
        problem = small_problem(seed, most_plans=1_000)
        plans = [plan for plan in all_assignments(problem) if is_feasible(problem, plan)]
        best = min((evaluate(problem, plan).pipeline_time for plan in plans), default=None)
        found = solve_with_engine(problem)
        assert found.status == ("infeasible" if best is None else "optimal"), seed
        assert found.pipeline_time == best
    assert merged
    assert room > 1 or 1 in merged
