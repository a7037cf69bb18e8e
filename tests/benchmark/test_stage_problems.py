"""The benchmark of single stage problems: cases, rows, the table, and wrong options."""

from __future__ import annotations

import json

import pytest

from prism_cp.benchmark.family import FAMILY
from prism_cp.benchmark.stage_problems import CaseRow, cases_json, cases_markdown, chosen_cases
from prism_cp.errors import ExitCode, UsageError


def test_names_are_unique_and_choose_cases():
    assert len({case.name for case in FAMILY}) == len(FAMILY)
    assert {case.schedule for case in FAMILY} >= {"interleaved", "1f1b", "zb-h1", "zb-v", "dualpipe", "dualpipev"}
    assert chosen_cases(()) == list(FAMILY)
    assert {case.schedule for case in chosen_cases(["zb-", "1f1b"])} == {"1f1b", "zb-h1", "zb-v"}
    with pytest.raises(UsageError, match="'vpp9' is in no name"):
        chosen_cases(["1f1b", "vpp9"])


def test_rows_say_what_is_not_proved():
    rows = (
        CaseRow("a", "interleaved", 4, "feasible", 2_000, 1_990, 60.0, 59.0, "not asked (no optimum)"),
        CaseRow("b", "interleaved", 4, "optimal", 2_000, 2_000, 1.0, 0.9, "no plan, 1.2 s (9 columns, 1 solves)"),
        CaseRow("c", "1f1b", 1, "unknown", None, 7, 3.0, 2.0, None),
    )
    text = cases_markdown(rows, "prism-cp bench stage-problems", 60)
    assert "| a | interleaved | feasible | 2,000 | 1,990 | 0.500 | 60.0 | 59.0 | not asked (no optimum) |" in text
    assert (
        "| b | interleaved | optimal | 2,000 | 2,000 | 0.000 | 1.0 | 0.9 | no plan, 1.2 s (9 columns, 1 solves) |"
        in text
    )
    assert "| c | 1f1b | unknown | - | 7 | - | 3.0 | 2.0 | - |" in text
    assert (
        "- interleaved, vpp 4: 1 of 2 proved, wall time median 30.5 s, longest 60.0 s; proved a second time: 1" in text
    )
    assert "`prism-cp bench stage-problems`" in text
    assert "ortools " in text
    data = json.loads(cases_json(rows, "x", 60, 5))
    assert [row["gap"] for row in data["rows"]] == [0.005, 0.0, None]
    assert data["second_proof_s"] == 5
    without = cases_markdown([CaseRow("b", "1f1b", 1, "optimal", 2, 2, 1.0, 0.9, None)], "x", 60)
    assert "| b | 1f1b | optimal | 2 | 2 | 0.000 | 1.0 | 0.9 | yes |" in without


def test_one_case_is_solved_proved_twice_and_written(command, tmp_path):
    out = tmp_path / "stage.md"
    code, text, messages = command(
        "bench", "stage-problems", "--filter", "ds-1f1b-pp4", "--second-proof", 60, "--out", out
    )
    assert code == ExitCode.PROVED
    assert out.read_text() == text
    assert "| no plan, " in text
    assert "proved a second time: 1" in text
    assert "1/1  ds-1f1b-pp4-vpp1-m16-0.6: optimal" in messages
    (row,) = json.loads(out.with_suffix(".json").read_text())["rows"]
    assert row["pipeline_time"] == row["lower_bound"] > 0
    assert row["wall_s"] > 0


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (["--time-limit", 0], "--time-limit: 0"),
        (["--second-proof", -1], "--second-proof: -1"),
        (["--filter", "gpt"], "--filter: 'gpt'"),
        (["--out", "table.txt"], "ends in .md"),
    ],
)
def test_wrong_options(command, options, match):
    code, text, messages = command("bench", "stage-problems", *options)
    assert (code, text) == (ExitCode.USAGE, "")
    assert match in messages
