"""Weights: the trained tensors of every decoder layer kind, and how tensor and expert parallelism shard them.

Each attention and feed-forward type is one list of `Weight`; the exact model size, the parameters on a device and the
shapes of local weights all follow from it (`parameters`). Shapes are those of the public Hugging Face implementations;
the sharding is Megatron-LM's (core/tensor_parallel/layers.py, core/transformer/{attention,multi_latent_attention,moe}).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Literal, TypeAlias

from sympy import Expr, Integer

from prism_cp.formulas.symbols import ep, etp, names, numbers, tp
from prism_cp.inputs.model import Attention, FeedForward, LayerKind, Model

Number: TypeAlias = Expr  # a sympy number or an expression that stands for one

ONE = Integer(1)


@dataclass(frozen=True, slots=True)
class Weight:
    """One trained tensor of ``copies * rows * cols`` elements.

    Attributes
    ----------
    rows, cols
        Output and input features; ``cols`` is 1 for vectors.
    sharding
        ``tp``: split over tensor parallelism; ``replicated``: whole on every tensor-parallel rank; ``expert``: the
        copies are spread over expert parallelism, each split over expert-tensor parallelism.
    split
        The dimension that the sharding divides; None for a vector of an expert that stays whole.
    gemm
        Whether it belongs to a linear layer whose weight gradient the framework can accumulate in place.
    low_precision
        Whether fp8 training multiplies it in fp8 (routers, output heads and embeddings stay in 16 bits).
    """

    name: str
    rows: Number
    cols: Number = ONE
    sharding: Literal["tp", "replicated", "expert"] = "replicated"
    split: Literal["rows", "cols"] | None = "rows"
    copies: Number = ONE
    gemm: bool = False
    low_precision: bool = False

    @property
    def count(self) -> Number:
        """Elements in the whole model."""
        return self.copies * self.rows * self.cols

    @property
    def local_shape(self) -> tuple[Number, Number]:
        """Rows and columns of one copy on one device."""
        divisor = {"tp": tp, "replicated": ONE, "expert": etp}[self.sharding]
        return (
            self.rows / divisor if self.split == "rows" else self.rows,
            self.cols / divisor if self.split == "cols" else self.cols,
        )

    @property
    def local_count(self) -> Number:
        """Elements on one device."""
        rows, cols = self.local_shape
        return self.copies * rows * cols / (ep if self.sharding == "expert" else 1)


def matrix(name: str, rows: Number, cols: Number, split: Literal["rows", "cols"] | None = None) -> Weight:
    """The weight of a linear layer, split over tensor parallelism when `split` names a dimension."""
    return Weight(name, rows, cols, "tp" if split else "replicated", split, gemm=True, low_precision=True)


def norm_vectors(model: Model) -> int:
    """Learned vectors of one norm: a gain, and for LayerNorm a bias."""
    return 2 if model.norm == "layernorm" else 1


def _self_attention(a: SimpleNamespace, hidden: Number, vectors: int) -> list[Weight]:
    """Fused query/key/value projection and output projection (Vaswani et al. 2017; GQA: Ainslie et al. 2023)."""
    query = a.num_attention_heads * a.head_dim
    fused = (2 * query if a.output_gate else query) + 2 * a.num_key_value_heads * a.head_dim
    weights = [matrix("qkv", fused, hidden, "rows"), matrix("attention_output", hidden, query, "cols")]
    if a.qkv_bias:
        weights.append(Weight("qkv_bias", fused, sharding="tp"))
    if a.output_bias:
        weights.append(Weight("attention_output_bias", hidden))
    if a.qk_norm:
        weights.append(Weight("qk_norm", 2 * vectors * a.head_dim))
    if a.sinks:
        weights.append(Weight("sinks", a.num_attention_heads, sharding="tp"))
    return weights


def _latent_attention(a: SimpleNamespace, hidden: Number, vectors: int) -> list[Weight]:
    """Low-rank projections (DeepSeek-V2, arXiv 2405.04434); the down-projections are whole on every rank."""
    query = a.num_attention_heads * (a.qk_nope_head_dim + a.qk_rope_head_dim)
    value = a.num_attention_heads * a.v_head_dim
    weights = [
        matrix("kv_down", a.kv_lora_rank + a.qk_rope_head_dim, hidden),
        Weight("kv_down_norm", vectors * a.kv_lora_rank),
        matrix("kv_up", a.num_attention_heads * (a.qk_nope_head_dim + a.v_head_dim), a.kv_lora_rank, "rows"),
        matrix("attention_output", hidden, value, "cols"),
    ]
    if a.q_lora_rank is None:
        return [matrix("query", query, hidden, "rows"), *weights]
    return [
        matrix("query_down", a.q_lora_rank, hidden),
        Weight("query_down_norm", vectors * a.q_lora_rank),
        matrix("query_up", query, a.q_lora_rank, "rows"),
        *weights,
    ]


def _gated_delta_net(a: SimpleNamespace, hidden: Number, vectors: int) -> list[Weight]:
    """Gated delta rule block as in Hugging Face ``Qwen3NextGatedDeltaNet`` (Yang et al., arXiv 2412.06464)."""
    key, value = a.num_key_heads * a.key_head_dim, a.num_value_heads * a.value_head_dim
    return [
        matrix("in_qkvz", 2 * key + 2 * value, hidden, "rows"),
        matrix("in_gates", 2 * a.num_value_heads, hidden, "rows"),
        Weight("convolution", 2 * key + value, a.conv_kernel_dim, "tp"),
        Weight("decay", 2 * a.num_value_heads, sharding="tp"),
        Weight("gated_norm", a.value_head_dim),
        matrix("attention_output", hidden, value, "cols"),
    ]


def _mamba2(a: SimpleNamespace, hidden: Number, vectors: int) -> list[Weight]:
    """State-space mixer as in the ``mamba_ssm`` package's ``Mamba2`` (Dao and Gu, arXiv 2405.21060)."""
    inner, state = a.num_heads * a.head_dim, 2 * a.num_groups * a.state_dim
    return [
        matrix("in_projection", 2 * inner + state + a.num_heads, hidden, "rows"),
        Weight("convolution", inner + state, a.conv_kernel_dim + 1, "tp"),
        Weight("step_decay_skip", 3 * a.num_heads, sharding="tp"),
        Weight("gated_norm", inner, sharding="tp"),
        matrix("attention_output", hidden, inner, "cols"),
    ]


