"""NVIDIA-NeMo/Megatron-Bridge: performance summary, joined with the published configurations of the same release."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prism_cp.estimation.configuration import Configuration
from prism_cp.inputs.job import Profile
from prism_cp.inputs.model import MixtureOfExperts, Model
from prism_cp.validation.names import cluster_family, model_name
from prism_cp.validation.pipeline_layout import decoder_layers
from prism_cp.validation.rows import Row, Skipped
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

_DISPATCHERS = {
    "": "alltoall",
    "default": "alltoall",
    "n/a": "alltoall",
    "alltoall": "alltoall",
    "allgather": "allgather",
    "deepep": "deepep",
    "hybridep": "hybridep",
}

_SWITCH = {"0": False, "1": True, "false": False, "true": True, "none": False, "unset": False, "n/a": False}
# Megatron-LM --cuda-graph-scope (megatron/core/transformer/enums.py), and words for no graph
_GRAPHED = ("full", "full_iteration", "attn", "mlp", "moe", "moe_router", "moe_preprocess", "mamba")
_UNGRAPHED = ("none", "unset", "n/a", "default")


def recognises(row: Row) -> bool:
    """Whether the row is of this source."""
    return row.text("source").lower().startswith("megatron-bridge perf summary") or (
        "Megatron-Bridge" in row.text("url") and "performance-summary" in row.text("url")
    )


def configuration(row: Row, arguments: Mapping[str, Any] | None) -> Configuration:
    """Recipes overlap tensor-parallel communication; the rest is joined into the note. Offloading of activations
    (``cpu_offload_layers``) is taken as hidden behind the computation; what it saves in memory is not modelled."""
    note = row.note
    model = _model(row)
    text = row.text("precision")
    if "alt quant granularity" in row.text("note") and "(" in text:
        text = text[text.index("(") + 1 :].rstrip(")")
    layout = note.get("pp_layout", "default")
    stages = None if layout in ("default", "unset", "n/a", "None") else decoder_layers(layout)
    if stages is not None and (row.size("pp") == 1 or sum(stages) != model.num_layers):
        stages = None
    vpp = virtual_stages(row, len(stages) if stages and not row.text("vpp") else None)
    pieces = row.size("pp") * vpp
    if stages is not None and len(stages) != pieces:
        stages = None
    return build(
        row,
        model=model,
        family=cluster_family(row.text("system")),
        profile=_profile(row, model, text),
        precision=precision_of(text),
        dp=data_parallel_size(row),
        vpp=vpp,
        zero=zero_stage(row.text("zero"), 1),
        schedule=schedule_of(row, vpp),
        recompute=recomputation(row.text("recompute")),
        job=tuning_facts(row),
        stage_layers=stages if stages is not None else megatron_stage_layers(model.num_layers, pieces),
    )


def _model(row: Row) -> Model:
    model = catalog_model(model_name(row.text("model")))
    if (layers := row.note_integer("layers")) is not None:
        model = with_num_layers(model, layers)
    depths = row.note_integer("mtp")
    if depths is None:
        return model
    if depths and model.num_mtp_layers == 0 and model.mtp_kind is None:
        raise Skipped(f"mtp={depths}, but {model.name} has no multi-token-prediction layer")
    return model.model_copy(update={"num_mtp_layers": depths})


def _graphed(text: str) -> frozenset[str]:
    """What runs from CUDA graphs, from texts such as ``transformer_engine:attn+moe_router``."""
    plain = text.lower()
    if plain in _UNGRAPHED:
        return frozenset()
    scopes = frozenset(plain.rsplit(":", 1)[-1].split("+"))
    if not scopes <= set(_GRAPHED):
        raise Skipped(f"cuda_graph={text!r} is unknown (accepted: {', '.join((*_UNGRAPHED, *_GRAPHED))})")
    return scopes


def _profile(row: Row, model: Model, precision: str) -> Profile:
    note = row.note
    dispatcher = note.get("moe_dispatcher", "default").lower()
    if dispatcher not in _DISPATCHERS:
        raise Skipped(f"moe_dispatcher={dispatcher!r} is unknown")
    graph = _graphed(note.get("cuda_graph", "none"))
    overlap = note.get("a2a_overlap", "0").lower()
    if overlap not in _SWITCH:
        raise Skipped(f"a2a_overlap={overlap!r} is unknown (accepted: {', '.join(_SWITCH)})")
    updates: dict[str, Any] = {
        "dispatcher": _DISPATCHERS[dispatcher],
        "full_cuda_graphs": "full_iteration" in graph,
        "attention_cuda_graphs": "attn" in graph,
        "expert_overlap": _SWITCH[overlap],
        "fp8_scaling": fp8_scaling(precision, "current"),
    }
    if not any(isinstance(kind.feed_forward, MixtureOfExperts) for kind in model.kinds):
        updates["expert_overlap"] = False
    return catalog_profile("megatron-bridge").model_copy(update=updates)
