"""Plan: content, lossless round trip, schema, refusals."""

from __future__ import annotations

import json
from importlib import resources

import jsonschema
import pytest

from prism_cp.errors import PlanError, UsageError
from prism_cp.pipeline import reference_pipeline_time
from prism_cp.plan import Plan, plan_from_json, plan_schema, read_plan
from tests.sample_plan import LAYOUT, infeasible_plan, sample_instance, sample_plan, sample_result


@pytest.mark.parametrize("plan", [sample_plan, infeasible_plan])
def test_round_trip_is_lossless(plan):
    original = plan()
    text = original.to_json()
    again = plan_from_json(text)
    assert again == original
    assert again.to_json() == text


@pytest.mark.parametrize("plan", [sample_plan, infeasible_plan])
def test_shipped_schema_accepts_plans_and_is_current(plan):
    shipped = resources.files("prism_cp").joinpath("schemas/plan.schema.json").read_text("utf-8")
    # Remake it with: python -m prism_cp.plan prism_cp/schemas/plan.schema.json
    assert json.loads(shipped) == plan_schema()
    schema = json.loads(shipped)
    jsonschema.Draft202012Validator.check_schema(schema)
    document = json.loads(plan().to_json())
    jsonschema.validate(document, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "surprise": 1}, schema)
    del document["pipeline_time"]
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema)


def test_replaying_the_written_stage_times_gives_the_written_pipeline_time():
    plan = json.loads(sample_plan().to_json())
    stages, ranks, layout = plan["virtual_stages"], plan["ranks"], plan["layout"]
    replayed = reference_pipeline_time(
        layout["schedule"],
        layout["pp"],
        layout["vpp"],
        layout["num_microbatches"],
        [stage["forward"] for stage in stages],
        [stage["input_grad"] for stage in stages],
        [stage["weight_grad"] for stage in stages],
        [rank["head"] for rank in ranks],
        [rank["tail"] for rank in ranks],
        plan["p2p"],
    )
    assert replayed == plan["pipeline_time"]
    assert plan["pipeline_time"] + plan["barrier"] == plan["objective"] == sample_result().objective
    assert plan["step_time_s"] == pytest.approx(plan["objective"] * plan["time_unit_s"])


def test_figures_of_the_sample():
    plan = sample_plan()
    job = sample_instance().job
    assert plan.status == "optimal"
    assert plan.proved
    assert plan.gap == 0
    assert plan.tokens_per_s == pytest.approx(job.gbs * job.seq_len / plan.step_time_s)
    assert 0 < plan.mfu < plan.hfu < 1  # three layers recompute something
    assert plan.layout.layout() == LAYOUT
    assert plan.layout.edp == 2
    assert [stage.layers.count for stage in plan.virtual_stages] == [3, 2]
    assert plan.virtual_stages[0].layers.embedding
    assert not plan.virtual_stages[0].layers.mtp
    assert plan.virtual_stages[1].layers.mtp
    assert plan.virtual_stages[1].layers.head
    assert plan.virtual_stages[0].strategies == {"mla+dense": {"none": 1}, "mla+moe": {"none": 1, "full": 1}}
    assert plan.versions["prism_cp"]


def test_breakdowns_add_up():
    plan = sample_plan()
    pipeline_s = plan.pipeline_time * plan.time_unit_s
    for rank in plan.ranks:
        memory, time = rank.memory_gib, rank.time_s
        terms = (
            memory.weights + memory.gradients + memory.optimizer + memory.activations + memory.transient
            + memory.buffers + memory.fixed + memory.rounding
        )  # fmt: skip
        assert terms == pytest.approx(memory.total, rel=1e-12)
        assert memory.headroom == pytest.approx(memory.capacity - memory.total)
        assert memory.headroom >= 0
        usable = sample_instance().cluster.device.memory_bytes * 0.94 / 2**30
        assert memory.capacity + memory.margin == pytest.approx(usable, abs=plan.memory_unit_bytes / 2**30)
        assert memory.margin == pytest.approx(0.02 * usable)
        assert time.forward + time.backward + time.head + time.tail + time.bubble == pytest.approx(pipeline_s)
        assert 0 <= time.recomputation < time.backward
        # Rounding up adds less than one unit per table entry: five layers and two ends.
        assert 0 <= memory.rounding <= 7 * plan.memory_unit_bytes / 2**30
    assert plan.ranks[0].time_s.recomputation > 0  # one of its layers recomputes everything


def test_without_a_plan_the_same_schema_has_nulls():
    plan = json.loads(infeasible_plan().to_json())
    assert set(plan) == set(json.loads(sample_plan().to_json()))
    assert plan["status"] == "infeasible"
    assert plan["proved"] is True
    for key in ("objective", "step_time_s", "tokens_per_s", "mfu", "hfu", "layout", "pipeline_time", "gap"):
        assert plan[key] is None
    assert plan["virtual_stages"] == []


def _changed(**changes) -> str:
    document = json.loads(sample_plan().to_json())
    document.update(changes)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "JSON"),
        ("[1, 2]", "JSON object"),
        ("{", "line 1"),
        ("{}", "schema_version"),
        (_changed(schema_version=2), "schema_version"),
        (_changed(schema_version=True), "schema_version"),
        (_changed(step_time_s=-1.0), "step_time_s"),
        (_changed(step_time_s="fast"), "step_time_s"),
        (_changed(surprise=1), "surprise"),
        (_changed(status="great"), "status"),
        (_changed(step_time_s=float("nan")), "NaN|nan|finite|number"),
        ("[" * 100_000, "JSON|nest|deep"),
    ],
)
def test_unreadable_plans_are_refused_with_the_key(text, part):
    with pytest.raises(PlanError, match=part):
        plan_from_json(text, "plan.json")


def test_unopenable_plan_files(tmp_path):
    with pytest.raises(UsageError, match="directory"):
        read_plan(tmp_path)
    with pytest.raises(UsageError, match="does not exist"):
        read_plan(tmp_path / "none.json")


def test_plans_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        sample_plan().seed = 4
    assert isinstance(sample_plan(), Plan)
