"""Estimates of given configurations."""

from __future__ import annotations

import pytest

from prism_cp.errors import InstanceError
from prism_cp.estimation.configuration import configure
from prism_cp.estimation.estimate import estimate
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.inputs.load import load_instance


@pytest.fixture(scope="module")
def instance() -> Instance:
    """A dense model on two devices."""
    return load_instance(None, model="gpt2", cluster="2xh100", gbs=8, seq_len=1024)


def layout(**changes: object) -> Layout:
    """Two pipeline ranks unless changed."""
    values: dict[str, object] = {
        "tp": 1, "sp": False, "cp": 1, "cp_comm": "p2p", "ep": 1, "etp": 1, "dp": 1, "pp": 2, "vpp": 1, "mbs": 1,
        "zero": 1, "schedule": "1f1b", "num_microbatches": 8,
    }  # fmt: skip
    return Layout(**{**values, **changes})  # type: ignore[arg-type]


def test_peak_is_the_largest_phase(instance: Instance) -> None:
    """The peak is the maximum of the phases, and its terms add up to it."""
    for rank in estimate(configure(instance, layout())).ranks:
        assert rank.peak_gib == max(rank.phases_gib.values())
        assert rank.peak_gib == pytest.approx(sum(rank.breakdown_gib.values()), rel=1e-12)
        assert rank.steady_gib <= rank.peak_gib


def test_moments_are_missing_in_the_first_step(instance: Instance) -> None:
    """Adam's moments are 8 of 12 bytes of optimizer state and come with the first update."""
    rank = estimate(configure(instance, layout(pp=1, dp=2, num_microbatches=4))).ranks[0]
    later, first = rank.phases_gib["later steps"], rank.phases_gib["first step"]
    assert later - first == pytest.approx(8 / 12 * rank.breakdown_gib["optimizer"], rel=1e-9)


def test_stated_layers_move_memory(instance: Instance) -> None:
    """A stage with more layers holds more."""
    even = estimate(configure(instance, layout())).ranks
    moved = estimate(configure(instance, layout(), stage_layers=(10, 2))).ranks
    assert moved[0].peak_gib > even[0].peak_gib
    assert moved[1].peak_gib < even[1].peak_gib


def test_recomputation_saves_memory_and_costs_time(instance: Instance) -> None:
    """Full recomputation of some layers lies between none and all."""
    none = estimate(configure(instance, layout()))
    some = estimate(configure(instance, layout(), recompute=["full", *["none"] * 11]))
    full = estimate(configure(instance, layout(), recompute="full"))
    assert none.iteration_s < some.iteration_s < full.iteration_s
    assert none.ranks[0].peak_gib > some.ranks[0].peak_gib > full.ranks[0].peak_gib


@pytest.mark.parametrize("wrong", [{"stage_layers": (6, 5)}, {"recompute": "attention"}, {"recompute": ["none"]}])
def test_wrong_statements_are_refused(instance: Instance, wrong: dict[str, object]) -> None:
    """Layers that do not add up and unknown modules are named."""
    with pytest.raises(InstanceError):
        configure(instance, layout(), **wrong)  # type: ignore[arg-type]
