"""A frozen sample of published rows: predictions must not drift from what was measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from prism_cp.validation.rows import read_rows
from prism_cp.validation.validate import Prediction, predictions

SAMPLE = Path(__file__).parents[1] / "data" / "validation_sample.csv"


@pytest.fixture(scope="module")
def found() -> list[Prediction]:
    return predictions(read_rows([SAMPLE]))


def test_nothing_is_skipped(found: list[Prediction]) -> None:
    assert [item.skipped for item in found if item.skipped] == []


def test_step_times(found: list[Prediction]) -> None:
    errors = {
        f"{item.row.text('model')} {item.row.text('system')}": item.iteration_s / item.measured.step_s - 1
        for item in found
        if item.iteration_s and item.measured.step_s and item.source != "bloom_prequel"
    }
    assert len(errors) >= 11
    assert max(abs(error) for error in errors.values()) < 0.10, errors
    assert sum(abs(error) for error in errors.values()) / len(errors) < 0.05, errors


def test_peak_memory_of_simumax(found: list[Prediction]) -> None:
    errors = [
        item.memory_gib / item.measured.memory_gib - 1
        for item in found
        if item.source == "simumax_b200" and item.memory_gib and item.measured.memory_gib
    ]
    assert len(errors) == 2
    assert max(map(abs, errors)) < 0.015


def test_the_run_out_of_memory_does_not_fit(found: list[Prediction]) -> None:
    assert [item.fits for item in found if item.measured.out_of_memory] == [False]


def test_any_row_with_model_system_and_sizes_is_predicted(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    path.write_text(
        "model,system,n_devices,gbs,mbs,seq,tp,pp,vpp\n"
        "Llama-2-70b,A100-80GB,64,128,1,4096,8,4,1\n"
        "Llama-2-70b,A100-80GB,64,127,1,4096,8,4,1\n"
        "Llama-2-70b,A100-80GB,64,128,1,4096,8,4,\n"
    )
    found = predictions(read_rows([path]))
    assert found[0].iteration_s is not None
    assert found[0].skipped == ""
    assert "gbs=127" in found[1].skipped
    assert "vpp" in found[2].skipped
