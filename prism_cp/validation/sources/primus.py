"""AMD-AGI/Primus: pipeline schedules on MI355X."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prism_cp.estimation.configuration import Configuration
from prism_cp.validation.rows import Row
from prism_cp.validation.sources import generic


def recognises(row: Row) -> bool:
    """Whether the row is of this source."""
    return "primus" in row.text("source").lower() or "AMD-AGI/Primus" in row.text("url")


def configuration(row: Row, arguments: Mapping[str, Any] | None) -> Configuration:
    """Megatron-LM on ROCm: a row without batch sizes cannot be predicted."""
    return generic.configuration(row, arguments)
