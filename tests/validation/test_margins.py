"""Margins: the shipped ones cover what the committed residuals and the frozen sample say; no row is out of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from prism_cp.inputs.catalog import catalog_entry, catalog_names
from prism_cp.validation.families import measured
from prism_cp.validation.rows import Row, read_rows
from prism_cp.validation.statistics import under_prediction
from prism_cp.validation.summary import summarize
from prism_cp.validation.validate import predictions

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "results" / "validation.json"
LOOSE = 0.005  # a margin above what the rows say by more than this is out of date
SAMPLE = ROOT / "tests" / "data" / "validation_sample.csv"


@pytest.fixture(scope="module")
def residuals() -> dict[str, list[tuple[float, float]]]:
    """(predicted as plans count it, measured) GiB of the committed rows, by profile."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    rows: list[dict[str, Any]] = json.loads(TABLE.read_text("utf-8"))["rows"]
    for columns in rows:
        predicted = columns["predicted_plan_memory_gib"]
        actual = measured(Row(columns, TABLE, 0), seq_len=1).memory_gib if predicted else None
        if actual:
            pairs.setdefault(columns["profile"], []).append((float(predicted), actual))
    return pairs


def margin(profile: str) -> float:
    value = catalog_entry("profiles", profile)["memory_margin"]
    assert isinstance(value, float)
    return value


def test_margins_are_the_99th_percentile_of_what_was_predicted_too_low(
    residuals: dict[str, list[tuple[float, float]]],
) -> None:
    assert {"megatron", "megatron-bridge", "mindspeed", "fsdp2", "megatron-deepspeed"} == set(residuals)
    for profile, pairs in residuals.items():
        low = under_prediction(pairs)
        assert low.p99 <= margin(profile) < low.p99 + LOOSE, profile
        assert "99th percentile" in catalog_entry("profiles", profile)["source"]["memory_margin"]


def test_profiles_without_rows_take_a_margin_of_the_others_and_say_so(
    residuals: dict[str, list[tuple[float, float]]],
) -> None:
    others = [name for name in catalog_names("profiles") if name not in residuals]
    assert others == ["llm-foundry", "megatron-2022", "nemo-2025"]
    assert margin("nemo-2025") == max(margin("megatron"), margin("megatron-bridge"))
    most = max(map(margin, residuals))
    assert margin("llm-foundry") == margin("megatron-2022") == most
    for name in others:
        assert "no memory was published" in catalog_entry("profiles", name)["source"]["memory_margin"]


def test_the_committed_summary_states_the_shipped_margins(residuals: dict[str, list[tuple[float, float]]]) -> None:
    stated = {item["profile"]: item for item in json.loads(TABLE.read_text("utf-8"))["summary"]["margins"]}
    assert set(stated) == set(residuals)
    for profile, item in stated.items():
        assert item["margin"] == margin(profile)
        assert item["under_prediction"]["p99"] == pytest.approx(under_prediction(residuals[profile]).p99, abs=1e-5)


def test_predictions_of_the_frozen_sample_are_within_the_margin() -> None:
    margins = summarize(predictions(read_rows([SAMPLE]))).margins
    assert len(margins) > 1
    for item in margins:
        assert item.under_prediction.largest <= item.margin == margin(item.profile), item


def test_under_prediction_counts_only_what_is_too_low() -> None:
    low = under_prediction([(90.0, 100.0), (120.0, 100.0), (100.0, 100.0)])
    assert (low.count, low.largest) == (3, pytest.approx(0.1))
    assert low.p95 == pytest.approx(0.09)  # interpolated between 0 and 0.1
