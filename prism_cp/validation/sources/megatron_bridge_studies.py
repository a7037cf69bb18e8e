"""NVIDIA-NeMo/Megatron-Bridge: matched studies of recomputation, memory of rank 0 after the second step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prism_cp.estimation.configuration import Configuration
from prism_cp.validation.names import cluster_family, model_name
from prism_cp.validation.rows import Row
from prism_cp.validation.sources.common import build, catalog_model, catalog_profile, recomputation, zero_stage


def recognises(row: Row) -> bool:
    """Whether the row is of this source."""
    return "matched studies" in row.text("source").lower()


def configuration(row: Row, arguments: Mapping[str, Any] | None) -> Configuration:
    """The model's pre-training recipe (src/megatron/bridge/recipes/moonlight).

    A distributed precision-aware optimizer with 16-bit gradients and moments, sequence parallelism, experts that tensor
    parallelism does not split.
    """
    optimizer = {
        "gradient_bytes": 2,
        "optimizer_state_bytes": 8,
        "optimizer_moment_bytes": 4,
        "precision_aware_optimizer": True,
        "tp_overlap": False,
    }
    return build(
        row,
        model=catalog_model(model_name(row.text("model"))),
        family=cluster_family(row.text("system")),
        profile=catalog_profile("megatron-bridge").model_copy(update=optimizer),
        precision="bf16",
        sp=row.size("tp") > 1,
        zero=zero_stage(row.text("zero"), 1),
        recompute=recomputation(row.text("recompute")),
    )
