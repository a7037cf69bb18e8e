"""Korthikanti et al., arXiv 2205.05198, table 5: Megatron-LM of 2022 on A100, full against selective recomputation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prism_cp.estimation.configuration import Configuration
from prism_cp.validation.names import cluster_family, model_name
from prism_cp.validation.rows import Row
from prism_cp.validation.sources.common import (
    build,
    catalog_model,
    catalog_profile,
    recomputation,
    sequence_parallel,
    with_num_layers,
    zero_stage,
)
from prism_cp.validation.sources.nvidia_recipes import precision_of


def recognises(row: Row) -> bool:
    """Whether the row is of this source."""
    return "korthikanti" in row.text("source").lower() or "2205.05198" in row.text("url")


def configuration(row: Row, arguments: Mapping[str, Any] | None) -> Configuration:
    """Dropout, attention that is not fused; transfers between stages are split over the tensor-parallel ranks."""
    model = catalog_model(model_name(row.text("model")))
    if (layers := row.note_integer("layers")) is not None:
        model = with_num_layers(model, layers)
    return build(
        row,
        model=model,
        family=cluster_family(row.text("system")),
        profile=catalog_profile("megatron-2022"),
        precision=precision_of(row.text("precision")),
        sp=bool(sequence_parallel(row)),
        zero=zero_stage(row.text("zero"), 0),
        recompute=recomputation(row.text("recompute")),
        job={"dropout": True},
    )
