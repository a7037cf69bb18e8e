"""Any row with a known model, a known system and parallel sizes, taken as a Megatron-LM run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prism_cp.estimation.configuration import Configuration
from prism_cp.estimation.megatron_arguments import configuration_from_arguments
from prism_cp.validation.names import cluster_family, model_name, num_layers_in_name
from prism_cp.validation.rows import Row
from prism_cp.validation.sources.common import (
    build,
    catalog_model,
    catalog_profile,
    megatron_stage_layers,
    recomputation,
    schedule_of,
    sequence_parallel,
    virtual_stages,
    with_num_layers,
    zero_stage,
)
from prism_cp.validation.sources.nvidia_recipes import precision_of


def recognises(row: Row) -> bool:
    """Every row."""
    return True


def configuration(row: Row, arguments: Mapping[str, Any] | None) -> Configuration:
    """The run's arguments where they were published; else distributed optimizer, sequence parallelism with tensor
    parallelism, nothing recomputed unless stated."""
    family = cluster_family(row.text("system"))
    if arguments is not None:
        return configuration_from_arguments(
            arguments,
            cluster=family,
            num_devices=row.required("n_devices"),
            framework="mindspeed" if family.startswith("910") else "megatron",
            name=row.text("model"),
        )
    model = catalog_model(model_name(row.text("model")))
    layers = num_layers_in_name(row.text("model"))
    if layers is None:
        layers = row.note_integer("layers")
    if layers is not None:
        model = with_num_layers(model, layers)
    zero = zero_stage(row.text("zero"), 1)
    profile = "mindspeed" if family.startswith("910") else "fsdp2" if zero == 3 else "megatron"
    vpp = virtual_stages(row)
    return build(
        row,
        model=model,
        family=family,
        profile=catalog_profile(profile),
        precision=precision_of(row.text("precision")),
        sp=sequence_parallel(row),
        vpp=vpp,
        zero=zero,
        schedule=schedule_of(row, vpp),
        recompute=recomputation(row.text("recompute")),
        stage_layers=megatron_stage_layers(model.num_layers, row.size("pp") * vpp),
    )
