"""NVIDIA/dgxc-benchmarking: step times of NeMo recipes on DGX systems."""

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
    data_parallel_size,
    megatron_stage_layers,
    recomputation,
    schedule_of,
    virtual_stages,
    with_num_layers,
    zero_stage,
)
from prism_cp.validation.sources.nvidia_recipes import fp8_scaling, precision_of, tuning_facts


def recognises(row: Row) -> bool:
    """Whether the row is of this source."""
    return "dgxc" in row.text("source").lower() or "dgxc-benchmarking" in row.text("url")


def configuration(row: Row, arguments: Mapping[str, Any] | None) -> Configuration:
    """NeMo recipes: sequence parallelism and overlapped collectives wherever there is tensor parallelism, distributed
    optimizer, bf16 gradients."""
    model = catalog_model(model_name(row.text("model")))
    if (layers := row.note_integer("layers")) is not None:
        model = with_num_layers(model, layers)
    precision = precision_of(row.text("precision"))
    profile = catalog_profile("nemo-2025")
    updates: dict[str, Any] = {"fp8_scaling": fp8_scaling(row.text("precision"), "delayed")}
    profile = profile.model_copy(update=updates)
    vpp = virtual_stages(row)
    pieces = row.size("pp") * vpp
    return build(
        row,
        model=model,
        family=cluster_family(row.text("system")),
        profile=profile,
        precision=precision,
        dp=data_parallel_size(row),
        vpp=vpp,
        zero=zero_stage(row.text("zero"), 3 if row.note.get("fsdp", "0") not in ("0", "False", "") else 1),
        schedule=schedule_of(row, vpp),
        recompute=recomputation(row.text("recompute")),
        job=tuning_facts(row),
        stage_layers=megatron_stage_layers(model.num_layers, pieces),
    )
