"""Memory of twelve published runs, predicted from their argument lists; each row names its source.

The figures guard the error that the model reached; they are no targets to fit constants to.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from prism_cp.estimation.estimate import estimate
from prism_cp.estimation.megatron_arguments import configuration_from_arguments

ROWS: list[dict[str, Any]] = json.loads((Path(__file__).parent / "published_memory.json").read_text("utf-8"))
LARGEST_ERROR = 0.02


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"].split("/")[-1])
def test_published_memory(row: dict[str, Any]) -> None:
    run = configuration_from_arguments(
        row["arguments"],
        cluster=row["cluster"],
        num_devices=row["num_devices"],
        framework=row["framework"],
        program=row["program"],
        release=row["release"],
        name=row["name"],
    )
    found = estimate(
        replace(run, measured_devices=tuple(row["measured_devices"]), first_step_only=row["first_step_only"])
    )
    assert found.steady_gib == pytest.approx(row["steady_gib"], rel=LARGEST_ERROR)
    assert found.peak_gib == pytest.approx(row["peak_gib"], rel=LARGEST_ERROR)
