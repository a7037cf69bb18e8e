"""Rows of measurement files: columns, notes, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_cp.errors import UsageError
from prism_cp.validation.arguments import arguments_of
from prism_cp.validation.families import measured, section_name
from prism_cp.validation.rows import Row, Skipped, read_rows


def row(**columns: str) -> Row:
    return Row(columns, Path("x.csv"), 2)


def test_note_facts() -> None:
    note = row(note="layers= GA=64  FSDP=; release v25.03;  cfg_recompute=[moe_act]; pp_layout=Et*4|(t*4|)*14tmL").note
    assert note == {"ga": "64", "cfg_recompute": "[moe_act]", "pp_layout": "Et*4|(t*4|)*14tmL"}
    blank = row(note="hidden= layers= (arch line) heads=96; note 02-17")
    assert blank.note_integer("hidden") is None
    assert blank.note_integer("heads") == 96


def test_missing_and_wrong_values_name_the_column() -> None:
    with pytest.raises(Skipped, match="gbs is not published"):
        row(gbs="").required("gbs")
    with pytest.raises(Skipped, match="mbs='x' is no number"):
        row(mbs="x").integer("mbs")
    assert row(tp="").size("tp") == 1


@pytest.mark.parametrize("text", ["nan", "inf", "-inf"])
def test_numbers_are_finite(text: str) -> None:
    with pytest.raises(Skipped, match=f"n_devices='{text}' is no finite number"):
        row(n_devices=text).required("n_devices")


@pytest.mark.parametrize("text", ["0", "-5"])
def test_measurements_are_positive(text: str) -> None:
    with pytest.raises(Skipped, match=f"iteration_s='{text}' is not positive"):
        measured(row(iteration_s=text))


def test_numbers_of_notes() -> None:
    assert row(note="layers=n/a;").note_integer("layers") is None
    with pytest.raises(Skipped, match="layers='many' in the note is no whole number"):
        row(note="layers=many;").note_integer("layers")


@pytest.mark.parametrize("listed", ["{bad}", '{"0": []}', '{"0": 3}', '{"0": [-1]}', '{"a": [1]}'])
def test_broken_memories_of_ranks_are_named(listed: str) -> None:
    with pytest.raises(Skipped, match="is no list of ranks and memories"):
        measured(row(memory_kind=f"ranks (alloc,max)={listed}"))
    assert measured(row(memory_kind='ranks (alloc,max)={"0": [3, 5], "1": [4, 5]}')).steady_gib == 4


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "no column model"),
        ("url,model\na,b\n", "no column system, n_devices"),
        ("model,system,n_devices\n", "holds no rows"),
        ("model,system,n_devices\na,b\n", "wrong number of fields"),
        ("model,model,system,n_devices\na,a,b,8\n", "column 'model' stands 2 times"),
        ("# where from\nmodel,system,n_devices\na,b\n", "line 3: wrong number of fields"),
    ],
)
def test_unusable_files(tmp_path: Path, content: str, problem: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(content)
    with pytest.raises(UsageError, match=problem):
        read_rows([path])


def test_missing_file_and_folder_are_named_without_an_error_number(tmp_path: Path) -> None:
    for path, problem in ((tmp_path / "none.csv", "none.csv: does not exist"), (tmp_path, "cannot be read")):
        with pytest.raises(UsageError, match=problem) as error:
            read_rows([path])
        assert "a CSV file of measurements" in str(error.value)
        assert "Errno" not in str(error.value)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is no CSV text"):
        read_rows([path])


def test_measured_step_time_from_tokens_per_second() -> None:
    facts = {"n_devices": "8", "gbs": "16", "seq": "1000", "tokens_per_s_per_device": "500", "note": "section: a; OOM"}
    assert measured(row(**facts)).step_s == 4.0
    assert measured(row(**facts)).out_of_memory
    assert section_name(row(**facts)) == "a"


def test_arguments_are_found_by_case_and_release(tmp_path: Path) -> None:
    (tmp_path / "x_args.json").write_text('{"a": {"tp": 1}, "b@2.0": {"tp": 2}}')
    path = tmp_path / "x.csv"
    assert arguments_of(Row({"model": "case:a", "url": ""}, path, 2)) == {"tp": 1}
    assert arguments_of(Row({"model": "b", "url": "github O/R@2.0:f"}, path, 2)) == {"tp": 2}
    assert arguments_of(Row({"model": "b", "url": "github O/R@3.0:f"}, path, 2)) is None
    (tmp_path / "y_args.json").write_text("[1]")
    with pytest.raises(UsageError, match="mapping"):
        arguments_of(Row({"model": "a", "url": ""}, tmp_path / "y.csv", 2))
