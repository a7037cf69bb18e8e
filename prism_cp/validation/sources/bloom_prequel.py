"""BigScience: topologies of models near 180 B tried on 48 nodes of A100 before BLOOM was trained."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from prism_cp.estimation.configuration import Configuration
from prism_cp.inputs.model import DenseFeedForward, LayerGroup, LayerKind, Model, SelfAttention
from prism_cp.validation.families import section_name
from prism_cp.validation.names import cluster_family
from prism_cp.validation.rows import Row, Skipped
from prism_cp.validation.sources.common import build, catalog_profile, recomputation, virtual_stages, zero_stage

_VOCABULARY = 250880  # bigscience tokenizer, padded as in the trained model
# Stated by the chronicle for the tables whose own line leaves a fact out.
_DEFAULT_HEADS, _DEFAULT_GBS = 64, 2048
# DeepSpeed's fp16 optimizer: gradients and the flat copy that is reduced.
_FP16_GRADIENT_BYTES = 4
_FIRST_DAY_IN_BF16 = "02-28"


def recognises(row: Row) -> bool:
    """Whether the row is of this source."""
    return "bloom prequel" in row.text("source").lower() or "chronicles-prequel" in row.text("url")


def configuration(row: Row, arguments: Mapping[str, Any] | None) -> Configuration:
    """GPT with the shape that the note states, DeepSpeed ZeRO-1, full recomputation."""
    profile, precision = catalog_profile("megatron-deepspeed"), "bf16"
    if not _in_bf16(row):
        precision = "fp16"
        profile = profile.model_copy(update={"gradient_bytes": _FP16_GRADIENT_BYTES})
    pp = row.size("pp")
    model = _model(row)
    family = cluster_family(row.text("system"))
    return build(
        row,
        model=model,
        family="a100-omnipath" if family == "a100" else family,
        profile=profile,
        precision=precision,
        sp=False,
        gbs=_gbs(row),
        vpp=1 if not row.text("vpp") else virtual_stages(row),
        zero=zero_stage(row.text("zero"), 1),
        recompute=recomputation(row.text("recompute")),
        stage_layers=_stage_layers(model.num_layers, pp, row),
    )


def _model(row: Row) -> Model:
    hidden, layers = row.note_integer("hidden"), row.note_integer("layers")
    heads = row.note_integer("heads") or _heads_in_note(row)
    if hidden is None or layers is None:
        raise Skipped("hidden and layers are not published for this size")
    if heads is None:
        heads = _DEFAULT_HEADS
    if hidden % heads:
        raise Skipped(f"heads={heads} does not divide hidden={hidden}")
    attention = SelfAttention(
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        qkv_bias=True,
        output_bias=True,
    )
    feed_forward = DenseFeedForward(intermediate_size=4 * hidden, gated=False, bias=True)
    return Model(
        name=f"gpt-{hidden}x{layers}",
        hidden_size=hidden,
        vocab_size=_VOCABULARY,
        kinds=(LayerKind(name="mha+dense", attention=attention, feed_forward=feed_forward),),
        layers=(LayerGroup(kind="mha+dense", count=layers),),
        norm="layernorm",
        tied_embeddings=True,
        num_learned_positions=2048,
        source="stated by the measurement",
    )


def _gbs(row: Row) -> int:
    """Sequences per step: the table's own line counts before the column, which holds the section's."""
    match = re.search(r"GBS=(\d+)", row.text("note"))
    return int(match[1]) if match else row.integer("gbs") or _DEFAULT_GBS


def _in_bf16(row: Row) -> bool:
    """The experiments moved from fp16 to bf16 with the tables of 28 February; one earlier section says so itself."""
    if "bf16" in section_name(row):
        return True
    day = re.search(r"note (\d\d-\d\d)", row.text("note"))
    return day is not None and day[1] >= _FIRST_DAY_IN_BF16


def _heads_in_note(row: Row) -> int | None:
    match = re.search(r"NHEADS=(\d+)", row.text("note"))
    return int(match[1]) if match else None


def _stage_layers(layers: int, pp: int, row: Row) -> list[int] | None:
    """Even where they divide; the rebalanced tables count embedding and head as a layer each."""
    if layers % pp == 0 or (layers + 2) % pp:
        return None
    sizes = [(layers + 2) // pp] * pp
    sizes[0] -= 1
    sizes[-1] -= 1
    return sizes
