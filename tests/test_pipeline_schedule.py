"""What job and profile make of a schedule: overlapped pairs, expert communication, groups of micro-batches."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest

from prism_cp.check import check_plan
from prism_cp.errors import InstanceError
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import SCHEDULES, Layout
from prism_cp.inputs.load import instance_from_mapping
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.layouts.admissible import AdmissibleLayouts, all_layouts
from prism_cp.pipeline_schedule import pipeline_schedule
from prism_cp.plan_builder import build_plan
from prism_cp.report.critical_path import critical_path
from prism_cp.report.memory_curve import memory_curves
from prism_cp.report.timeline import plan_timeline
from prism_cp.search.solve import solve_instance

LAYOUT = Layout(
    tp=1, sp=False, cp=1, cp_comm="p2p", ep=2, etp=1, dp=2, pp=2, vpp=2, mbs=1, zero=1, schedule="interleaved",
    num_microbatches=8,
)  # fmt: skip


def instance(experts: bool = True, **changes: Any) -> Instance:
    feed_forward: dict[str, Any] = {"type": "dense", "intermediate_size": 2048}
    if experts:
        feed_forward = {"type": "moe", "num_experts": 8, "top_k": 2, "intermediate_size": 1024}
    attention = {"type": "self_attention", "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}
    raw: dict[str, Any] = {
        "name": "small",
        "model": {
            "name": "small",
            "hidden_size": 512,
            "vocab_size": 8000,
            "kinds": [{"name": "a", "attention": attention, "feed_forward": feed_forward}],
            "layers": [{"kind": "a", "count": 6}],
        },
        "cluster": {"like": "h100", "num_devices": 4},
        "profile": {"like": "megatron", "full_cuda_graphs": True, **changes.pop("profile", {})},
        "job": {"gbs": 16, "seq_len": 2048, **changes.pop("job", {})},
        "layout": {"schedule": list(SCHEDULES), **changes.pop("layout", {})},
        **changes,
    }
    return instance_from_mapping(raw)


def forward_times(instance: Instance, schedule: str, **sizes: int) -> int:
    problem = build_stage_problem(instance, replace(LAYOUT, schedule=schedule, **sizes))
    return problem.tables[0][0].strategies[0].forward


def test_options_appear_only_where_they_mean_something() -> None:
    plain = instance()
    assert [pipeline_schedule(plain, name) for name in SCHEDULES] == list(SCHEDULES)
    changed = instance(
        job={"overlap_factor": 0.6}, profile={"expert_overlap": True, "microbatch_group_size_per_vp_stage": 3}
    )
    named = {name: pipeline_schedule(changed, name) for name in SCHEDULES}
    assert named.pop("dualpipe") == "dualpipe[overlap_factor=3/5]"
    assert named.pop("dualpipev") == "dualpipev[overlap_factor=3/5]"
    assert named.pop("interleaved") == (
        "interleaved[microbatch_group_size_per_vp_stage=3,overlap_moe_expert_parallel_comm=True]"
    )
    assert all(name == text for name, text in named.items())
    assert pipeline_schedule(instance(experts=False, profile={"expert_overlap": True}), "interleaved") == "interleaved"


def test_the_token_exchange_is_hidden_where_micro_batches_are_paired() -> None:
    plain, overlapped = instance(), instance(profile={"expert_overlap": True})
    hidden = instance(profile={"expert_overlap": True, "expert_overlap_share": 1.0})
    for schedule, sizes in (("interleaved", {}), ("dualpipev", {}), ("dualpipe", {"vpp": 1}), ("1f1b", {"vpp": 1})):
        times = [forward_times(each, schedule, **sizes) for each in (plain, overlapped, hidden)]
        if schedule == "1f1b":
            assert times[0] == times[1] == times[2]
            continue
        exchange = times[0] - times[2]
        assert exchange > 0
        assert abs(times[0] - times[1] - 0.85 * exchange) <= 1
    # without pipelining the framework pairs neighbouring micro-batches whatever the schedule is called
    alone = {"pp": 1, "vpp": 1, "dp": 4, "num_microbatches": 4}
    assert forward_times(overlapped, "1f1b", **alone) < forward_times(plain, "1f1b", **alone)


def test_the_time_unit_keeps_overlapped_times_fine() -> None:
    assert instance(job={"overlap_factor": 0.6}).time_unit_s == 2e-7
    assert instance(job={"overlap_factor": 0.85}).time_unit_s == 5e-8
    assert instance(job={"overlap_factor": 0.6}, time_unit_s=1e-6).time_unit_s == 1e-6
    assert instance(job={"overlap_factor": 0.6}, layout={"schedule": ["1f1b"]}).time_unit_s == 1e-6
    problem = build_stage_problem(instance(job={"overlap_factor": 0.6}), replace(LAYOUT, schedule="dualpipev"))
    for stage in problem.virtual_stages:
        assert not any(time % 5 for time in (stage.ends.forward, stage.ends.input_grad, stage.ends.weight_grad))
    for strategy in problem.tables[0][0].strategies:
        assert not any(time % 5 for time in (strategy.forward, strategy.input_grad, strategy.weight_grad))


@pytest.mark.parametrize("value", [-0.1, 1.5])
def test_overlap_factors_out_of_range_are_refused(value: float) -> None:
    with pytest.raises(InstanceError, match=r"job\.overlap_factor"):
        instance(job={"overlap_factor": value})


def test_overlap_factors_with_many_digits_are_refused() -> None:
    with pytest.raises(InstanceError, match=r"job\.overlap_factor: 0\.12345.*three decimals"):
        instance(job={"overlap_factor": 0.12345})


def test_stated_group_sizes_decide_what_is_admissible() -> None:
    free = instance(layout={"schedule": ["interleaved"], "pp": [2], "mbs": [1]})
    fixed = instance(
        layout={"schedule": ["interleaved"], "pp": [2], "mbs": [1]}, profile={"microbatch_group_size_per_vp_stage": 8}
    )
    assert {layout.num_microbatches for layout in all_layouts(free)} == {8, 16}
    assert {layout.num_microbatches for layout in all_layouts(fixed)} == {8, 16}
    with pytest.raises(InstanceError, match="layout"):
        AdmissibleLayouts(
            instance(
                layout={"schedule": ["interleaved"], "pp": [2], "mbs": [1]},
                profile={"microbatch_group_size_per_vp_stage": 17},
            )
        )


@pytest.mark.parametrize("schedule", ["dualpipe", "dualpipev", "interleaved"])
@pytest.mark.parametrize("factor", [0.6, 1.0])
def test_plans_with_overlap_pass_the_check_and_add_up(schedule: str, factor: float) -> None:
    space = {"schedule": [schedule], "tp": [1], "pp": [2], "mbs": [1], "recompute": ["none"], "ep": [2], "zero": [1]}
    given = instance(job={"overlap_factor": factor}, layout=space, profile={"expert_overlap": True})
    plan = build_plan(given, solve_instance(given, cost_model=CostModel(given)))
    assert plan.status == "optimal"
    assert check_plan(plan, given).ok
    assert plan.pipeline_time is not None
    assert plan.barrier is not None
    assert critical_path(plan).total == plan.pipeline_time + plan.barrier
    timeline = plan_timeline(plan)
    assert len(memory_curves(timeline)) == 2
    for run in timeline.ranks:
        assert all(start >= end for start, end in zip(run.start[1:], run.end[:-1], strict=True))
    for rank in plan.ranks:
        time = rank.time_s
        whole = time.forward + time.backward + time.head + time.tail + time.bubble - time.overlap
        assert whole == pytest.approx(plan.pipeline_time * plan.time_unit_s)
        assert (time.overlap > 0) == (schedule != "interleaved" and Fraction(str(factor)) < 1)
