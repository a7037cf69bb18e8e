"""Commands ``trace`` and ``plot``: files, messages and exit codes."""

from __future__ import annotations

import json
import os
import sys

import pytest

from prism_cp.errors import ExitCode
from tests.sample_plan import infeasible_plan, sample_plan


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(sample_plan().to_json())
    return path


def test_trace_writes_a_file_and_says_what_it_left_out(command, plan_file, tmp_path):
    out = tmp_path / "trace.json"
    assert command("trace", plan_file, "--out", out) == (0, "", "")
    whole = json.loads(out.read_text())
    assert whole["otherData"]["left_out"] == "nothing"
    code, text, messages = command("trace", plan_file, "--out", out, "--microbatches", 1)
    assert (code, text) == (0, "")
    assert "ops are left out" in messages
    cut = json.loads(out.read_text())
    assert len(cut["traceEvents"]) < len(whole["traceEvents"])


@pytest.mark.parametrize("suffix", ["svg", "png", "html"])
def test_plot_writes_the_format_of_the_suffix(command, plan_file, tmp_path, suffix):
    pytest.importorskip("matplotlib")
    out = tmp_path / f"plan.{suffix}"
    assert command("plot", plan_file, "--out", out) == (0, "", "")
    start = {"svg": b"<?xml", "png": b"\x89PNG", "html": b"<!DOCTYPE html>"}[suffix]
    assert out.read_bytes().startswith(start)
    assert set(os.listdir(tmp_path)) == {"plan.json", f"plan.{suffix}"}


@pytest.mark.parametrize("name", ["trace", "plot"])
def test_wrong_input(command, plan_file, tmp_path, name):
    pytest.importorskip("matplotlib")
    out = tmp_path / "out.svg"

    def refused(*arguments: object) -> tuple[int, str]:
        code, text, messages = command(name, *arguments)
        assert text == ""
        assert not out.exists()
        return code, messages

    code, messages = refused(plan_file, "--out", out, "--microbatches", 0)
    assert (code, messages) == (ExitCode.USAGE, "prism-cp: --microbatches: 0 (accepted: 1 or more)\n")
    assert refused(plan_file)[0] == ExitCode.USAGE
    assert refused(tmp_path / "no.json", "--out", out)[0] == ExitCode.USAGE
    assert refused(tmp_path, "--out", out)[0] == ExitCode.USAGE
    code, messages = refused(plan_file, "--out", tmp_path / "no" / "out.svg")
    assert code == ExitCode.USAGE
    assert "--out" in messages
    folder = tmp_path / "folder.svg"
    folder.mkdir()
    code, messages = refused(plan_file, "--out", folder)
    assert code == ExitCode.USAGE
    assert "is a directory" in messages
    document = json.loads(plan_file.read_text())
    plan_file.write_text(json.dumps({**document, "schema_version": 2}))
    code, messages = refused(plan_file, "--out", out)
    assert code == ExitCode.INVALID_INSTANCE
    assert "schema_version: is 2 (accepted: 1)" in messages
    plan_file.write_text(json.dumps({**document, "pipeline_time": document["pipeline_time"] + 1}))
    code, messages = refused(plan_file, "--out", out)
    assert code == ExitCode.INVALID_INSTANCE
    assert "pipeline_time" in messages
    plan_file.write_text(infeasible_plan().to_json())
    code, messages = refused(plan_file, "--out", out)
    assert code == ExitCode.INVALID_INSTANCE
    assert "status infeasible" in messages
    plan_file.write_bytes(b"\x00\x01")
    assert refused(plan_file, "--out", out)[0] == ExitCode.INVALID_INSTANCE


def test_plot_refuses_other_formats_before_reading_the_plan(command, tmp_path):
    code, _, messages = command("plot", tmp_path / "no.json", "--out", tmp_path / "plan.pdf")
    assert code == ExitCode.USAGE
    assert "accepted: a file name ending in .svg, .png, .html" in messages


def test_plot_without_matplotlib_says_what_to_install(command, plan_file, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    code, _, messages = command("plot", plan_file, "--out", tmp_path / "plan.svg")
    assert code == ExitCode.USAGE
    assert "pip install 'prism_cp[plot]'" in messages
    assert not (tmp_path / "plan.svg").exists()
