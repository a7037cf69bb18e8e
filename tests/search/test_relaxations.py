"""Relaxations of infeasible instances: each change, made by hand, gives what was promised, and less does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_cp.inputs.load import load_instance
from prism_cp.search.relaxations import Relaxation, cheapest_relaxations
from prism_cp.search.solve import solve_instance

TINY = Path(__file__).parents[2] / "instances" / "tiny"
DEVICES = "cluster.num_devices="
MEMORY = "cluster.device.memory_bytes="
MARGIN = "profile.memory_margin="


@pytest.fixture(scope="module", params=["infeasible-states-4", "infeasible-activations-4"])
def relaxed(request: pytest.FixtureRequest) -> tuple[Path, list[Relaxation]]:
    path = TINY / f"{request.param}.yaml"
    return path, cheapest_relaxations(load_instance(path))


def test_every_change_gives_what_it_promises(relaxed: tuple[Path, list[Relaxation]]) -> None:
    path, relaxations = relaxed
    changes = [relaxation for relaxation in relaxations if not relaxation.change.startswith(DEVICES)]
    assert changes
    for relaxation in changes:
        result = solve_instance(load_instance(path, relaxation.change.split()))
        assert (result.status, result.proved) == ("optimal", True), relaxation.change
        assert result.objective == relaxation.result.objective, relaxation.change


def test_fastest_first(relaxed: tuple[Path, list[Relaxation]]) -> None:
    objectives = [relaxation.result.objective or 0 for relaxation in relaxed[1]]
    assert objectives == sorted(objectives)
    assert all(objectives)


def test_more_devices_give_what_they_promise(relaxed: tuple[Path, list[Relaxation]]) -> None:
    path, relaxations = relaxed
    [relaxation] = [relaxation for relaxation in relaxations if relaxation.change.startswith(DEVICES)]
    result = solve_instance(load_instance(path, relaxation.change.split()))
    assert result.objective == relaxation.result.objective


def test_less_memory_does_not_do(relaxed: tuple[Path, list[Relaxation]]) -> None:
    path, relaxations = relaxed
    changes = [relaxation.change for relaxation in relaxations]
    [memory] = [int(change.removeprefix(MEMORY)) for change in changes if change.startswith(MEMORY)]
    less = memory * 49 // 50 - 2**20
    assert solve_instance(load_instance(path, [f"{MEMORY}{less}"])).status == "infeasible"


def test_a_smaller_margin_is_offered_where_it_helps_and_is_the_largest_of_the_grid() -> None:
    """A device so small that only the margin stands in the way."""
    path = TINY / "memory-tight-4.yaml"
    tight = ["layout.tp=2", "layout.pp=2", "layout.recompute=full", "profile.memory_margin=0.2", f"{MEMORY}1200000000"]
    assert solve_instance(load_instance(path, tight)).status == "infeasible"
    changes = [relaxation.change for relaxation in cheapest_relaxations(load_instance(path, tight))]
    [margin] = [float(change.removeprefix(MARGIN)) for change in changes if change.startswith(MARGIN)]
    assert 0 < margin < 0.2
    assert solve_instance(load_instance(path, [*tight, f"{MARGIN}{margin}"])).status == "optimal"
    assert solve_instance(load_instance(path, [*tight, f"{MARGIN}{margin + 0.025}"])).status == "infeasible"
