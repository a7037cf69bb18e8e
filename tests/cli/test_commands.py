"""Commands: output, exit codes and messages, as a user or a script sees them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import prism_cp.check
import prism_cp.search.solve
from prism_cp.cli.output import write_whole
from prism_cp.cli.running import GentleStop, exit_code, unless_stopped
from prism_cp.errors import ExitCode, UsageError
from prism_cp.plan import plan_from_json
from tests.sample_plan import INSTANCE, Certificate, infeasible_plan, sample_plan, sample_result

TINY = Path(__file__).parents[2] / "instances" / "tiny"
PROGRAM = [sys.executable, "-c", "from prism_cp.cli.main import run; run()"]


@pytest.fixture
def instance_file(tmp_path):
    path = tmp_path / "sample.yaml"
    path.write_text(INSTANCE)
    return path


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text(sample_plan().to_json())
    return path


# -- solve -------------------------------------------------------------------------------------------------------------


def test_solve_check_and_explain_a_tiny_instance(command, tmp_path):
    out = tmp_path / "plan.json"
    instance = TINY / "memory-tight-4.yaml"
    code, text, messages = command("solve", instance, "--json", "--out", out, "--workers", 1, "--quiet")
    assert code == 0
    assert messages == ""
    plan = plan_from_json(text)
    assert plan.status == "optimal"
    assert plan.proved
    assert plan.objective == plan.bound
    assert plan.certificate.levels[:2] == ("checked", "bound")
    assert plan_from_json(out.read_text()) == plan
    code, text, _ = command("check", out, instance)
    assert code == 0
    assert "Check passed" in text
    code, text, _ = command("explain", out, "--json")
    assert code == 0
    assert json.loads(text)["step_time_s"] == plan.step_time_s


def test_infeasible_instance(command):
    code, text, _ = command("solve", TINY / "infeasible-states-4.yaml", "--quiet", "--json")
    assert code == ExitCode.INFEASIBLE
    plan = json.loads(text)
    assert plan["status"] == "infeasible"
    assert plan["proved"] is True
    assert plan["layout"] is None


def test_explain_infeasible_instance(command):
    code, text, _ = command("explain", TINY / "infeasible-states-4.yaml", "--quiet", "--json")
    assert code == ExitCode.INFEASIBLE
    values = json.loads(text)
    closest = values["closest_layouts"]
    assert closest[0]["short_gib"] == min(one["short_gib"] for one in closest) > 0
    rank = closest[0]["ranks"][0]
    assert rank["short_gib"] == pytest.approx(rank["memory_gib"]["total"] - rank["memory_gib"]["capacity"])
    assert values["relaxations"]
    assert all(one["step_time_s"] > 0 for one in values["relaxations"])


def test_instance_from_options(command, monkeypatch):
    asked = []

    def solve_instance(instance, options, progress=None, stop=None):
        asked.append((instance, options))
        return replace(
            sample_result(), status="unknown", proved=False, objective=None, bound=None, best=None, others=()
        )

    monkeypatch.setattr(prism_cp.search.solve, "solve_instance", solve_instance)
    code, _, _ = command(
        "solve", "--model", "llama-3.1-70b", "--cluster", "64xh100", "--gbs", 1024, "--seq-len", 8192,
        "--set", "layout.tp=4,8", "--time-limit", 5, "--gap", 0.01, "--workers", 2, "--seed", 7, "--top", 3, "-q",
    )  # fmt: skip
    assert code == ExitCode.STOPPED_WITHOUT
    instance, options = asked[0]
    assert (instance.cluster.num_devices, instance.job.gbs, instance.job.seq_len) == (64, 1024, 8192)
    assert instance.layout.tp == (4, 8)
    assert (options.time_limit_s, options.gap, options.workers, options.seed, options.top_k) == (5, 0.01, 2, 7, 3)


@pytest.mark.parametrize(
    ("changes", "gap", "code"),
    [
        ({}, 0.0, ExitCode.PROVED),
        ({"proved": False, "status": "feasible", "bound": 1}, 0.0, ExitCode.STOPPED_WITH_INCUMBENT),
        ({"proved": False, "status": "feasible", "bound": 1}, 0.9999999, ExitCode.PROVED),
        ({"status": "infeasible", "objective": None, "bound": None, "best": None}, 0.0, ExitCode.INFEASIBLE),
        ({"status": "unknown", "proved": False, "objective": None}, 0.0, ExitCode.STOPPED_WITHOUT),
        ({"status": "unknown", "proved": False, "objective": None, "interrupted": True}, 0.0, ExitCode.INTERRUPTED),
        (
            {"proved": False, "status": "feasible", "bound": 1, "interrupted": True},
            0.0,
            ExitCode.STOPPED_WITH_INCUMBENT,
        ),
    ],
)
def test_exit_codes(changes, gap, code):
    assert exit_code(replace(sample_result(), **changes), gap) == code


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--time-limit", "0"], "--time-limit: 0.0 (accepted: seconds above 0)"),
        (["--time-limit", "nan"], "--time-limit"),
        (["--gap", "-0.1"], "--gap: -0.1"),
        (["--gap", "1"], "--gap"),
        (["--workers", "0"], "--workers: 0"),
        (["--seed", "-1"], "--seed"),
        (["--top", "-1"], "--top"),
        (["--workers", "many"], "--workers"),
        (["--unknown"], "--unknown"),
    ],
)
def test_wrong_option_values_name_the_option(command, instance_file, arguments, part):
    code, text, messages = command("solve", instance_file, *arguments)
    assert code == ExitCode.USAGE
    assert part in messages
    assert text == ""


def test_no_instance_names_the_options(command):
    code, _, messages = command("solve", "--model", "llama-3.1-8b")
    assert code == ExitCode.USAGE
    assert "--cluster" in messages


@pytest.mark.parametrize(
    ("content", "code", "part"),
    [
        (b"", ExitCode.INVALID_INSTANCE, "empty"),
        (b"\x00\xff\x01", ExitCode.INVALID_INSTANCE, "binary"),
        (b"model: [", ExitCode.INVALID_INSTANCE, "line"),
        (b"modle: x\n", ExitCode.INVALID_INSTANCE, "modle"),
        (INSTANCE.replace("gbs: 16", "gbs: -16").encode(), ExitCode.INVALID_INSTANCE, "gbs"),
        (INSTANCE.replace("mbs: 1", "tp: 7").encode(), ExitCode.INVALID_INSTANCE, "tp"),
        (INSTANCE.replace("mbs: 1", "schedule: zigzag").encode(), ExitCode.INVALID_INSTANCE, "zigzag"),
    ],
)
def test_wrong_instances(command, tmp_path, content, code, part):
    path = tmp_path / "wrong.yaml"
    path.write_bytes(content)
    for name in ("solve", "explain"):
        got, text, messages = command(name, path, "--quiet")
        assert (got, text) == (code, "")
        assert part in messages
        assert messages.startswith("prism-cp: ")


def test_missing_files_and_directories(command, tmp_path, plan_file):
    for arguments in (("solve", tmp_path), ("solve", tmp_path / "no.yaml"), ("check", plan_file, tmp_path / "no.yaml")):
        code, _, messages = command(*arguments)
        assert code == ExitCode.USAGE
        assert "accepted" in messages


# -- check and explain -------------------------------------------------------------------------------------------------


def test_check_refuses_a_tampered_plan(command, plan_file, instance_file):
    document = json.loads(plan_file.read_text())
    document["ranks"][0]["memory_gib"]["activations"] *= 0.5
    plan_file.write_text(json.dumps(document))
    code, text, _ = command("check", plan_file, instance_file)
    assert code == ExitCode.CHECK_FAILED
    assert "ranks.0.memory_gib.activations" in text
    code, text, _ = command("check", plan_file, instance_file, "--json")
    assert code == ExitCode.CHECK_FAILED
    assert json.loads(text)["ok"] is False


def test_check_refuses_a_plan_of_another_instance(command, plan_file, instance_file):
    code, _, messages = command("check", plan_file, instance_file, "--set", "job.gbs=32", "--set", "name=other")
    assert code == ExitCode.INVALID_INSTANCE
    assert "'sample'" in messages
    assert "'other'" in messages


def test_explain_a_plan_takes_no_instance_options(command, plan_file):
    code, text, _ = command("explain", plan_file)
    assert code == 0
    assert "What bounds the step time" in text
    code, _, messages = command("explain", plan_file, "--set", "layout.tp=2")
    assert code == ExitCode.USAGE
    assert "--set" in messages


def test_a_broken_plan_names_the_key(command, plan_file, instance_file):
    document = json.loads(plan_file.read_text())
    document["schema_version"] = 99
    plan_file.write_text(json.dumps(document))
    code, _, messages = command("check", plan_file, instance_file)
    assert code == ExitCode.INVALID_INSTANCE
    assert "schema_version: is 99 (accepted: 1)" in messages


# -- catalog -----------------------------------------------------------------------------------------------------------


def test_catalog(command):
    code, text, _ = command("catalog", "list", "--json")
    names = json.loads(text)
    assert code == 0
    assert set(names) == {"models", "devices", "clusters", "profiles"}
    assert "llama-3.1-70b" in names["models"]
    assert command("catalog", "--json")[1] == text
    code, text, _ = command("catalog", "list", "devices")
    assert code == 0
    assert "h100" in text
    code, text, _ = command("catalog", "show", "devices/h100")
    assert code == 0
    assert yaml.safe_load(text)["devices"]["source"]
    code, text, _ = command("catalog", "show", "h100", "--json")
    assert set(json.loads(text)) == {"devices", "clusters"}
    for arguments in (("show", "h10"), ("list", "devicse")):
        code, _, messages = command("catalog", *arguments)
        assert code == ExitCode.INVALID_INSTANCE
        assert "did you mean" in messages


def test_help_has_examples_and_imports_nothing_heavy():
    script = (
        "import sys; sys.argv = ['prism-cp', 'solve', '--help']\n"
        "from prism_cp.cli.main import run\n"
        "try: run()\nexcept SystemExit as end: assert not end.code\n"
        "assert not {'sympy', 'ortools', 'numpy', 'numba'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "--cluster 64xh100 --gbs 1024" in " ".join(done.stdout.split())


# -- output ------------------------------------------------------------------------------------------------------------


def test_out_is_refused_before_the_search(command, instance_file, tmp_path, monkeypatch):
    def never(*_, **__):
        raise AssertionError("the search must not start")

    monkeypatch.setattr(prism_cp.search.solve, "solve_instance", never)
    for out in (tmp_path / "no" / "plan.json", tmp_path):
        code, _, messages = command("solve", instance_file, "--out", out)
        assert code == ExitCode.USAGE
        assert "--out" in messages


def test_a_full_disk_leaves_the_old_file(tmp_path, monkeypatch):
    target = tmp_path / "plan.json"
    target.write_text("old")

    def full(_descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match="No space left on device"):
        write_whole(target, "new")
    assert target.read_text() == "old"
    assert os.listdir(tmp_path) == ["plan.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_device_is_an_error_and_stays_a_device():
    with pytest.raises(UsageError, match="No space left"):
        write_whole(Path("/dev/full"), "text")
    assert not Path("/dev/full").is_file()


def test_whole_files_keep_mode_and_links(tmp_path):
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    target.write_text("old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_whole(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"
    assert target.stat().st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link.json", "target.json"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_standard_output_and_closed_pipe_give_no_traceback():
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [*PROGRAM, "catalog", "list", "--json"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == ExitCode.USAGE
    assert "No space left" in done.stderr
    assert "Traceback" not in done.stderr
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [*PROGRAM, "catalog", "show", "deepseek-v3"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False
    )
    os.close(writer)
    assert done.stderr == ""


# -- signals -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_the_search_gently(command, instance_file, monkeypatch, number):
    def solve_instance(instance, options, progress=None, stop=None):
        os.kill(os.getpid(), number)
        assert stop.wait(60)
        return replace(sample_result(), status="feasible", proved=False, bound=1, interrupted=True, others=())

    monkeypatch.setattr(prism_cp.search.solve, "solve_instance", solve_instance)
    before = signal.getsignal(number)
    code, text, _ = command("solve", instance_file, "--json")
    assert code == ExitCode.STOPPED_WITH_INCUMBENT
    plan = json.loads(text)
    assert plan["search"]["interrupted"] is True
    assert plan["gap"] == pytest.approx(1 - 1 / plan["objective"])
    assert signal.getsignal(number) == before


def test_work_after_the_search_can_be_stopped_without_losing_the_plan():
    never = threading.Event()
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    assert unless_stopped(lambda: never.wait(600)) is None
    assert unless_stopped(lambda: 5) == 5
    never.set()


def test_errors_of_the_search_reach_the_user(command, instance_file, monkeypatch):
    def solve_instance(*_, **__):
        raise UsageError("something the user can mend")

    monkeypatch.setattr(prism_cp.search.solve, "solve_instance", solve_instance)
    assert command("solve", instance_file) == (2, "", "prism-cp: something the user can mend\n")


def test_a_second_signal_ends_the_program():
    script = (
        "import os, signal\nfrom prism_cp.cli.running import GentleStop\n"
        "with GentleStop():\n    os.kill(os.getpid(), signal.SIGINT)\n    os.kill(os.getpid(), signal.SIGINT)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == ExitCode.INTERRUPTED
    with GentleStop() as stop:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0)
        assert stop.event.wait(10)


def test_a_signal_after_the_search_does_not_cost_the_plan(command, instance_file, monkeypatch):
    """Between search and output the plan is checked, which takes seconds for large ones."""

    def checked(plan, instance):
        os.kill(os.getpid(), signal.SIGTERM)
        return check_plan(plan, instance)

    check_plan = prism_cp.check.check_plan
    monkeypatch.setattr(prism_cp.search.solve, "solve_instance", lambda *_, **__: sample_result())
    monkeypatch.setattr(prism_cp.check, "check_plan", checked)
    code, text, _ = command("solve", instance_file, "--json")
    assert code == 0
    assert json.loads(text)["proved"] is True


def test_stopping_one_search_stops_what_follows():
    with GentleStop() as outer:
        with GentleStop() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
            assert inner.event.wait(10)
        assert outer.event.is_set()
        assert unless_stopped(threading.Event().wait) is None
    with GentleStop() as later:
        assert not later.event.is_set()


def test_what_cannot_be_written_is_still_shown(command, instance_file, monkeypatch):
    monkeypatch.setattr(prism_cp.search.solve, "solve_instance", lambda *_, **__: sample_result())
    code, text, messages = command("solve", instance_file, "--json", "--quiet", "--out", "/dev/full")
    assert code == 2
    assert "--out: /dev/full cannot be written" in messages
    assert json.loads(text)["proved"] is True


def test_swapped_arguments_are_called_so(command, plan_file, instance_file):
    code, _, messages = command("check", instance_file, plan_file)
    assert code == 6
    assert "holds an instance where a plan is expected" in messages
    code, _, messages = command("solve", plan_file)
    assert code == 6
    assert "holds a plan where an instance is expected" in messages


def test_closed_standard_streams():
    """As under a daemon that closes them; the plan file must not get one of their numbers."""
    done = subprocess.run(
        ["sh", "-c", '"$0" -m prism_cp catalog list models <&- >&- 2>&-', sys.executable], check=False
    )
    assert done.returncode == 0


def test_a_plan_the_checker_rejects_is_not_called_checked(command, instance_file, monkeypatch):
    """A search that reports a wrong objective ends with code 7, whatever it claims."""

    def solve_instance(*_, **__):
        result = sample_result()
        return replace(result, objective=result.objective - 1, bound=result.objective - 1, others=())

    monkeypatch.setattr(prism_cp.search.solve, "solve_instance", solve_instance)
    code, text, messages = command("solve", instance_file, "--json")
    assert code == ExitCode.CHECK_FAILED
    assert "objective" in messages
    assert "checked" not in json.loads(text)["certificate"]["levels"]


@pytest.mark.parametrize(
    ("extra", "code"), [({}, ExitCode.PROVED), ({"contradiction": "better"}, ExitCode.CHECK_FAILED)]
)
def test_certificates_are_recorded_and_contradictions_reported(command, instance_file, monkeypatch, extra, code):
    def certify(instance, result, time_limit_s=None):
        return Certificate(("bound", "reproved"), {"reproved": {"layouts_reproved": 1, **extra}})

    monkeypatch.setattr(prism_cp.search.solve, "solve_instance", lambda *_, **__: sample_result())
    monkeypatch.setitem(sys.modules, "prism_cp.certify", SimpleNamespace(certify=certify))
    got, text, messages = command("solve", instance_file, "--certify", "--json")
    assert got == code
    assert plan_from_json(text).certificate.levels == ("checked", "bound", "reproved")
    assert ("certificate.reproved: better" in messages) == bool(extra)


def test_explain_of_an_infeasible_plan(command, tmp_path, monkeypatch):
    import prism_cp.report.infeasible
    import prism_cp.search.relaxations

    monkeypatch.setattr(prism_cp.report.infeasible, "closest_layouts", lambda instance: [])
    monkeypatch.setattr(prism_cp.search.relaxations, "cheapest_relaxations", lambda instance, options: [])
    path = tmp_path / "plan.json"
    path.write_text(infeasible_plan().to_json())
    code, text, _ = command("explain", path)
    assert code == 0
    assert "No single change that was tried makes it fit" in text


def test_ctrl_c_while_the_program_loads_leaves_no_traceback():
    script = (
        "import sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "from prism_cp.__main__ import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (ExitCode.INTERRUPTED, "", "")
