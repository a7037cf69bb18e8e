"""Ascend/MindSpeed-LLM: baselines of its tests on Ascend devices, with the tests' argument lists.

Memory is that of the listed ranks after the first step, whose device is of the 910B class (the product is not printed).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from prism_cp.estimation.configuration import Configuration
from prism_cp.estimation.megatron_arguments import configuration_from_arguments
from prism_cp.validation.families import memory_by_rank
from prism_cp.validation.names import cluster_family
from prism_cp.validation.rows import Row, Skipped


def recognises(row: Row) -> bool:
    """Whether the row is of this source."""
    return "mindspeed-llm npu ci" in row.text("source").lower()


def configuration(row: Row, arguments: Mapping[str, Any] | None) -> Configuration:
    """The test's arguments, of the release that the row's address names."""
    if not arguments:
        raise Skipped("the run's arguments are not published")
    run = configuration_from_arguments(
        arguments,
        cluster=cluster_family(row.text("system")),
        num_devices=row.required("n_devices"),
        framework="mindspeed",
        release=release_of(row),
        name=row.text("model"),
    )
    return replace(run, measured_devices=tuple(map(int, memory_by_rank(row))), first_step_only=True)


def release_of(row: Row) -> str:
    """Release of the framework that a baseline was recorded with; empty: the newest.

    The development branch keeps baselines of releases up to 2.1 until a test is recorded again; those recorded since
    carry the name of the training backend.
    """
    named = re.search(r"@([^:]+):", row.text("url"))
    if named and named[1] != "HEAD":
        return named[1]
    recorded_again = any("megatron" in ranks[2:] for ranks in memory_by_rank(row).values())
    return "" if recorded_again else "2.1"
