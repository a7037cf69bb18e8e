"""Benchmarks: real measured processes, the tables made of them, and wrong options."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prism_cp.benchmark.points import growth_points, instance_points
from prism_cp.benchmark.process import SolveFailed, run_solve
from prism_cp.benchmark.tables import Row, Table, as_json, markdown
from prism_cp.errors import ExitCode, UsageError
from prism_cp.inputs.load import load_instance

INSTANCES = Path(__file__).parents[2] / "instances"
PROGRAM = [sys.executable, "-c", "from prism_cp.cli.main import run; run()"]


@pytest.fixture
def folder(tmp_path):
    """Two families; what is measured by default is one infeasible instance, which is solved at once."""
    for family, name in (("quick", "infeasible-states-4"), ("tiny", "gqa-4")):
        (tmp_path / family).mkdir()
        (tmp_path / family / f"{name}.yaml").write_text((INSTANCES / "tiny" / f"{name}.yaml").read_text())
    return tmp_path


def row(**changes: object) -> Row:
    values: dict[str, object] = {
        "name": "moe/a",
        "arguments": ("a.yaml",),
        "status": "optimal",
        "proved": True,
        "layouts": 6454848,
        "opened": 16,
        "solved": 1,
        "walls_s": (3.0, 1.0, 2.0),
        "cpus_s": (4.0, 1.5, 0.5),
        "peaks_gib": (0.5, 0.75, 0.25),
        "bound_s": 1.25,
        "step_time_s": 1.25,
    }
    return Row(**{**values, **changes})  # type: ignore[arg-type]


def test_a_failed_run_ends_with_its_own_code_and_message():
    with pytest.raises(SolveFailed, match=r"prism-cp solve no-such-file.yaml .* exit code 2 .*no-such-file") as failed:
        run_solve(["no-such-file.yaml"])
    assert failed.value.exit_code == ExitCode.USAGE


def test_a_killed_run_names_the_signal():
    failed = SolveFailed("prism-cp solve x", -signal.SIGKILL, "")
    assert "SIGKILL" in str(failed)
    assert failed.exit_code == ExitCode.STOPPED_WITHOUT


def test_points_of_a_folder():
    names = [point.name for point in instance_points(INSTANCES)]
    assert {"moe/deepseek-v3-2048xh800", "dense/gpt3-175b-1024xa100", "ascend/deepseek-v3-512x910b"} <= set(names)
    assert not any(name.startswith("tiny/") for name in names)
    tiny = instance_points(INSTANCES, ["tiny"])
    assert len(tiny) == len(list((INSTANCES / "tiny").glob("*.yaml")))
    assert instance_points(INSTANCES / "tiny")[0].name == tiny[0].name.removeprefix("tiny/")


@pytest.mark.parametrize(("families", "match"), [(["mo"], "accepted: .*moe"), (["moe", "x"], "'x' is not in")])
def test_unknown_family(families, match):
    with pytest.raises(UsageError, match=match):
        instance_points(INSTANCES, families)


def test_empty_and_missing_folder(tmp_path):
    with pytest.raises(UsageError, match=r"no \*\.yaml"):
        instance_points(tmp_path)
    with pytest.raises(UsageError, match="is no folder"):
        instance_points(tmp_path / "none")


def test_growth_points_change_one_axis_each():
    found = {}
    for point in growth_points():
        model, cluster, gbs, seq_len = (point.arguments[i] for i in (1, 3, 5, 7))
        overrides = list(point.arguments[9::2])
        instance = load_instance(
            None, overrides, model=model, cluster=cluster, gbs=int(gbs), seq_len=int(seq_len), profile=None
        )
        found[point.name] = (instance.model.num_layers, instance.cluster.num_devices, instance.job.gbs)
    values = list(found.values())
    assert values[0] == (32, 64, 512)
    assert values[1:3] == [(128, 64, 512), (512, 64, 512)]
    assert values[3:6] == [(32, 256, 2048), (32, 1024, 8192), (32, 4096, 32768)]
    assert values[6:] == [(32, 64, 2048), (32, 64, 8192), (32, 64, 32768)]


def test_markdown_and_json():
    table = Table(
        "prism-cp bench instances", 3, 2, (row(), row(name="b", status="infeasible", bound_s=None, step_time_s=None))
    )
    text = markdown(table, "Instances", "instance")
    assert "| moe/a | 6,454,848 | 16 | 1 | 2.0 | 1.5 | 0.75 | 1.250000 | 1.250000 | yes |" in text
    assert "| b | 6,454,848 | 16 | 1 | 2.0 | 1.5 | 0.75 | - | - | yes (infeasible) |" in text
    assert "`prism-cp bench instances`" in text
    assert "median of 3 runs" in text
    assert "ortools " in text
    data = json.loads(as_json(table))
    assert data["rows"][0]["walls_s"] == [3.0, 1.0, 2.0]
    assert data["rows"][0]["wall_s"] == 2.0
    assert data["versions"]["prism_cp"]


def test_bench_writes_the_table_and_its_runs(command, folder, tmp_path):
    out = tmp_path / "table.md"
    code, text, messages = command(
        "bench", "instances", "--folder", folder, "--repeats", 1, "--workers", 1, "--out", out
    )
    assert code == 0
    assert out.read_text() == text
    assert "| quick/infeasible-states-4 |" in text
    assert "gqa-4" not in text
    assert "1/1  quick/infeasible-states-4: infeasible" in messages
    data = json.loads(out.with_suffix(".json").read_text())
    (measured,) = data["rows"]
    assert (measured["status"], measured["proved"]) == ("infeasible", True)
    assert len(measured["walls_s"]) == 1
    assert measured["walls_s"][0] > 0
    assert measured["cpus_s"][0] > 0
    assert 0.02 < measured["peak_gib"] < 64
    assert data["command"].startswith("prism-cp bench instances --folder")
    assert data["command"].endswith(f"--out {out}")


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--repeats", 0], "--repeats: 0"),
        (["--workers", 0], "--workers: 0"),
        (["--time-limit", -1], "--time-limit"),
        (["--out", "table.txt"], "ends in .md"),
        (["--out", "no/such/folder/table.md"], "does not exist"),
        (["--family", "none"], "--family: 'none'"),
    ],
)
def test_wrong_options(command, folder, options, match):
    code, text, messages = command("bench", "instances", "--folder", folder, *options)
    assert (code, text) == (ExitCode.USAGE, "")
    assert match in messages


def test_a_broken_instance_is_named(command, folder):
    (folder / "quick" / "broken.yaml").write_text("model: nonsense-7b\n")  # and no cluster
    code, text, messages = command("bench", "instances", "--folder", folder, "--repeats", 1, "--workers", 1)
    assert (code, text) == (ExitCode.INVALID_INSTANCE, "")
    assert "broken.yaml: cluster: is missing" in messages


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_benchmark_leaves_no_file_and_no_process(folder, tmp_path, number):
    out = tmp_path / "table.md"
    arguments = ["bench", "instances", "--folder", INSTANCES, "--family", "moe", "--repeats", "1", "--out", out]
    process = subprocess.Popen([*PROGRAM, *map(str, arguments)], stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert "warming up" in process.stderr.readline()
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    started = []
    while not started:
        started = children.read_text().split() if children.exists() else ["-1"]
        time.sleep(0.01)
    process.send_signal(number)
    _, messages = process.communicate(timeout=120)
    assert process.returncode == ExitCode.INTERRUPTED
    assert "no table was written" in messages
    assert not out.exists()
    if started != ["-1"]:
        with pytest.raises(ProcessLookupError):
            os.kill(int(started[0]), 0)
