"""The whole search: repeatable, honest when it is stopped or asked for a gap, the same with several processes."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from prism_cp.baselines.exhaustive import exhaustive_layouts
from prism_cp.inputs.layout import SCHEDULES
from prism_cp.inputs.load import load_instance
from prism_cp.result import SearchResult
from prism_cp.search.options import Progress, SearchOptions
from prism_cp.search.solve import solve_instance
from tests.random_instances import Case, random_cases

INSTANCES = Path(__file__).parents[2] / "instances"
FAMILIES = (600, 601, 602, 603)
FAMILY = 6


@cache
def cases(seed: int) -> tuple[tuple[Case, int | None], ...]:
    """Instances of a family over every schedule, each with its optimum by enumeration."""
    found = []
    for case in random_cases(seed, FAMILY, SCHEDULES):
        best = exhaustive_layouts(case.candidates)
        found.append((case, None if best is None else best[0]))
    return tuple(found)


def feasible(seeds: tuple[int, ...] = FAMILIES) -> list[tuple[Case, int]]:
    return [(case, optimum) for seed in seeds for case, optimum in cases(seed) if optimum is not None]


def assert_honest(result: SearchResult, optimum: int | None, total: int) -> None:
    """What every result has to satisfy, stopped or not."""
    s = result.statistics
    assert s.pruned + s.no_better + s.solved + s.infeasible + s.open == s.layouts_total == total
    if result.status == "infeasible":
        assert optimum is None
    if result.bound is not None and optimum is not None:
        assert result.bound <= optimum
    if result.objective is not None:
        assert optimum is not None
        assert result.objective >= optimum
        assert result.bound is not None
        assert result.proved == (result.bound == result.objective)
        assert result.status == ("optimal" if result.proved else "feasible")
    elif not result.proved:
        assert result.status == "unknown"


# -- repeatable --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", FAMILIES)
def test_same_seed_and_one_worker_give_the_same_plan(seed: int) -> None:
    for case, _ in cases(seed):
        first, second = (solve_instance(case.instance, SearchOptions(seed=5), cost_model=case.costs) for _ in range(2))
        assert first.best == second.best
        assert first.others == second.others
        assert first.opened == second.opened
        timeless = [replace(result.statistics, wall_s=0.0) for result in (first, second)]
        assert timeless[0] == timeless[1]


def test_processes_find_the_same_optimum() -> None:
    """Interleaved and zero-bubble layouts are decided in the contest, which then runs in processes."""
    chosen = [
        (case, optimum)
        for case, optimum in feasible()
        if sum(layout.schedule not in ("gpipe", "1f1b") for layout, _ in case.candidates) >= 2
    ][:2]
    assert len(chosen) == 2
    for case, optimum in chosen:
        result = solve_instance(case.instance, SearchOptions(workers=2), cost_model=case.costs)
        assert_honest(result, optimum, len(case.candidates))
        assert (result.status, result.objective, result.bound) == ("optimal", optimum, optimum)
        assert result.workers == 2


# -- stopped -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", FAMILIES)
def test_a_stop_after_the_first_plan_leaves_a_true_bound(seed: int) -> None:
    stopped_early = 0
    for case, optimum in cases(seed):
        stop = threading.Event()

        def on_progress(progress: Progress, stop: threading.Event = stop) -> None:
            if progress.incumbent_s is not None:
                stop.set()

        result = solve_instance(case.instance, progress=on_progress, stop=stop, cost_model=case.costs)
        assert_honest(result, optimum, len(case.candidates))
        assert (result.objective is None) == (optimum is None)
        assert result.interrupted == (optimum is not None)
        stopped_early += result.statistics.open > 0
    assert stopped_early or all(len(case.candidates) < 3 for case, _ in cases(seed))


def test_a_stop_before_the_start_leaves_everything_open() -> None:
    stop = threading.Event()
    stop.set()
    for case, optimum in feasible():
        result = solve_instance(case.instance, stop=stop, cost_model=case.costs)
        assert_honest(result, optimum, len(case.candidates))
        assert (result.status, result.best, result.interrupted) == ("unknown", None, True)
        assert result.statistics.open == len(case.candidates)
        assert result.bound is not None
        assert result.bound > 0


def test_no_time_leaves_everything_open() -> None:
    for case, optimum in feasible()[:4]:
        result = solve_instance(case.instance, SearchOptions(time_limit_s=0.0), cost_model=case.costs)
        assert_honest(result, optimum, len(case.candidates))
        assert result.status == "unknown"


# -- gap ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", [0.001, 0.02, 0.1, 0.4])
def test_a_gap_is_met_and_true(gap: float) -> None:
    unproved = 0
    for case, optimum in feasible():
        result = solve_instance(case.instance, SearchOptions(gap=gap), cost_model=case.costs)
        assert_honest(result, optimum, len(case.candidates))
        assert result.objective is not None
        assert result.bound is not None
        assert result.objective - result.bound <= gap * result.objective
        assert result.statistics.open == 0
        unproved += not result.proved
    assert unproved or gap < 0.1  # a wide gap spares the proof


# -- infeasible --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["infeasible-states-4", "infeasible-activations-4"])
def test_infeasible_instances_are_proved_so(name: str) -> None:
    result = solve_instance(load_instance(INSTANCES / "tiny" / f"{name}.yaml"))
    assert (result.status, result.proved, result.objective, result.bound) == ("infeasible", True, None, None)
    assert result.statistics.infeasible == result.statistics.layouts_total > 0


def test_random_infeasible_instances_are_proved_so() -> None:
    found = 0
    for seed in FAMILIES:
        for case, optimum in cases(seed):
            if optimum is None:
                found += 1
                result = solve_instance(case.instance, cost_model=case.costs)
                assert (result.status, result.statistics.infeasible) == ("infeasible", len(case.candidates))
    assert found


# -- progress ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [1, 2])
def test_progress_is_true_at_every_moment(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports at every step instead of a few times a second: no bound above the optimum, no incumbent below it."""
    monkeypatch.setattr("prism_cp.search.state.PROGRESS_PERIOD_S", 0.0)
    monkeypatch.setattr("prism_cp.search.contest.POLL_S", 0.0005)
    reports = 0
    for case, optimum in feasible()[: None if workers == 1 else 1]:
        seen: list[Progress] = []
        solve_instance(case.instance, SearchOptions(workers=workers), seen.append, cost_model=case.costs)
        best = optimum * case.instance.time_unit_s
        for progress in seen:
            assert progress.bound_s is None or progress.bound_s <= best * (1 + 1e-9), (case.instance.layout, progress)
            assert progress.incumbent_s is None or progress.incumbent_s >= best * (1 - 1e-9)
            assert progress.gap is None or progress.gap >= 0
            assert 0 <= progress.layouts_left <= progress.layouts_total
        incumbents = [progress.incumbent_s for progress in seen if progress.incumbent_s is not None]
        assert incumbents == sorted(incumbents, reverse=True)
        assert seen[-1].message == "done"
        assert seen[-1].layouts_left == 0
        assert seen[-1].bound_s == pytest.approx(best)
        reports += len(seen)
    assert reports >= (20 if workers == 1 else 3)
