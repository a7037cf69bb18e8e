"""The command ``prism-cp validate``."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from prism_cp.cli.main import app
from prism_cp.errors import UsageError

FLOPS = "model,seq,task,n,min,median,max\nLLAMA3_70B,8192,full,66,0.43,0.44921,0.55\nUnknown,1024,full,1,1,1,1\n"


@pytest.fixture
def flops(tmp_path: Path) -> Path:
    path = tmp_path / "flops.csv"
    path.write_text(FLOPS)
    return path


def run(*words: str) -> str:
    result = CliRunner().invoke(app, ["validate", *words], catch_exceptions=True)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_rows_then_summary(flops: Path) -> None:
    lines = run(str(flops)).splitlines()
    rows = list(csv.DictReader(io.StringIO("\n".join(lines[:3]))))
    assert float(rows[0]["predicted_tflop_per_token"]) == pytest.approx(0.44921, rel=0.003)
    assert "Unknown" in rows[1]["skipped"]
    assert "2 rows, 1 skipped (50.0 %)." in lines


def test_json_and_filter(flops: Path) -> None:
    data = json.loads(run(str(flops), "--json", "--filter", "seq=8192"))
    assert [row["model"] for row in data["rows"]] == ["LLAMA3_70B"]
    assert data["summary"]["skipped"] == 0
    assert data["command"].startswith("prism-cp validate flops.csv --filter seq=8192")


def test_files(flops: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    run(str(flops), "--out", str(tmp_path / "rows.csv"))
    assert len((tmp_path / "rows.csv").read_text().splitlines()) == 3
    run(str(flops), "--out", str(tmp_path / "table"))
    assert "| tflop_per_token |" in (tmp_path / "table.md").read_text()
    assert json.loads((tmp_path / "table.json").read_text())["summary"]["rows"] == 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--filter", "colour=red"], "no column 'colour'"),
        (["--filter", "seq"], "accepted: column=value"),
        (["--filter", "seq=1"], "no row is left of 2"),
        (["--out", "table.html"], "accepted: a name that ends in .csv or .md"),
    ],
)
def test_wrong_use(flops: Path, words: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem.replace("(", r"\(")):
        run(str(flops), *words)
