"""``prism-cp estimate``: instances, plans and Megatron-LM arguments; wrong inputs are named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prism_cp.cli.estimate import estimate
from prism_cp.cli.explain import explain
from prism_cp.errors import PrismError
from prism_cp.inputs.load import load_instance
from prism_cp.search.options import SearchOptions
from prism_cp.search.solve import solve_instance

INSTANCE = Path(__file__).parents[2] / "instances/tiny/gqa-4.yaml"
PINS = ["layout.tp=1", "layout.pp=2", "layout.mbs=1", "layout.recompute=none", "layout.schedule=1f1b"]
ARGUMENTS = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 512 --max-position-embeddings 512 \\\n"
    "--micro-batch-size 2 --global-batch-size 8 --bf16 --pipeline-model-parallel-size 2\n"
)


def test_pinned_instance(capsys: pytest.CaptureFixture[str]) -> None:
    estimate(INSTANCE, PINS, json=True)
    even = json.loads(capsys.readouterr().out)
    assert even["boundaries"] == [0, 3, 6]
    assert even["layout"]["dp"] == 2
    estimate(INSTANCE, PINS, "4,2", json=True)
    moved = json.loads(capsys.readouterr().out)
    assert moved["boundaries"] == [0, 4, 6]
    assert moved["ranks"][0]["peak_gib"] > even["ranks"][0]["peak_gib"]


def test_tables_name_every_term(capsys: pytest.CaptureFixture[str]) -> None:
    estimate(INSTANCE, PINS)
    text = capsys.readouterr().out
    for word in ("step time", "weights", "optimizer", "activations", "bubble", "later steps"):
        assert word in text


def test_memory_is_stated_with_and_without_the_margin(capsys: pytest.CaptureFixture[str]) -> None:
    estimate(INSTANCE, [*PINS, "profile.memory_margin=0.1"], json=True)
    found = json.loads(capsys.readouterr().out)
    needed = max(rank["peak_gib"] + rank["outside_gib"] for rank in found["ranks"])
    assert found["needed_gib"] == pytest.approx(needed)
    assert found["needed_with_margin_gib"] == pytest.approx(needed / 0.9)
    assert (found["fits"], found["fits_with_margin"]) == (True, True)
    efficiency = load_instance(INSTANCE).profile.allocator_efficiency
    room = round(1.05 * needed / efficiency * 2**30)  # between the prediction and the prediction with its margin
    tight = [*PINS, "profile.memory_margin=0.1", f"cluster.device.memory_bytes={room}"]
    estimate(INSTANCE, tight, json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["fits"], found["fits_with_margin"]) == (True, False)
    estimate(INSTANCE, tight)
    assert "fits only without the margin in" in capsys.readouterr().out


def test_plan_and_its_estimate_agree_on_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from prism_cp.plan_builder import build_plan

    instance = load_instance(INSTANCE, ["layout.tp=1", "layout.pp=2", "layout.mbs=1"])
    plan = build_plan(instance, solve_instance(instance, SearchOptions(workers=1)))
    file = tmp_path / "plan.json"
    file.write_text(plan.to_json())
    estimate(file, json=True)
    found = json.loads(capsys.readouterr().out)
    assert found["iteration_s"] == pytest.approx(plan.step_time_s, rel=1e-12)


def test_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "args.txt"
    file.write_text(ARGUMENTS)
    estimate(None, megatron_args=file, cluster="4xh100", json=True)
    found = json.loads(capsys.readouterr().out)
    assert (found["layout"]["dp"], found["layout"]["num_microbatches"]) == (2, 2)
    assert found["boundaries"] == [0, 2, 4]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "needs one source"),
        ({"source": INSTANCE, "set_": PINS[:2]}, "layout.mbs"),
        ({"source": INSTANCE, "set_": [*PINS[1:], "layout.tp=1,2"]}, "layout.tp"),
        ({"source": INSTANCE, "set_": PINS, "stages": "3,2"}, "stage_layers"),
        ({"source": INSTANCE, "set_": PINS, "stages": "a"}, "--stages"),
        ({"source": INSTANCE, "set_": [*PINS, "layout.dp=4"]}, "tp·cp·dp·pp"),
        ({"source": INSTANCE, "case": "x"}, "--case"),
        ({"megatron_args": Path("missing.txt"), "cluster": "8xh100"}, "missing.txt"),
        ({"megatron_args": INSTANCE, "cluster": "8xh1000"}, "--cluster"),
        ({"megatron_args": INSTANCE, "cluster": "8xh100", "framework": "other"}, "--framework"),
        ({"megatron_args": INSTANCE, "cluster": "0xh100"}, "--cluster: '0xh100'"),
    ],
)
def test_wrong_inputs_are_named(arguments: dict[str, object], named: str) -> None:
    with pytest.raises(PrismError, match=named):
        estimate(**arguments)  # type: ignore[arg-type]


def test_all_open_fields_are_named_at_once() -> None:
    with pytest.raises(PrismError, match=r"layout\.tp: is open, so are layout\.mbs, layout\.schedule"):
        estimate(INSTANCE, ["layout.pp=2", "layout.schedule=all"])


@pytest.fixture(scope="module")
def written_plan() -> dict[str, Any]:
    """A plan as its file holds it."""
    from prism_cp.plan_builder import build_plan

    instance = load_instance(INSTANCE, ["layout.tp=1", "layout.pp=2", "layout.mbs=1"])
    found: dict[str, Any] = json.loads(
        build_plan(instance, solve_instance(instance, SearchOptions(workers=1))).to_json()
    )
    return found


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("virtual_stages",), [], "virtual_stages: hold the pieces"),
        (("virtual_stages", 1, "layers", "count"), 1, "virtual_stages"),
        (("virtual_stages", 0, "strategies"), {"gqa+dense": {"none": 99}}, "virtual_stages of piece 0: strategies"),
        (("virtual_stages", 0, "strategies"), {"gqa+dense": {"other": 3}}, "'other' is no strategy of gqa"),
        (("layout", "tp"), 7, "layout.tp: 7"),
        (("layout", "dp"), 4, "layout"),
        (("layout", "num_microbatches"), 10**15, "layout.num_microbatches"),
        (("layout", "schedule"), "other", "layout.schedule"),
    ],
)
def test_plans_that_contradict_themselves_are_refused(
    tmp_path: Path, written_plan: dict[str, Any], path: tuple[str | int, ...], value: object, named: str
) -> None:
    plan = json.loads(json.dumps(written_plan))
    place = plan
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    with pytest.raises(PrismError, match=named):
        estimate(tmp_path / "plan.json")
    with pytest.raises(PrismError, match=named):
        explain(tmp_path / "plan.json", quiet=True)
