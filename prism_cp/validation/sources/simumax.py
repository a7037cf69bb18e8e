"""MooreThreads/SimuMax: Megatron runs on 8 B200 without any overlap of communication."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prism_cp.estimation.configuration import Configuration
from prism_cp.validation.names import cluster_family, model_name, num_layers_in_name
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
    return "simumax" in row.text("source").lower()


def configuration(row: Row, arguments: Mapping[str, Any] | None) -> Configuration:
    """Chunks of every rank are in the case's facts; experts are padded to capacity 1; attention exchanges heads."""
    published = row.text("model")
    model = catalog_model(model_name(published))
    if (layers := num_layers_in_name(published)) is not None:
        model = with_num_layers(model, layers)
    if (layers := row.note_integer("layer_num")) is not None:
        model = with_num_layers(model, layers)
    profile = catalog_profile("megatron").model_copy(
        update={"overlap_grad_reduce": False, "overlap_param_gather": False, "tp_overlap": False}
    )
    vpp = _chunks(row)
    return build(
        row,
        model=model.model_copy(update={"num_mtp_layers": 0}),
        family=cluster_family(row.text("system")),
        profile=profile,
        precision=precision_of(row.text("precision")),
        sp=bool(sequence_parallel(row)),
        zero=zero_stage(row.text("zero"), 1),
        vpp=vpp,
        cp_comm="a2a",
        recompute=recomputation(row.text("recompute")),
        job={"capacity_factor": 1.0} if row.size("ep") > 1 or row.text("moe") == "1" else None,
    )


def _chunks(row: Row) -> int:
    if row.size("pp") == 1:
        return 1
    return row.required("vpp")
