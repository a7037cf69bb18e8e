"""``solve --robust`` and ``explain --sensitivity`` as a user or a script sees them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prism_cp.plan import Plan, plan_from_json
from tests.sample_plan import infeasible_plan, sample_plan

TINY = Path(__file__).parents[2] / "instances" / "tiny"


# -- solve --robust ----------------------------------------------------------------------------------------------------


def test_robust_plan_is_printed_written_and_checked(command, tmp_path):
    out = tmp_path / "plan.json"
    arguments = ("solve", TINY / "moe-8.yaml", "--robust", "load=1.0..2.0", "--workers", 1, "--quiet", "--out", out)
    code, text, messages = command(*arguments)
    assert (code, messages) == (0, "")
    assert "Expert load 1 … 2: worst case" in text
    assert "proved: no plan has a better one" in text
    assert "Price" in text
    assert "does not fit at load 2" in text
    plan = plan_from_json(out.read_text())
    assert plan.robust is not None
    assert plan.robust.proved
    assert plan.instance.job.expert_load == 2.0
    code, text, _ = command("check", out, TINY / "moe-8.yaml")
    assert code == 0
    assert "range of loads" in text
    code, text, _ = command("explain", out)
    assert code == 0
    assert "Expert load 1 … 2: worst case" in text
    code, text, _ = command("explain", out, "--json")
    assert code == 0
    assert json.loads(text)["robust"]["high"] == 2.0


def test_a_table_of_loads_is_solved_and_checked(command, tmp_path):
    out, loads = tmp_path / "plan.json", "job.expert_load={0-1: 1.5, other: 1.1}"
    code, _, _ = command("solve", TINY / "moe-8.yaml", "--set", loads, "--workers", 1, "--quiet", "--out", out)
    assert code == 0
    plan = plan_from_json(out.read_text())
    assert plan.proved
    assert {kind for stage in plan.virtual_stages for kind in stage.layers.kinds} == {"gqa+moe@1.5", "gqa+moe"}
    assert command("check", out, TINY / "moe-8.yaml", "--set", loads)[0] == 0
    assert command("check", out, TINY / "moe-8.yaml")[0] == 6


def test_nothing_fits_at_the_highest_load(command):
    """With expert parallelism pinned and no recomputation the highest load needs too much memory."""
    pins = ("--set", "layout.ep=4", "--set", "layout.tp=1", "--set", "layout.recompute=none")
    code, text, messages = command(
        "solve", TINY / "moe-8.yaml", "--robust", "load=1..4", *pins, "--workers", 1, "--quiet"
    )
    assert code == 3
    assert "Proved infeasible" in text
    assert "there is no plan at load 4" in messages


@pytest.mark.parametrize(
    ("instance", "text", "message"),
    [
        ("moe-8", "load=0.5..2", "--robust: '0.5..2': from 0.5 to 2 (accepted: load=LOW..HIGH"),
        ("moe-8", "load=2..1", "--robust: '2..1': from 2 to 1 (accepted: load=LOW..HIGH"),
        ("moe-8", "speed=1..2", "--robust: 'speed=1..2' (accepted: load=LOW..HIGH"),
        ("gqa-4", "load=1..2", "--robust: gqa-4 has no experts, so no load matters"),
    ],
)
def test_robust_options_that_cannot_be_meant(command, instance, text, message):
    code, out, messages = command("solve", TINY / f"{instance}.yaml", "--robust", text)
    assert (code, out) == (2, "")
    assert message in messages


def proved_plan() -> Plan:
    """The sample as if it were proved: what options are refused is said before anything is solved."""
    return sample_plan().model_copy(update={"proved": True})


# -- explain --sensitivity ---------------------------------------------------------------------------------------------


def test_sensitivity_of_a_plan(command, tmp_path):
    out = tmp_path / "plan.json"
    assert command("solve", TINY / "moe-8.yaml", "--workers", 1, "--quiet", "--out", out)[0] == 0
    arguments = ("explain", out, "--sensitivity", "--workers", 1, "--resolution", 0.4)
    named = ("--constant", "job.expert_load", "--constant", "cluster.links.1.bytes_per_s")
    code, text, messages = command(*arguments, *named[:2])
    assert code == 0
    assert "By how much a constant may change while the layout stays optimal" in text
    assert "not at every factor between them" in " ".join(text.split())
    assert "1/1 job.expert_load x2: " in messages
    code, text, messages = command(*arguments, *named, "--json", "--quiet")
    assert (code, messages) == (0, "")
    found = json.loads(text)["sensitivity"]
    assert found["complete"]
    load, link = found["constants"]
    assert load["down"] is None  # a load is at least 1
    assert load["up"]["holds_to"] < load["up"]["ends_at"] <= 1.4 * load["up"]["holds_to"]
    assert {probe["factor"] for probe in link["probes"]} >= {0.5, 2.0}
    assert all(probe["verdict"] in ("optimal", "not optimal", "unproved") for probe in load["probes"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--sensitivity-range", "2..0.5"), "--sensitivity-range: '2..0.5' (accepted: LOW..HIGH"),
        (("--sensitivity-range", "half"), "--sensitivity-range: 'half' (accepted: LOW..HIGH"),
        (("--resolution", "0"), "--resolution: 0.0 (accepted: 0.001 to 1)"),
        (("--constant", "cluster.device.gemm"), "--constant: 'cluster.device.gemm' (accepted: did you mean"),
    ],
)
def test_sensitivity_options_that_cannot_be_meant(command, tmp_path, options, message):
    plan = tmp_path / "plan.json"
    plan.write_text(proved_plan().to_json())
    code, _, messages = command("explain", plan, "--sensitivity", *options)
    assert code == 2
    assert message in " ".join(messages.split())


def test_constants_are_named_for_sensitivity_only(command, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text(sample_plan().to_json())
    code, _, messages = command("explain", plan, "--constant", "job.expert_load")
    assert code == 2
    assert "--constant: job.expert_load without --sensitivity" in messages


def test_sensitivity_needs_a_proved_plan(command, tmp_path):
    plan = tmp_path / "plan.json"
    plan.write_text(infeasible_plan().to_json())
    code, _, messages = command("explain", plan, "--sensitivity")
    assert code == 2
    assert "is infeasible, so no layout is known to be optimal" in messages