def _dense(f: SimpleNamespace, hidden: Number) -> list[Weight]:
    """Two matrices, the first doubled when gated (SwiGLU: Shazeer, arXiv 2002.05202)."""
    first = (2 if f.gated else 1) * f.intermediate_size
    weights = [matrix("fc1", first, hidden, "rows"), matrix("fc2", hidden, f.intermediate_size, "cols")]
    if f.bias:
        weights += [Weight("fc1_bias", first, sharding="tp"), Weight("fc2_bias", hidden)]
    return weights


def _mixture_of_experts(f: SimpleNamespace, hidden: Number) -> list[Weight]:
    """Router, routed experts (one copy each), shared experts (DeepSeekMoE, arXiv 2401.06066)."""
    first, experts = (2 if f.gated else 1) * f.intermediate_size, f.num_experts
    weights = [
        Weight("router", experts, hidden),
        Weight("expert_fc1", first, hidden, "expert", "rows", experts, gemm=True, low_precision=True),
        Weight("expert_fc2", hidden, f.intermediate_size, "expert", "cols", experts, gemm=True, low_precision=True),
    ]
    if f.router_bias:
        weights.append(Weight("router_bias", experts))
    if f.expert_bias:
        weights.append(Weight("expert_fc1_bias", first, sharding="expert", copies=experts))
        weights.append(Weight("expert_fc2_bias", hidden, sharding="expert", split=None, copies=experts))
    if f.shared_intermediate_size != 0:
        shared = (2 if f.gated else 1) * f.shared_intermediate_size
        weights.append(matrix("shared_fc1", shared, hidden, "rows"))
        weights.append(matrix("shared_fc2", hidden, f.shared_intermediate_size, "cols"))
        if f.shared_gate:
            weights.append(Weight("shared_gate", ONE, hidden))
    return weights


_ATTENTION = {
    "self_attention": _self_attention,
    "latent_attention": _latent_attention,
    "gated_delta_net": _gated_delta_net,
    "mamba2": _mamba2,
}
_FEED_FORWARD = {"dense": _dense, "moe": _mixture_of_experts}


def attention_weights(attention: Attention, model: Model, symbolic: bool = False) -> list[Weight]:
    """Weights of one attention or other mixer; in letters when `symbolic`, else with the model's numbers."""
    view = names if symbolic else numbers
    return _ATTENTION[attention.type](view(attention), view(model).hidden_size, norm_vectors(model))


def feed_forward_weights(feed_forward: FeedForward, model: Model, symbolic: bool = False) -> list[Weight]:
    """Weights of one feed-forward; in letters when `symbolic`, else with the model's numbers."""
    view = names if symbolic else numbers
    return _FEED_FORWARD[feed_forward.type](view(feed_forward), view(model).hidden_size)


def layer_weights(kind: LayerKind, model: Model, symbolic: bool = False) -> list[Weight]:
    """Weights of one decoder layer: attention, feed-forward, norms."""
    hidden = (names if symbolic else numbers)(model).hidden_size
    weights = [] if kind.attention is None else attention_weights(kind.attention, model, symbolic)
    if kind.feed_forward is not None:
        weights += feed_forward_weights(kind.feed_forward, model, symbolic)
    if kind.num_norms:
        weights.append(Weight("norms", kind.num_norms * norm_vectors(model) * hidden))
    return weights
