"""pytorch/torchtitan: Llama 3 under FSDP2, tensor and context parallelism, compiled or not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prism_cp.estimation.configuration import Configuration
from prism_cp.estimation.estimate import Estimate
from prism_cp.validation.names import cluster_family, model_name
from prism_cp.validation.rows import Row, Skipped
from prism_cp.validation.sources.common import (
    build,
    catalog_model,
    catalog_profile,
    schedule_of,
    sequence_parallel,
    virtual_stages,
    zero_stage,
)
from prism_cp.validation.sources.nvidia_recipes import precision_of

_DEFAULT_SEQ = 8192  # of the llama3 configurations of torchtitan/models/llama3/train_configs


def recognises(row: Row) -> bool:
    """Whether the row is of this source."""
    return "torchtitan" in row.text("source").lower() or "torchtitan" in row.text("url")


def configuration(row: Row, arguments: Mapping[str, Any] | None) -> Configuration:
    """SDPA of that release is FlashAttention-2. Selective checkpointing of every second layer is that; the one that
    recomputes every second matrix product of every layer is taken as the same amount of work."""
    note = row.text("note").lower()
    model = catalog_model(model_name(row.text("model")))
    profile = catalog_profile("fsdp2").model_copy(
        update={
            "fused_pointwise": "eager" not in note,
            "tp_overlap": "asynctp" in note.replace(" ", ""),
            "fp8_scaling": "rowwise" if "rowwise" in row.text("precision") else "current",
            "attention_kernel": "flash2",
        }
    )
    vpp = virtual_stages(row)
    return build(
        row,
        model=model,
        family=cluster_family(row.text("system")),
        profile=profile,
        precision=precision_of(row.text("precision").replace("bf16+", "")),
        seq_len=row.integer("seq") or _DEFAULT_SEQ,
        sp=sequence_parallel(row),
        vpp=vpp,
        zero=zero_stage(row.text("zero"), 3),
        cp_comm="all_gather",  # the default of PyTorch's context parallelism
        schedule=schedule_of(row, vpp),
        recompute=_recomputation(row.text("recompute"), len(model.chain)),
    )


def memory_gib(row: Row, result: Estimate) -> float:
    """What torchtitan logs is reserved, not allocated (torchtitan/components/metrics.py, ``max_reserved_gib``)."""
    return result.peak_gib / catalog_profile("fsdp2").allocator_efficiency


def _recomputation(text: str, layers: int) -> str | list[str]:
    plain = text.strip().lower()
    if plain in ("full", "none"):
        return plain
    if plain == "" or plain.startswith("selective"):
        return ["full" if index % 2 else "none" for index in range(layers)]
    raise Skipped(f"recompute={text!r} is not understood")
