"""Command ``front``: points, files, resuming, stops and wrong input."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import prism_cp.cli.running
from prism_cp.cli.front import parse_points, parse_values
from prism_cp.errors import ExitCode, UsageError

TINY = Path(__file__).parents[2] / "instances" / "tiny"
INSTANCE = TINY / "memory-tight-4.yaml"
PINS = ("--set", "layout.pp=2", "--set", "layout.tp=2", "--set", "layout.schedule=1f1b")
VALUES = "1.3,1.1,0.8"  # GiB; nothing fits into the last


@pytest.fixture
def front(command):
    """Runs ``prism-cp front``."""
    return partial(command, "front")


@pytest.fixture
def searches(monkeypatch):
    """Every search that runs: (memory of the instance, number of known plans); `limit` stops the one after so many."""
    real = prism_cp.cli.running.search
    seen: list[tuple[int, int]] = []
    stop_after: list[int] = []

    def search(instance, options, *, quiet=False, known=()):
        result = real(instance, options, quiet=quiet, known=known)
        if stop_after and len(seen) >= stop_after[0]:
            return replace(result, interrupted=True)
        seen.append((instance.cluster.device.memory_bytes, len(known)))
        return result

    monkeypatch.setattr(prism_cp.cli.running, "search", search)
    return seen, stop_after


def test_a_stopped_front_goes_on_from_its_file(front, searches, tmp_path):
    seen, stop_after = searches
    file, table = tmp_path / "front.jsonl", tmp_path / "front.csv"
    arguments = (INSTANCE, *PINS, "--values", VALUES, "--resume", file, "--workers", 1)
    stop_after.append(1)
    code, text, messages = front(*arguments, "--json")
    assert code == ExitCode.STOPPED_WITH_INCUMBENT
    assert json.loads(text)["complete"] is False
    assert [point["status"] for point in json.loads(text)["points"]] == ["optimal"]
    assert "solved in" in messages
    stop_after.clear()
    code, text, messages = front(*arguments, "--csv", table)
    assert code == 0
    assert f"from {file}" in messages.replace("\n", "")
    assert "Nothing fits into 0.800 GiB or less" in text
    assert len(seen) == 3  # the first point was not solved again
    count = len(seen)
    code, text, _ = front(*arguments, "--json", "--quiet")
    assert code == 0
    assert len(seen) == count
    front = json.loads(text)
    assert [point["status"] for point in front["points"]] == ["optimal", "optimal", "infeasible"]
    fast, slow, _ = front["points"]
    assert fast["step_time_s"] < slow["step_time_s"]
    assert fast["on_front"]
    assert slow["on_front"]
    assert slow["optimal_down_to"] <= slow["value"] < fast["optimal_down_to"] <= fast["value"]
    assert front["open"]
    rows = list(csv.DictReader(io.StringIO(table.read_text())))
    assert [row["override"] for row in rows] == [point["override"] for point in front["points"]]
    assert [row["proved"] for row in rows] == ["True"] * 3
    assert rows[0]["layout"].startswith("tp 2")
    assert rows[2]["step_time_s"] == ""


def test_plans_for_less_memory_are_handed_on(front, searches):
    seen, _ = searches
    code, text, _ = front(INSTANCE, *PINS, "--points", 6, "--quiet", "--json", "--workers", 1)
    assert code == 0
    assert [point["proved"] for point in json.loads(text)["points"]] == [True] * 6
    solved: list[int] = []
    fitting = {point["value"] for point in json.loads(text)["points"] if point["step_time_s"] is not None}
    for memory, known in seen:
        assert known == any(value < memory and value in fitting for value in solved)
        solved.append(memory)
    assert any(known for _, known in seen)


def test_devices_and_batch_sizes_and_their_pictures(front, tmp_path):
    pytest.importorskip("matplotlib")
    for axis, values, suffix in (("time,devices", "4,2", "svg"), ("time,gbs", "16,8", "html")):
        out = tmp_path / f"front.{suffix}"
        code, text, _ = front(
            INSTANCE, "--set", "layout.schedule=1f1b", "--set", "layout.tp=2", "--axes", axis, "--values", values,
            "--quiet", "--json", "--out", out, "--workers", 1, "--set", "cluster.device.memory_bytes=4000000000",
        )  # fmt: skip
        assert code == 0
        points = json.loads(text)["points"]
        assert [point["value"] for point in points] == [int(value) for value in values.split(",")]
        assert all(point["proved"] for point in points)
        picture = out.read_text()
        assert "<svg" in picture
        assert "memory-tight-4: step time against" in picture
        if axis == "time,devices":
            assert points[0]["step_time_s"] < points[1]["step_time_s"]
            assert "Fewest devices that fit, of the numbers tried: 2." in json.loads(text)["notes"]
        else:
            assert points[0]["step_time_s"] > points[1]["step_time_s"]


def test_nothing_fits_anywhere(front, tmp_path):
    pytest.importorskip("matplotlib")
    code, text, _ = front(
        TINY / "infeasible-states-4.yaml", "--points", 1, "--quiet", "--workers", 1, "--out", tmp_path / "front.png"
    )
    assert code == ExitCode.INFEASIBLE
    assert "infeasible" in text
    assert (tmp_path / "front.png").read_bytes().startswith(b"\x89PNG")


def test_stopped_before_the_first_point(front, searches):
    _, stop_after = searches
    stop_after.append(0)
    code, text, _ = front(INSTANCE, *PINS, "--quiet", "--json", "--workers", 1)
    assert code == ExitCode.INTERRUPTED
    assert json.loads(text)["points"] == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--axes", "time,colour"], "--axes: 'time,colour' (accepted: time,memory or time,devices or time,gbs)"),
        (["--points", "0"], "--points: '0' (accepted: 1 or more, or all)"),
        (["--points", "many"], "--points: 'many'"),
        (["--values", "4,x"], "--values: 'x' (accepted: GiB above 0, separated by commas)"),
        (["--values", "-1"], "--values: '-1'"),
        (["--values", "inf"], "--values: 'inf'"),
        (["--values", "nan"], "--values: 'nan'"),
        (["--values", ""], "--values: ''"),
        (["--axes", "time,gbs", "--values", "1.5"], "--values: '1.5' (accepted: whole numbers of at least 1"),
        (["--values", "1", "--points", "2"], "--points and --values exclude each other"),
        (["--out", "front.pdf"], "accepted: a file name ending in .svg, .png, .html"),
        (["--csv", "/no/such/folder/front.csv"], "--csv: folder /no/such/folder does not exist"),
        (["--resume", "/no/such/folder/front.jsonl"], "--resume: folder /no/such/folder does not exist"),
        (["--resume", "/"], "--resume: / is a directory"),
        (["--time-limit", "0"], "--time-limit: 0.0"),
    ],
)
def test_wrong_options_name_themselves(front, searches, arguments, part):
    seen, _ = searches
    code, text, messages = front(INSTANCE, *arguments)
    assert (code, text) == (ExitCode.USAGE, "")
    assert part in messages
    assert not seen


def test_values_that_contradict_the_instance(front, searches):
    code, text, messages = front(INSTANCE, "--axes", "time,devices", "--values", "3", "--set", "layout.tp=2")
    assert (code, text) == (ExitCode.INVALID_INSTANCE, "")
    assert "layout.tp: 2 does not divide 3 devices" in messages
    assert front(TINY / "no.yaml")[0] == ExitCode.USAGE
    assert front()[0] == ExitCode.USAGE


def test_points_and_values_are_read_as_meant():
    assert parse_points(None, "gbs") == 7
    assert parse_points("all", "memory") is None
    assert parse_points("5", "memory") == 5
    assert parse_values("80, 1.5", "memory") == [80 * 2**30, 3 * 2**29]
    assert parse_values("64,8", "devices") == [64, 8]
    with pytest.raises(UsageError):
        parse_values("1e30", "memory")
