"""Worst case over expert loads: bounds hold at every load between, also where step time is not monotone."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_cp.errors import InstanceError, UsageError
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.inputs.load import instance_from_mapping
from prism_cp.pipeline import get_schedule
from prism_cp.robustness.load_range import LoadRange, at_load, parse_load_range, require_load
from prism_cp.robustness.worst_case import LoadTables, bounded_by, headroom, step_time, worst_case
from prism_cp.stage_problem import StageProblem
from tests.random_instances import random_assignment
from tests.sample_plan import LAYOUT, sample_instance

LOADS = (1.0, 1.5, 1.75, 3.0)
FAMILIES: dict[str, dict[str, Any]] = {
    "hidden": {"gradient_overlap_window": 1.0, "full_cuda_graphs": True},
    "host": {"gradient_overlap_window": 0.6, "host_launch_floor_s": 2e-4, "moe_host_sync_s": 1e-4},
    "exposed": {"overlap_grad_reduce": False, "overlap_param_gather": False, "dispatcher": "allgather"},
}
SCHEDULES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("zb-h1", 1), ("zb-v", 2), ("dualpipev", 2)]


def family_instance(family: str) -> Instance:
    """The sample on a slow network, in fine units, so that everything that may be exposed is."""
    raw = sample_instance().model_dump(mode="json")
    raw["profile"] = {**raw["profile"], **FAMILIES[family]}
    raw["cluster"]["links"][0]["bytes_per_s"] = 2e10
    raw["job"]["seq_len"] = 512  # little computation, so that ZeRO-3 leaves gathers and reductions exposed
    raw["time_unit_s"] = 1e-8
    raw["memory_unit_bytes"] = 1
    return instance_from_mapping(raw)


@cache
def family_tables(family: str) -> LoadTables:
    return LoadTables(family_instance(family))


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    schedule, vpp = draw(st.sampled_from(SCHEDULES))
    return replace(
        LAYOUT,
        ep=draw(st.sampled_from([1, 2, 4])),
        zero=draw(st.integers(0, 3)),
        schedule=schedule,
        vpp=vpp,
        mbs=draw(st.sampled_from([1, 2])),
        num_microbatches=draw(st.sampled_from([4, 8])),
    )


def entries(problem: StageProblem) -> list[list[int]]:
    """What must not be below the true value; the last list must not be above."""
    rows = [row for kind in problem.tables[0] for row in kind.strategies]
    ends = [stage.ends for stage in problem.virtual_stages]
    split = get_schedule(problem.schedule).splits_backward
    return [
        [row.forward for row in rows],
        [row.input_grad + (0 if split else row.weight_grad) for row in rows],
        [row.weight_grad for row in rows],
        [row.activation for row in rows] + [row.transient for row in rows] + [end.transient for end in ends],
        [kind.head for kind in problem.tables[0]] + [kind.deferred for kind in problem.tables[0]],
        [-row.hideable for row in rows],
    ]


@pytest.mark.parametrize("family", FAMILIES)
def test_bounds_hold_at_every_load_between(family: str) -> None:
    tables = family_tables(family)

    @settings(max_examples=8, deadline=None)
    @given(layouts(), st.lists(st.sampled_from(LOADS), min_size=3, max_size=3, unique=True), st.integers(0, 999))
    def hold(layout: Layout, loads: list[float], seed: int) -> None:
        low, between, high = sorted(loads)
        upper, true = tables.upper_problem(layout, low, high), tables.problem(layout, between)
        for bounds, values in zip(entries(upper), entries(true), strict=True):
            assert all(bound >= value for bound, value in zip(bounds, values, strict=True))
        assignment = random_assignment(true, random.Random(seed))
        assert step_time(upper, assignment) >= step_time(true, assignment)
        assert headroom(upper, assignment) <= headroom(true, assignment)

    hold()


def test_step_time_can_fall_with_the_load() -> None:
    """Why ranges are bounded and not only their upper ends: under ZeRO-3 both exposed gathers and exposed reductions
    hide behind what the load adds, and a layer's input gradient gets shorter."""
    tables, layout = family_tables("hidden"), replace(LAYOUT, zero=3)
    before, after = (tables.problem(layout, load).tables[0][1].strategies[0] for load in (1.0, 1.5))
    assert after.input_grad + after.weight_grad < before.input_grad + before.weight_grad


def test_without_sharded_gradients_kernel_times_rise() -> None:
    tables = family_tables("hidden")
    for ep in (2, 4):
        layout = replace(LAYOUT, zero=1, ep=ep)
        rows = [tables.problem(layout, load).tables[0][1].strategies[0] for load in LOADS]
        for field in ("forward", "input_grad", "weight_grad", "activation", "transient"):
            values = [getattr(row, field) for row in rows]
            assert values == sorted(values)
        assert rows[-1].forward > rows[0].forward


