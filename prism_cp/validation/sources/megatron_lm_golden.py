"""NVIDIA/Megatron-LM: golden values of its functional tests, with the tests' argument lists.

Memory is logged by the last rank alone, whose process writes the tensorboard file (megatron/training/training.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prism_cp.estimation.configuration import Configuration
from prism_cp.estimation.megatron_arguments import configuration_from_arguments
from prism_cp.validation.names import cluster_family
from prism_cp.validation.rows import Row, Skipped


def recognises(row: Row) -> bool:
    """Whether the row is of this source."""
    return "megatron-lm functional test" in row.text("source").lower()


def configuration(row: Row, arguments: Mapping[str, Any] | None) -> Configuration:
    """The test's arguments; the training program follows from the folder of the test."""
    name = row.text("model").removeprefix("case:")
    if not arguments:
        raise Skipped("the run's arguments are not published")
    run = configuration_from_arguments(
        arguments,
        cluster=cluster_family(device(row)),
        num_devices=row.required("n_devices"),
        program=program(name),
        name=name,
    )
    return replace(run, measured_devices=(row.required("n_devices") - 1,))


def device(row: Row) -> str:
    """Device that the values were recorded on: the file of values is called after it, tests sometimes after another."""
    recorded = re.search(r"golden_values_\w*dgx_([a-z0-9]+)", row.text("note") + row.text("url"))
    return recorded[1] if recorded else row.text("system")


def program(name: str) -> str:
    """Training program of a test: the folder is called after the model."""
    folder = name.split("/")[0]
    return folder if folder in ("bert", "t5") else "gpt"
