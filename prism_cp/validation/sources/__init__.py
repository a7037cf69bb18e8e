"""Sources: one module per kind of published row; `configuration` picks the module by the row's texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from prism_cp.errors import InstanceError
from prism_cp.estimation.configuration import Configuration
from prism_cp.estimation.estimate import Estimate
from prism_cp.validation.rows import Row, Skipped
from prism_cp.validation.sources import (
    bloom_prequel,
    generic,
    korthikanti,
    llm_foundry,
    megatron_bridge_studies,
    megatron_lm_golden,
    mindspeed_llm_npu_ci,
    nvidia_dgxc,
    nvidia_megatron_bridge,
    primus,
    simumax,
    torchtitan,
)


class Source(Protocol):
    """What a module of this package offers; `memory_gib(row, estimate)` too where memory has a meaning of its own."""

    def recognises(self, row: Row) -> bool:
        """Whether the module describes the row."""

    def configuration(self, row: Row, arguments: Mapping[str, Any] | None) -> Configuration:
        """The configuration that the row measured."""


# In order: the first module whose `recognises` accepts the row describes it; `generic` accepts every row.
SOURCES: tuple[Source, ...] = (
    megatron_lm_golden,
    mindspeed_llm_npu_ci,
    megatron_bridge_studies,
    nvidia_dgxc,
    nvidia_megatron_bridge,
    simumax,
    llm_foundry,
    korthikanti,
    bloom_prequel,
    torchtitan,
    primus,
    generic,
)


def configuration(row: Row, arguments: Mapping[str, Any] | None = None) -> Configuration:
    """The configuration that a row measured.

    Parameters
    ----------
    arguments
        The run's argument list, where one was published beside the row.

    Raises
    ------
    Skipped
        A fact is missing, or a feature is unknown; the reason names it.
    """
    module = next(module for module in SOURCES if module.recognises(row))
    try:
        return module.configuration(row, arguments)
    except InstanceError as error:
        raise Skipped(str(error)) from error


def memory_of(row: Row, run: Configuration, result: Estimate) -> float:
    """Predicted memory in the meaning of the row's `memory_kind`, in GiB: by default the peak of the framework's
    counter on the fullest rank; the driver's figure holds fragmentation and what lies outside of that counter too."""
    module = next(module for module in SOURCES if module.recognises(row))
    special = getattr(module, "memory_gib", None)
    if special is not None:
        return float(special(row, result))
    if "nvidia-smi" in row.text("memory_kind"):
        efficiency = run.instance.profile.allocator_efficiency
        return max(rank.peak_gib / efficiency + rank.outside_gib for rank in result.ranks)
    return result.peak_gib
