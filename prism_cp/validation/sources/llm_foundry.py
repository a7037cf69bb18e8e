"""mosaicml/llm-foundry: MPT models under FSDP, with Triton attention, on A100 and H100."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prism_cp.estimation.configuration import Configuration
from prism_cp.validation.names import cluster_family, model_name
from prism_cp.validation.rows import Row, Skipped
from prism_cp.validation.sources.common import (
    build,
    catalog_model,
    catalog_profile,
    recomputation,
    zero_stage,
)
from prism_cp.validation.sources.nvidia_recipes import precision_of


def recognises(row: Row) -> bool:
    """Whether the row is of this source."""
    return "llm-foundry" in row.text("source").lower() or "llm-foundry" in row.text("url")


def configuration(row: Row, arguments: Mapping[str, Any] | None) -> Configuration:
    """Tables of the earlier release (mixed precision PURE) were made before checkpoints of PyTorch stopped early."""
    if row.note.get("offload", "False") != "False":
        raise Skipped(f"act CPU offload={row.note['offload']}: offloading of activations is not modelled")
    profile = catalog_profile("llm-foundry")
    if row.note.get("mode") == "PURE":
        profile = profile.model_copy(update={"checkpoint_early_stop": False})
    model = catalog_model(model_name(row.text("model")))
    return build(
        row,
        model=model.model_copy(update={"num_learned_positions": row.required("seq")}),
        family=cluster_family(row.text("system")),
        profile=profile,
        precision=precision_of(row.text("precision")),
        sp=False,
        vpp=1,
        zero=zero_stage(row.text("zero"), 3),
        recompute=recomputation(row.text("recompute")),
    )
