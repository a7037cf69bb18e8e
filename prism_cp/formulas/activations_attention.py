"""Activations of attention and other mixers: what each type keeps for its backward pass, after the input norm."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from sympy import Expr, Max

from prism_cp.formulas.saved import ELEMENT_BYTES, STATISTIC_BYTES, Context, SavedTensor, saved
from prism_cp.formulas.symbols import cp_a2a, names, numbers, tp
from prism_cp.inputs.model import Attention

DELTA_RULE_CHUNK = 64  # tokens per chunk of flash-linear-attention's gated delta rule


def local_key_heads(a: SimpleNamespace) -> Expr:
    """Key/value heads on a device: at least one, however large tp is (Megatron-LM core/transformer/attention.py)."""
    return Max(1, a.num_key_value_heads / tp)


def _core_attention(c: Context, heads: Expr, value_dim: Expr) -> list[SavedTensor]:
    """What the attention kernel keeps besides query, key and value.

    Fused: softmax statistics (FlashAttention, arXiv 2205.14135), for all-to-all context parallelism the output before
    the second exchange, and where the kernel wants another layout a copy of the output. Not fused: the scores after
    softmax, with dropout also its mask and result (the 5as²b of Korthikanti et al., arXiv 2205.05198).
    """
    output = ELEMENT_BYTES * c.tokens * heads * value_dim / tp
    tensors = [saved("attention_output", output)]
    if c.fp8:
        tensors.append(saved("output_projection_input", c.product_bytes * c.tokens * heads * value_dim / tp))
    tensors.append(saved("exchanged_output", cp_a2a * output, "core_attn"))
    if not c.profile.flash_attention:
        scores = c.tokens * c.seq_len * heads / tp
        return [*tensors, saved("scores", (5 if c.attention_dropout else 2) * scores, "core_attn")]
    if c.profile.attention_copies_output:
        tensors.append(saved("copied_output", output, "core_attn"))
    statistics = c.profile.softmax_statistics_bytes * c.tokens * heads / tp
    return [*tensors, saved("softmax_statistics", statistics, "core_attn")]


def _self_attention(a: SimpleNamespace, c: Context) -> list[SavedTensor]:
    """Softmax attention with any number of key heads, fused or not (Megatron-LM core/transformer/attention.py)."""
    heads, key_heads = a.num_attention_heads, local_key_heads(a)
    row = ELEMENT_BYTES * c.tokens * a.head_dim  # bytes of one head of one of query, key, value
    tensors = [saved("query_key_value", row * (heads / tp + 2 * key_heads))]
    if a.qk_norm:  # the norms keep their inputs and one statistic per head
        normed = c.tokens * (heads / tp + key_heads)
        statistic = STATISTIC_BYTES * c.norm_statistics
        tensors.append(saved("qk_norm_input", (ELEMENT_BYTES * a.head_dim + statistic) * normed))
    if c.profile.rope_saves_input:
        tensors.append(saved("rope_input", row * (heads / tp + key_heads)))
    repeats = c.profile.repeats_key_values or not c.profile.flash_attention
    if repeats and a.num_attention_heads != a.num_key_value_heads:
        # matrix products need every key head once per query head
        tensors.append(saved("repeated_key_value", row * 2 * (heads / tp - key_heads), "core_attn"))
    tensors += _core_attention(c, heads, a.head_dim)
    if a.output_gate:  # the gate and the gated output, which the projection reads
        tensors.append(saved("gated_output", 2 * row * heads / tp))
    return tensors


def _latent_attention(a: SimpleNamespace, c: Context) -> list[SavedTensor]:
    """Latent attention, trained with expanded heads (Megatron-LM core/transformer/multi_latent_attention.py)."""
    heads, rope = a.num_attention_heads, a.qk_rope_head_dim
    query_rank = 0 if a.q_lora_rank is None else a.q_lora_rank
    ranks = query_rank + a.kv_lora_rank
    query_key = a.qk_nope_head_dim + rope
    value = query_key if c.profile.pads_value_heads else a.v_head_dim
    tensors = [
        saved("down_projected", ELEMENT_BYTES * c.split_tokens * (ranks + rope)),
        saved("down_norm_statistics", c.statistics(1 if a.q_lora_rank is None else 2)),
        saved("up_projection_inputs", c.gemm_input(ranks)),
        saved(
            "query_key_value",
            ELEMENT_BYTES * c.tokens * heads * (2 * query_key + value) / tp,
            "mla_up_proj",
        ),
    ]
    if c.profile.rope_saves_input:  # only the rotated part of the queries, and the key part all heads share
        tensors.append(saved("rope_input", ELEMENT_BYTES * c.tokens * (heads / tp + 1) * rope, "mla_up_proj"))
    if c.profile.pads_value_heads:  # the kernel keeps its padded output, the projection the cut one
        tensors.append(saved("padded_output", ELEMENT_BYTES * c.tokens * heads * query_key / tp, "core_attn"))
    return tensors + _core_attention(c, heads, a.v_head_dim)


def _gated_delta_net(a: SimpleNamespace, c: Context) -> list[SavedTensor]:
    """Gated delta rule (Qwen3-Next).

    Save lists of flash-linear-attention's ``causal_conv1d``, ``chunk_gated_delta_rule`` and gated norm; queries and
    keys are repeated to the value heads before the kernel.
    """
    key, value = a.num_key_heads * a.key_head_dim, a.num_value_heads * a.value_head_dim
    heads, tokens = a.num_value_heads / tp, c.tokens
    return [
        saved("convolution_input", ELEMENT_BYTES * tokens * (2 * key + value) / tp),
        saved("convolution_output", ELEMENT_BYTES * tokens * (2 * key + value) / tp),
        saved("normed_query_key", ELEMENT_BYTES * tokens * 2 * heads * a.key_head_dim),
        saved("decay_beta_statistics", STATISTIC_BYTES * tokens * 5 * heads),
        saved("chunk_products", ELEMENT_BYTES * tokens * DELTA_RULE_CHUNK * heads),
        saved("rule_output", ELEMENT_BYTES * tokens * value / tp),
        saved("gate", ELEMENT_BYTES * tokens * value / tp),
        saved("output_projection_input", c.product_bytes * tokens * value / tp),
    ]


def _mamba2(a: SimpleNamespace, c: Context) -> list[SavedTensor]:
    """Mamba-2: the projected input, and three tensors of the inner width (scan input, gate product, output).

    The counts reproduce the peaks of Megatron-LM's functional tests of hybrid models.
    """
    inner = a.num_heads * a.head_dim
    projected = 2 * inner + 2 * a.num_groups * a.state_dim + a.num_heads
    return [
        saved("projected_input", ELEMENT_BYTES * c.tokens * projected / tp),
        saved("scan", ELEMENT_BYTES * c.tokens * 3 * inner / tp),
    ]


_TENSORS: dict[str, Callable[[SimpleNamespace, Context], list[SavedTensor]]] = {
    "self_attention": _self_attention,
    "latent_attention": _latent_attention,
    "gated_delta_net": _gated_delta_net,
    "mamba2": _mamba2,
}


def attention_tensors(attention: Attention, c: Context, symbolic: bool = False) -> list[SavedTensor]:
    """Saved tensors of one attention or other mixer, its input norm not included."""
    return _TENSORS[attention.type]((names if symbolic else numbers)(attention), c)