def test_the_worst_case_is_the_upper_end_where_nothing_falls() -> None:
    instance = more_memory(family_instance("exposed"))
    profile = instance.profile.model_copy(update={"full_cuda_graphs": True})
    roomy = LoadTables(instance.model_copy(update={"profile": profile}))
    layout = replace(LAYOUT, zero=1, ep=4)
    assignment = random_assignment(roomy.problem(layout, 1.0), random.Random(1))
    found = worst_case(roomy, layout, assignment, (1.0, 1.5, 2.5))
    assert found.loads == (1.0, 1.5, 2.5)
    assert found.at_least == found.at_most == step_time(roomy.problem(layout, 2.5), assignment)


def test_where_the_host_decides_only_rounding_is_left() -> None:
    """Weight gradients grow at the cost of what the host's launches leave of the input gradient: their sum stays."""
    roomy = LoadTables(more_memory(family_instance("exposed")))
    layout = replace(LAYOUT, zero=1, ep=4)
    assignment = random_assignment(roomy.problem(layout, 1.0), random.Random(1))
    found = worst_case(roomy, layout, assignment, (1.0, 1.2), most=2)
    assert found.at_most is not None
    layers = len(roomy.instance.model.chain)
    assert found.at_least <= found.at_most <= found.at_least + 2 * layers * layout.num_microbatches


def test_ranges_are_halved_until_bound_and_step_time_are_close() -> None:
    """Reduction that a growing backward hides: the bound over the whole range is too high, halves are better."""
    roomy = LoadTables(more_memory(family_instance("hidden")))
    layout = replace(LAYOUT, zero=1, ep=4)
    assignment = random_assignment(roomy.problem(layout, 1.0), random.Random(1))
    coarse = bounded_by(roomy, layout, assignment, (1.0, 4.0))
    fine = worst_case(roomy, layout, assignment, (1.0, 4.0), most=8)
    assert coarse.at_most is not None
    assert fine.at_most is not None
    assert fine.at_least <= fine.at_most <= coarse.at_most
    assert fine.at_most - fine.at_least < (coarse.at_most - coarse.at_least) / 4 or fine.at_most == fine.at_least
    assert bounded_by(roomy, layout, assignment, fine.loads) == fine
    for load in (1.3, 2.2, 3.9):
        assert step_time(roomy.problem(layout, load), assignment) <= fine.at_most


def test_a_plan_that_outgrows_memory_has_no_worst_case() -> None:
    tables, layout = family_tables("exposed"), replace(LAYOUT, ep=4)
    assignment = random_assignment(tables.problem(layout, 1.0), random.Random(1))
    free = headroom(tables.problem(layout, 1.0), assignment)
    device = tables.instance.cluster.device
    share = tables.instance.profile.capacity_share
    tight = device.model_copy(update={"memory_bytes": int(device.memory_bytes - free / share) + 2})
    cluster = tables.instance.cluster.model_copy(update={"device": tight})
    small = LoadTables(tables.instance.model_copy(update={"cluster": cluster}))
    assert headroom(small.problem(layout, 1.0), assignment) >= 0
    assert worst_case(small, layout, assignment, (1.0, 4.0)).at_most is None


def more_memory(instance: Instance) -> Instance:
    device = instance.cluster.device.model_copy(update={"memory_bytes": 2**40})
    return instance.model_copy(update={"cluster": instance.cluster.model_copy(update={"device": device})})


# -- ranges ------------------------------------------------------------------------------------------------------------


def test_ranges() -> None:
    assert parse_load_range("load=1.0..2.0") == LoadRange(1.0, 2.0)
    assert parse_load_range(" load = 1 .. 1.5") == LoadRange(1.0, 1.5)
    assert LoadRange(1.0, 2.0).points == (1.0, 1.25, 1.5, 1.75, 2.0)
    assert LoadRange(1.0, 1.0 + 1e-15).points == (1.0, 1.0 + 1e-15)


@pytest.mark.parametrize(
    "text", ["", "load", "load=2", "load=0.5..2", "load=2..1", "load=1..1", "load=1..inf", "load=nan..2", "ep=1..2"]
)
def test_refused_ranges(text: str) -> None:
    with pytest.raises(UsageError, match=r"load=LOW\.\.HIGH with 1 <= LOW < HIGH"):
        parse_load_range(text)


def test_refused_instances() -> None:
    sample = sample_instance()
    require_load(sample)
    raw = sample.model_dump(mode="json")
    padded = sample.model_copy(update={"job": sample.job.model_copy(update={"capacity_factor": 1.25})})
    with pytest.raises(UsageError, match=r"capacity_factor 1\.25 pads"):
        require_load(padded)
    stated = instance_from_mapping({**raw, "job": {**raw["job"], "expert_load": {"1-1": 1.5}}})
    with pytest.raises(UsageError, match=r"expert_load of their own, 1\.5"):
        require_load(stated)
    dense = instance_from_mapping({"name": "d", "model": "llama-3.1-8b", "cluster": "8xh100", "job": raw["job"]})
    with pytest.raises(UsageError, match="has no experts"):
        require_load(dense)
    assert at_load(sample, 1.5).job.expert_load == 1.5
    with pytest.raises(InstanceError):
        instance_from_mapping({**raw, "job": {**raw["job"], "expert_load": 0.5}})
