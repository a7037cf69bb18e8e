"""Expert load: tables by layer split the kinds; the load counts in memory and time, at most ep."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from prism_cp.breakdown import ExactTables
from prism_cp.errors import InstanceError
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.load import instance_digest, instance_from_mapping, load_instance
from prism_cp.integer_tables import CostModel
from prism_cp.plan_builder import simulated_time
from prism_cp.stage_problem import Assignment
from tests.sample_plan import LAYOUT, sample_instance

DEEPSEEK: dict[str, Any] = {"model": "deepseek-v3", "cluster": "2048xh800", "job": {"gbs": 15360, "seq_len": 4096}}


def loaded(table: object, base: dict[str, Any] = DEEPSEEK) -> Instance:
    return instance_from_mapping({"name": "test", **base, "job": {**base["job"], "expert_load": table}})


def device_bound() -> Instance:
    """The sample without what the host costs: its layers are so small that launches would hide any load."""
    sample = sample_instance()
    return sample.model_copy(update={"profile": sample.profile.model_copy(update={"full_cuda_graphs": True})})


def test_a_table_splits_kinds_by_load() -> None:
    instance = loaded({"3-9": 1.6, "10-10": 1.4, "20-29": 1.6, "30-40": 1.2, "other": 1.2, "mtp": 1.3})
    assert [(group.kind, group.count) for group in instance.model.layers] == [
        ("mla+dense", 3),
        ("mla+moe@1.6", 7),
        ("mla+moe@1.4", 1),
        ("mla+moe", 9),
        ("mla+moe@1.6", 10),
        ("mla+moe", 31),
    ]
    assert instance.job.expert_load == 1.2
    assert instance.model.mtp_kind == "mla+moe@1.3"
    assert instance.model.kind("mla+moe").feed_forward.expert_load is None  # the job's
    assert instance.model.kind("mla+moe@1.6").feed_forward.expert_load == 1.6


def test_a_table_of_one_load_is_that_load() -> None:
    assert instance_digest(loaded({"other": 1.5})) == instance_digest(loaded(1.5))
    assert instance_digest(loaded({"3-60": 1.5, "other": 1.5})) == instance_digest(loaded(1.5))
    everywhere = loaded({"3-60": 1.5, "mtp": 1.5})
    assert {kind.name for kind in everywhere.model.kinds} == {"mla+dense", "mla+moe@1.5"}


@pytest.mark.parametrize(
    ("table", "key", "accepted"),
    [
        ({"3-61": 2}, "job.expert_load.3-61", "3-60 or parts of it, mtp, other"),
        ({"9-3": 2}, "job.expert_load.9-3", "3-60"),
        ({"2-5": 2}, "job.expert_load.2-5", "3-60"),
        ({"first": 2}, "job.expert_load.first", "3-60"),
        ({"3-9": 2, "9-10": 3}, "job.expert_load.9-10", "once"),
        ({"3-9": 0.9}, "job.expert_load.3-9", "at least 1"),
        ({"other": "x"}, "job.expert_load.other", "at least 1"),
        ([1, 2], "job.expert_load", "a table by layer"),
        (True, "job.expert_load", "a table by layer"),
    ],
)
def test_refused_tables(table: object, key: str, accepted: str) -> None:
    with pytest.raises(InstanceError) as caught:
        loaded(table)
    assert caught.value.key == key
    assert accepted in caught.value.accepted


def test_a_layer_number_needs_no_quotes() -> None:
    """YAML reads the key 0 as a number, and 010 as 8."""
    moe = Path(__file__).parents[2] / "instances" / "tiny" / "moe-8.yaml"
    instance = load_instance(moe, ["job.expert_load={0: 1.5, 03: 1.25}"])
    assert [kind.partition("@")[2] for kind in instance.model.chain[:4]] == ["1.5", "", "", "1.25"]


def test_a_table_needs_experts() -> None:
    with pytest.raises(InstanceError, match="has no experts"):
        loaded({"0-1": 2}, {**DEEPSEEK, "model": "llama-3.1-8b"})


def test_loads_of_layers_and_of_the_job_cost_the_same() -> None:
    """Two plans of equal layers: one load for all, and the same load stated layer by layer."""
    raw = device_bound().model_dump(mode="json")

    def problem(load: object) -> Any:
        changed = instance_from_mapping({**raw, "job": {**raw["job"], "expert_load": load}})
        return ExactTables()(changed, LAYOUT).problem

    same, stated = problem(1.75), problem({"1-3": 1.75, "mtp": 1.75})
    assert same.tables[0][0] == stated.tables[0][0]
    for one, other in zip(same.tables[0][1:], stated.tables[0][1:], strict=True):
        assert one.strategies == other.strategies
    balanced, mixed = problem(1), problem({"1-1": 1.75})
    assert [kind.kind for kind in mixed.tables[0]] == ["mla+dense", "mla+moe@1.75", "mla+moe", "mtp"]
    assert mixed.tables[0][1].strategies == same.tables[0][1].strategies
    assert mixed.tables[0][2].strategies == balanced.tables[0][1].strategies
    # all layers on stage 0 without recomputation: every loaded layer adds its own difference
    kinds = (((1, 0, 0), (3, 0, 0), (1, 0, 0)), ((0, 0, 0),) * 3)
    split = (((1, 0, 0), (1, 0, 0), (2, 0, 0), (1, 0, 0)), ((0, 0, 0),) * 4)
    times = [
        simulated_time(balanced, Assignment((0, 5, 5), kinds)),
        simulated_time(mixed, Assignment((0, 5, 5), split)),
    ]
    assert times[0] < times[1] < simulated_time(same, Assignment((0, 5, 5), kinds))


@pytest.mark.parametrize(("ep", "factor"), [(1, 1), (2, 2), (4, Fraction(5, 2))])
def test_time_knows_that_the_load_is_at_most_ep(ep: int, factor: object) -> None:
    """Load 2.5 costs what 1, 2 and 2.5 cost on 1, 2 and 4 expert-parallel ranks."""
    sample = device_bound()

    def forward(load: object) -> object:
        instance = sample.model_copy(update={"job": sample.job.model_copy(update={"expert_load": float(load)})})
        layout = {**LAYOUT.as_dict(), "ep": ep}
        return CostModel(instance).evaluate_exact(type(LAYOUT)(**layout)).kinds[1].forward_s[0]

    assert forward(2.5) == forward(factor)
    assert (forward(2.5) > forward(1)) == (ep > 1)
