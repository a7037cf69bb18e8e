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
        (["--out", "."], "is a directory"),
    ],
)
def test_wrong_use(flops: Path, words: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem.replace("(", r"\(")):
        run(str(flops), *words)


def test_measurements_are_never_written_over(flops: Path) -> None:
    with pytest.raises(UsageError, match="is one of the measurement files"):
        run(str(flops), "--out", str(flops))


COLUMNS = "source,model,system,n_devices,precision,gbs,mbs,seq,tp,pp,zero,sp,ep,recompute,iteration_s,note"
RUN = {"source": "mine", "model": "llama3-8b", "system": "8x H100", "n_devices": "8", "gbs": "32", "mbs": "1"}
RUN |= {"seq": "4096", "tp": "2", "pp": "1", "iteration_s": "2.5"}


def predicted(folder: Path, **changes: str) -> dict[str, str]:
    """The only row of a file of one run with some cells changed."""
    path = folder / "runs.csv"
    cells = RUN | changes
    path.write_text(COLUMNS + "\n" + ",".join(cells.get(name, "") for name in COLUMNS.split(",")) + "\n")
    rows = json.loads(run(str(path), "--json"))["rows"]
    assert len(rows) == 1
    found: dict[str, str] = rows[0]
    return found


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"n_devices": "nan"}, "n_devices='nan'"),
        ({"gbs": "1e18"}, "job.gbs: 1000000000000000000"),
        ({"gbs": "80000000"}, "20000000 micro-batches"),
        ({"seq": "1e15"}, "job.seq_len"),
        ({"zero": "10"}, "zero='10'"),
        ({"sp": "perhaps"}, "sp='perhaps'"),
        ({"ep": "4"}, "layout.ep: 4 but llama-3.1-8b has no experts"),
        ({"tp": "64", "n_devices": "64"}, "layout.tp: 64 does not divide 32 heads"),
        ({"seq": "4097"}, "layout.sp: tp 2 does not divide the 4097 tokens"),
        ({"note": "layers=0"}, "0 layers of llama-3.1-8b are out of range"),
        ({"note": "layers=99999999"}, "99999999 layers"),
        ({"model": "llama3-8b (0 layers)"}, "0 layers"),
        ({"iteration_s": "-1"}, "iteration_s='-1' is not positive"),
    ],
)
def test_cells_that_cannot_be_are_named(tmp_path: Path, changes: dict[str, str], named: str) -> None:
    found = predicted(tmp_path, **changes)
    assert named in found["skipped"]
    assert not found["predicted_iteration_s"]


@pytest.mark.parametrize("note", ["cuda_graph=foo", "a2a_overlap=2", "pp_layout=E(t*9999)*9999L"])
def test_words_of_recipes_that_are_not_known_are_named(tmp_path: Path, note: str) -> None:
    found = predicted(tmp_path, source="Megatron-Bridge perf summary", note=note)
    assert note.partition("=")[0] in found["skipped"]


def test_arguments_beside_any_file_are_used(tmp_path: Path) -> None:
    arguments = {"num-layers": 4, "hidden-size": 256, "num-attention-heads": 4, "seq-length": 512, "bf16": True}
    arguments |= {"max-position-embeddings": 512, "micro-batch-size": 2, "global-batch-size": 32, "lr": None}
    (tmp_path / "runs_args.json").write_text(json.dumps({"small": arguments}))
    found = predicted(tmp_path, model="case:small")
    assert not found["skipped"]
    assert float(found["predicted_memory_gib"]) < 1
    (tmp_path / "runs_args.json").write_text(json.dumps({"small": arguments | {"swap-attention": True}}))
    (tmp_path / "runs.csv").rename(tmp_path / "other.csv")
    (tmp_path / "runs_args.json").rename(tmp_path / "other_args.json")
    (row,) = json.loads(run(str(tmp_path / "other.csv"), "--json"))["rows"]
    assert "--swap-attention" in row["skipped"]


def test_a_broken_file_of_arguments_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "runs_args.json").write_text("{bad")
    with pytest.raises(UsageError, match=r"runs_args\.json: cannot be read as JSON"):
        predicted(tmp_path)


def test_rows_are_filtered_by_the_families_of_the_summary(tmp_path: Path, flops: Path) -> None:
    predicted(tmp_path, source="dgxc", precision="bf16")
    files = [str(tmp_path / "runs.csv"), str(flops)]
    kept = json.loads(run(*files, "--json", "--filter", "family=nvidia_dgxc dense bf16"))["rows"]
    assert [item["model"] for item in kept] == ["llama3-8b"]
    kept = json.loads(run(*files, "--json", "--filter", "family=tflop_per_token"))["rows"]
    assert len(kept) == 2
