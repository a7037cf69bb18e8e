"""Families: which rows are compared with each other, and what a row measured."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from prism_cp.inputs.model import MixtureOfExperts, Model
from prism_cp.validation.rows import Row, Skipped

# Words of the `source` column and the short name of the source, in order.
_SOURCES = (
    ("dgxc", "nvidia_dgxc"),
    ("matched studies", "megatron_bridge_memory_studies"),
    ("megatron-bridge", "nvidia_megatron_bridge"),
    ("simumax", "simumax_b200"),
    ("llm-foundry", "llm_foundry"),
    ("korthikanti", "korthikanti"),
    ("bloom", "bloom_prequel"),
    ("torchtitan", "torchtitan"),
    ("primus", "amd_primus"),
    ("functional test", "megatron_lm_golden"),
    ("mindspeed", "mindspeed_llm_npu_ci"),
)

# Lines of a source that print seconds and TFLOP/s in each other's column: the same run stands elsewhere the right way.
_EXCHANGED = ("chronicles-prequel.md#L669",)


@dataclass(frozen=True)
class Measured:
    """What a row measured; None where nothing was published.

    Attributes
    ----------
    step_s
        Seconds of one step; derived from tokens per second where only those are published.
    out_of_memory
        The run did not fit.
    """

    step_s: float | None
    memory_gib: float | None
    steady_gib: float | None
    out_of_memory: bool


def measured(row: Row, seq_len: int | None = None) -> Measured:
    """Measured values of a row; `seq_len` where the row does not print it."""
    step = row.measurement("iteration_s")
    if any(row.text("url").endswith(address) for address in _EXCHANGED):
        step = row.measurement("tflops_per_device")
    rate, devices = row.measurement("tokens_per_s_per_device"), row.measurement("n_devices")
    gbs, length = row.measurement("gbs"), row.measurement("seq") or seq_len
    if step is None and rate and devices and gbs and length:
        step = gbs * length / (rate * devices)
    snapshot = re.search(r"nvidia-smi snapshot (\d+) GB", row.text("memory_kind"))
    steady = re.search(r"steady mem-allocated=([\d.]+) GiB", row.text("memory_kind"))
    fullest = max((float(values[0]) for values in memory_by_rank(row).values()), default=None)
    return Measured(
        step_s=step,
        memory_gib=row.measurement("memory_gib_measured") or (float(snapshot[1]) if snapshot else None),
        steady_gib=float(steady[1]) if steady else fullest,
        out_of_memory=bool(re.search(r"\bOOM\b|out of memory", row.text("note"), re.IGNORECASE)),
    )


def memory_by_rank(row: Row) -> dict[str, list[Any]]:
    """``[allocated after the step, most allocated, …]`` in GiB of every rank that `memory_kind` lists.

    Raises
    ------
    Skipped
        The list is broken.
    """
    listed = re.search(r"\(alloc,max\)=(\{.*\})", row.text("memory_kind"))
    if listed is None:
        return {}
    try:
        ranks: dict[str, list[Any]] = json.loads(listed[1])
        if all(int(rank) >= 0 and float(values[0]) > 0 for rank, values in ranks.items()):
            return ranks
    except (ValueError, TypeError, LookupError):
        pass
    raise Skipped(f"memory_kind={listed[0]!r} is no list of ranks and memories")


def source_name(row: Row) -> str:
    """Short name of a row's source."""
    text = row.text("source").lower()
    for word, name in _SOURCES:
        if word in text:
            return name
    return re.sub(r"[^a-z0-9]+", "_", text).strip("_") or row.path.stem


def precision_name(row: Row) -> str:
    """``bf16``, ``fp16``, ``fp8`` or ``fp4`` in the words of a table; blank means bf16."""
    plain = row.text("precision").lower()
    for word, name in (("fp4", "fp4"), ("fp8", "fp8"), ("float8", "fp8"), ("fp16", "fp16")):
        if word in plain:
            return name
    return "bf16"


def family_name(row: Row, model: Model | None) -> str:
    """The source, and for NVIDIA's tables whether the model has experts and the precision."""
    source = source_name(row)
    if source not in ("nvidia_dgxc", "nvidia_megatron_bridge") or model is None:
        return source
    if any(isinstance(kind.feed_forward, MixtureOfExperts) for kind in model.kinds):
        return f"{source} MoE"
    return f"{source} dense {precision_name(row)}" if source == "nvidia_dgxc" else f"{source} dense"


def section_name(row: Row) -> str:
    """The table of its source that a row belongs to: rows of one section may be ranked."""
    match = re.search(r"section:\s*([^;]+)", row.text("note"))
    if match is None:
        return ""
    return match[1].strip()
