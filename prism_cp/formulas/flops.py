"""FLOPs: the matrices of every layer kind, what attention costs, and the model's FLOPs behind MFU and HFU.

Conventions of MFU here: three times the forward FLOPs of the model (forward, input gradient, weight gradient), causal
attention counted as half of the square (a sliding window as the pairs inside it), router, norms and vocabulary
padding left out, every expert copy counted once (no imbalance). That is how the counts published with Megatron-LM and
NVIDIA's performance tables come about, except that those count a sliding window as full attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from prism_cp.inputs.instance import Instance
from prism_cp.inputs.model import (
    Attention,
    FeedForward,
    GatedDeltaNet,
    LatentAttention,
    LayerKind,
    Mamba2,
    MixtureOfExperts,
    Model,
    SelfAttention,
)

Parallel = Literal["column", "row", "replicated", "expert_column", "expert_row"]
Modules = frozenset[str]

NO_MODULE: Modules = frozenset()
LATENT_UP: Modules = frozenset({"mla_up_proj"})
CORE: Modules = frozenset({"core_attn"})
DENSE: Modules = frozenset({"mlp"})
MOE: Modules = frozenset({"moe"})
SHARED: Modules = frozenset({"moe", "shared_experts"})


@dataclass(frozen=True)
class Linear:
    """One weight matrix that tokens are multiplied with.

    Attributes
    ----------
    parallel
        How tensor parallelism splits it: ``column`` (outputs), ``row`` (inputs), ``replicated`` (not at all; it runs
        on the sequence-parallel share of the tokens), ``expert_*`` for routed experts.
    modules
        The recomputation modules that run it again, besides full recomputation.
    """

    name: str
    in_features: int
    out_features: int
    parallel: Parallel
    modules: Modules = NO_MODULE


def attention_linears(attention: Attention, hidden_size: int) -> tuple[Linear, ...]:
    """Matrices of one attention or other mixer.

    Sources: Megatron-LM ``core/transformer/attention.py``, ``multi_latent_attention.py`` (the latent down-projections
    are duplicated on every tensor-parallel rank), ``core/ssm/mamba_mixer.py``; Qwen3-Next's gated delta net.
    """
    h = hidden_size
    if isinstance(attention, SelfAttention):
        width = attention.num_attention_heads * attention.head_dim
        queries = width * (2 if attention.output_gate else 1)
        keys = attention.num_key_value_heads * attention.head_dim
        return Linear("qkv", h, queries + 2 * keys, "column"), Linear("out", width, h, "row")
    if isinstance(attention, LatentAttention):
        heads = attention.num_attention_heads
        query = heads * (attention.qk_nope_head_dim + attention.qk_rope_head_dim)
        rank = attention.q_lora_rank
        down = [Linear("q_down", h, rank, "replicated")] if rank is not None else []
        return (
            *down,
            Linear("kv_down", h, attention.kv_lora_rank + attention.qk_rope_head_dim, "replicated"),
            Linear("q_up", rank if rank is not None else h, query, "column", LATENT_UP),
            Linear(
                "kv_up",
                attention.kv_lora_rank,
                heads * (attention.qk_nope_head_dim + attention.v_head_dim),
                "column",
                LATENT_UP,
            ),
            Linear("out", heads * attention.v_head_dim, h, "row"),
        )
    if isinstance(attention, GatedDeltaNet):
        keys = attention.num_key_heads * attention.key_head_dim
        values = attention.num_value_heads * attention.value_head_dim
        inputs = 2 * keys + 2 * values + 2 * attention.num_value_heads
        return Linear("in", h, inputs, "column"), Linear("out", values, h, "row")
    inner = attention.num_heads * attention.head_dim
    inputs = 2 * inner + 2 * attention.num_groups * attention.state_dim + attention.num_heads
    return Linear("in", h, inputs, "column"), Linear("out", inner, h, "row")


def feed_forward_linears(feed_forward: FeedForward, hidden_size: int) -> tuple[Linear, ...]:
    """Matrices of one feed-forward: dense, or routed and shared experts (the routed ones as one expert's matrices).

    Sources: Megatron-LM ``core/transformer/mlp.py``, ``core/transformer/moe/experts.py``, ``shared_experts.py``.
    """
    h = hidden_size
    up = 2 if feed_forward.gated else 1
    if not isinstance(feed_forward, MixtureOfExperts):
        width = feed_forward.intermediate_size
        return Linear("fc1", h, up * width, "column", DENSE), Linear("fc2", width, h, "row", DENSE)
    width, shared = feed_forward.intermediate_size, feed_forward.shared_intermediate_size
    routed = (
        Linear("router", h, feed_forward.num_experts, "replicated", MOE),
        Linear("expert_fc1", h, up * width, "expert_column", MOE),
        Linear("expert_fc2", width, h, "expert_row", MOE),
    )
    if not shared:
        return routed
    return (
        *routed,
        Linear("shared_fc1", h, up * shared, "column", SHARED),
        Linear("shared_fc2", shared, h, "row", SHARED),
    )


def attention_pairs(seq_len: int, window: int | None) -> int:
    """Query-key pairs a causal kernel computes for one sequence: exact, s(s+1)/2 without a window."""
    reach = min(window or seq_len, seq_len)
    return reach * seq_len - reach * (reach - 1) // 2


def nominal_attention_pairs(seq_len: int, window: int | None) -> Fraction:
    """Query-key pairs that model FLOPs count: s²/2 without a window (Megatron-LM ``training.py``)."""
    reach = min(window or seq_len, seq_len)
    return Fraction(reach * (2 * seq_len - reach), 2)


def core_width(attention: SelfAttention | LatentAttention) -> int:
    """Multiply-adds of one query-key pair, all heads: scores and the weighted sum of values."""
    if isinstance(attention, SelfAttention):
        return 2 * attention.num_attention_heads * attention.head_dim
    dims = attention.qk_nope_head_dim + attention.qk_rope_head_dim + attention.v_head_dim
    return attention.num_attention_heads * dims


def state_space_flops_per_token(attention: GatedDeltaNet | Mamba2) -> int:
    """Forward FLOPs of one token in a linear-attention core, convolution included.

    Source: Megatron-LM ``megatron/training/training.py``: four products of key width and value width a head for the
    gated delta rule, 7·inner·state for the Mamba-2 scan.
    """
    if isinstance(attention, GatedDeltaNet):
        keys = attention.num_key_heads * attention.key_head_dim
        values = attention.num_value_heads * attention.value_head_dim
        return 2 * attention.conv_kernel_dim * (2 * keys + values) + 8 * values * attention.key_head_dim
    inner = attention.num_heads * attention.head_dim
    channels = inner + 2 * attention.num_groups * attention.state_dim
    return 7 * inner * attention.state_dim + 2 * attention.conv_kernel_dim * channels


def layer_forward_flops(kind: LayerKind, model: Model, seq_len: int) -> dict[Modules, Fraction]:
    """Forward FLOPs of one layer for one sequence, by the modules that recompute them (MFU convention)."""
    flops: dict[Modules, Fraction] = {}

    def add(modules: Modules, amount: Fraction | int) -> None:
        flops[modules] = flops.get(modules, Fraction(0)) + amount

    if kind.attention is not None:
        for linear in attention_linears(kind.attention, model.hidden_size):
            add(linear.modules, 2 * seq_len * linear.in_features * linear.out_features)
        if isinstance(kind.attention, (SelfAttention, LatentAttention)):
            window = kind.attention.window if isinstance(kind.attention, SelfAttention) else None
            add(CORE, 2 * nominal_attention_pairs(seq_len, window) * core_width(kind.attention))
        else:
            add(CORE, seq_len * state_space_flops_per_token(kind.attention))
    if kind.feed_forward is not None:
        copies = kind.feed_forward.top_k if isinstance(kind.feed_forward, MixtureOfExperts) else 1
        for linear in feed_forward_linears(kind.feed_forward, model.hidden_size):
            if linear.name == "router":
                continue
            times = copies if linear.parallel.startswith("expert") else 1
            add(linear.modules, 2 * seq_len * times * linear.in_features * linear.out_features)
    return flops


def chain_item_forward_flops(kind: str, model: Model, seq_len: int) -> dict[Modules, Fraction]:
    """As `layer_forward_flops` for one item of the chain; ``mtp`` stands for all depths, projections included."""
    if kind != "mtp":
        return layer_forward_flops(model.kind(kind), model, seq_len)
    assert model.mtp_kind is not None
    flops = layer_forward_flops(model.kind(model.mtp_kind), model, seq_len)
    projection = 4 * seq_len * model.hidden_size**2
    flops[NO_MODULE] = flops.get(NO_MODULE, Fraction(0)) + projection
    return {modules: model.num_mtp_layers * amount for modules, amount in flops.items()}


def model_flops_per_step(instance: Instance) -> Fraction:
    """FLOPs of the model in one step: three times the forward of every layer and of the logits of every token.

    Source: Megatron-LM ``megatron/training/training.py`` (``num_floating_point_operations``; logits once more for
    every multi-token-prediction depth), without the router and without vocabulary padding.
    """
    model, seq_len = instance.model, instance.job.seq_len
    by_kind = {
        kind: sum(chain_item_forward_flops(kind, model, seq_len).values(), Fraction(0)) for kind in model.chain_kinds
    }
    logits = 2 * seq_len * model.hidden_size * model.vocab_size * (1 + model.num_mtp_layers)
    return 3 * instance.job.gbs * (sum((by_kind[kind] for kind in model.chain), Fraction(0)) + logits)


def recomputed_flops_per_sequence(kind: str, modules: Modules, full: bool, instance: Instance) -> Fraction:
    """Forward FLOPs that one chain item runs a second time for one sequence under a strategy."""
    flops = chain_item_forward_flops(kind, instance.model, instance.job.seq_len)
    return sum((amount for part, amount in flops.items() if full or part & modules), Fraction(0))


def hardware_flops_per_step(
    instance: Instance, strategies: Mapping[str, Mapping[tuple[Modules, bool], int]]
) -> Fraction:
    """Model FLOPs plus the recomputed ones, in one step.

    Parameters
    ----------
    strategies
        ``strategies[kind][(modules, full)]``: how many layers of the kind use the strategy, over the whole model.
    """
    recomputed = sum(
        (
            count * recomputed_flops_per_sequence(kind, modules, full, instance)
            for kind, counts in strategies.items()
            for (modules, full), count in counts.items()
        ),
        Fraction(0),
    )
    return model_flops_per_step(instance) + instance.job.gbs * recomputed
