"""Traces: the events say what the simulator says, for every schedule."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise

import pytest

from prism_cp.errors import PlanError
from prism_cp.pipeline import get_schedule, schedule_names
from prism_cp.pipeline.schedules.base import RESULT_OF, OpType
from prism_cp.report.memory_curve import memory_curves
from prism_cp.report.timeline import plan_timeline
from prism_cp.report.trace import trace_json
from tests.report.schedule_plans import NUM_MICROBATCHES, schedule_plan
from tests.sample_plan import TABLES, infeasible_plan

SCHEDULES = schedule_names()


def events_of(plan, microbatches=None):
    text, left_out = trace_json(plan, microbatches, tables=TABLES)
    return json.loads(text)["traceEvents"], left_out


def threads_of(events):
    """Slices by thread name, in order of their start."""
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[names[event["tid"]]].append(event)
    return {name: sorted(slices, key=lambda event: event["ts"]) for name, slices in threads.items()}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_op_is_a_slice_and_no_two_overlap(schedule):
    plan = schedule_plan(schedule)
    events, left_out = events_of(plan)
    assert left_out == ""
    threads = threads_of(events)
    layout = plan.layout
    for rank, order in enumerate(get_schedule(schedule).orders(layout.pp, layout.vpp, layout.num_microbatches)):
        slices = threads[f"rank {rank}"]
        assert slices[0]["name"] == "optimizer step, parameter gather"
        assert slices[-1]["name"] == "gradient-norm all-reduce"
        ops = [event for event in slices if "micro-batch" in event["args"]]
        assert [(op["args"]["virtual stage"], op["args"]["micro-batch"]) for op in ops] == [
            (stage, microbatch) for _, stage, microbatch in order.tolist()
        ]
        expected = []
        for op_type, stage, _ in order.tolist():
            times = plan.virtual_stages[stage]
            expected.append(
                {
                    0: times.forward,
                    1: times.input_grad if op_type == OpType.INPUT_GRAD else times.input_grad + times.weight_grad,
                    2: times.weight_grad,
                }[RESULT_OF[op_type]]
            )
        assert [op["dur"] for op in ops] == expected  # the sample's unit is one microsecond
    for slices in threads.values():
        for before, after in pairwise(slices):
            assert before["ts"] + before["dur"] <= after["ts"]
    ends = [event["ts"] + event["dur"] for slices in threads.values() for event in slices]
    assert max(ends) == plan.pipeline_time + plan.barrier


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_transfers_lie_between_the_ops_they_join(schedule):
    plan = schedule_plan(schedule)
    timeline = plan_timeline(plan)
    transfers = timeline.transfers()
    ranks = [stage.rank for stage in plan.virtual_stages]
    hops = sum(ranks[a] != ranks[b] for chain in timeline.chains for a, b in pairwise(chain))
    assert len(transfers) == 2 * hops * NUM_MICROBATCHES // len(timeline.chains)
    ends = {int(end) for run in timeline.ranks for end in run.end}
    starts = {int(start) for run in timeline.ranks for start in run.start}
    for transfer in transfers:
        assert transfer.source != transfer.target
        assert transfer.depart in ends
        assert transfer.used in starts
        assert transfer.arrive == transfer.depart + plan.p2p <= transfer.used
    events, _ = events_of(plan)
    slices = [slot for name, slots in threads_of(events).items() if "sends" in name for slot in slots]
    assert len(slices) == len(transfers)
    arrows = [event for event in events if event["ph"] in "sf"]
    assert len({event["id"] for event in arrows}) == len(transfers)
    assert len(arrows) == 2 * len(transfers)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_memory_counters_peak_where_the_plan_says_and_return_to_the_start(schedule):
    plan = schedule_plan(schedule)
    for rank, curve in zip(plan.ranks, memory_curves(plan_timeline(plan), TABLES), strict=True):
        moments = [moment for moment, _ in curve]
        assert moments == sorted(set(moments))
        peak = max(units for _, units in curve) * plan.memory_unit_bytes / 2**30
        assert peak == rank.memory_gib.total
        assert moments[:2] == [0, rank.head]
        during = [units for moment, units in curve if moment >= rank.head]
        assert during[-1] == min(during) < max(during)  # every micro-batch has been freed at the end
    events, _ = events_of(plan)
    counters = [event for event in events if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"memory of rank 0", "memory of rank 1"}
    assert max(event["args"]["GiB"] for event in counters) == max(rank.memory_gib.total for rank in plan.ranks)


@pytest.mark.parametrize("schedule", [name for name in SCHEDULES if name != "dualpipe"])
def test_a_cut_trace_says_so_and_has_no_hole_that_looks_like_waiting(schedule):
    plan = schedule_plan(schedule)
    whole, _ = events_of(plan)
    events, left_out = events_of(plan, 1)
    threads, before = threads_of(events), threads_of(whole)
    gone = 0
    for rank in range(plan.layout.pp):
        cut = [event for event in threads[f"rank {rank}"] if event["name"].endswith("left out")]
        assert len(cut) == 1
        number = int(cut[0]["name"].split()[0])
        assert len(threads[f"rank {rank}"]) == len(before[f"rank {rank}"]) - number + 1
        gone += number
        inside = [
            event
            for event in before[f"rank {rank}"]
            if cut[0]["ts"] <= event["ts"] and event["ts"] + event["dur"] <= cut[0]["ts"] + cut[0]["dur"]
        ]
        assert len(inside) == number
    assert left_out.startswith(f"{gone} of ")
    assert len(events) < len(whole)


def test_slices_say_what_they_are():
    plan = schedule_plan("1f1b")
    events, _ = events_of(plan)
    forward = threads_of(events)["rank 0"][1]
    assert forward["name"] == "F 0"
    assert forward["args"]["layers"].startswith("embedding, 0-2")
    assert "full" in forward["args"]["recomputation"]
    colours = {
        event["args"]["micro-batch"]: event["cname"] for event in events if "micro-batch" in event.get("args", {})
    }
    assert len({colours[microbatch] for microbatch in range(NUM_MICROBATCHES)}) == NUM_MICROBATCHES


def test_plans_without_layout_or_with_false_numbers_are_refused():
    with pytest.raises(PlanError, match=r"layout: is null \(status infeasible\)"):
        plan_timeline(infeasible_plan())
    plan = schedule_plan("1f1b")
    with pytest.raises(PlanError, match="pipeline_time: is 5, its stage times give"):
        plan_timeline(plan.model_copy(update={"pipeline_time": 5}))
    with pytest.raises(PlanError, match="virtual_stages"):
        plan_timeline(plan.model_copy(update={"virtual_stages": plan.virtual_stages[:1]}))
    with pytest.raises(PlanError, match="ranks: 1 ranks"):
        plan_timeline(plan.model_copy(update={"ranks": plan.ranks[:1]}))
    with pytest.raises(PlanError, match="zigzag"):
        plan_timeline(plan.model_copy(update={"layout": plan.layout.model_copy(update={"schedule": "zigzag"})}))
    swapped = plan.model_copy(update={"virtual_stages": (plan.virtual_stages[0], plan.virtual_stages[0])})
    with pytest.raises(PlanError, match="virtual_stages"):
        plan_timeline(swapped)
