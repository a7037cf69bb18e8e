"""Transients: bytes that exist only while one layer's (or an end's) backward pass runs.

They are upper bounds made of the largest tensors that are alive together: a part's incoming and inner gradients, the
buffers of its collectives, and everything that the strategy recomputes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from types import SimpleNamespace

from sympy import Expr, Integer, Max

from prism_cp.formulas.activations import logit_bytes
from prism_cp.formulas.activations_attention import DELTA_RULE_CHUNK, local_key_heads
from prism_cp.formulas.activations_feed_forward import token_copies
from prism_cp.formulas.parameters import split_dense_expert
from prism_cp.formulas.saved import ELEMENT_BYTES, Context, sequence_parallel
from prism_cp.formulas.symbols import cp, cp_all_gather, cp_p2p, ep, etp, numbers, tp, zero_2, zero_3
from prism_cp.formulas.weights import Weight
from prism_cp.inputs.model import LayerKind

MAMBA_CHUNK = 256  # tokens per chunk of mamba_ssm's state-space scan


def _gathered_input(c: Context) -> Expr:
    """With sequence parallelism: the gathered input of the first matrix and its gradient before the reduce-scatter."""
    whole = 2 if c.profile.transformer_engine else 1  # a buffer that stays holds the other one
    return sequence_parallel * whole * ELEMENT_BYTES * c.tokens * c.hidden


def _context_parallel(c: Context, key_value_features: Expr) -> Expr:
    """Remote keys and values: all-gather holds those of every rank and their gradients, the ring two blocks."""
    block = ELEMENT_BYTES * c.tokens * key_value_features
    return (2 * cp_all_gather * (cp - 1) + 2 * cp_p2p) * block


def _self_attention(a: SimpleNamespace, c: Context) -> Expr:
    heads, key_heads = a.num_attention_heads / tp, local_key_heads(a)
    inner = ELEMENT_BYTES * c.tokens * (2 * heads + 2 * key_heads) * a.head_dim
    if not c.profile.flash_attention:
        inner += ELEMENT_BYTES * c.tokens * c.seq_len * heads
    return inner + _context_parallel(c, 2 * key_heads * a.head_dim)


def _latent_attention(a: SimpleNamespace, c: Context) -> Expr:
    heads, query_key = a.num_attention_heads / tp, a.qk_nope_head_dim + a.qk_rope_head_dim
    inner = ELEMENT_BYTES * c.tokens * heads * 2 * (query_key + a.v_head_dim)
    if not c.profile.flash_attention:
        inner += ELEMENT_BYTES * c.tokens * c.seq_len * heads
    return inner + _context_parallel(c, heads * (query_key + a.v_head_dim))


def _gated_delta_net(a: SimpleNamespace, c: Context) -> Expr:
    """Gradients of projection and kernel inputs, and the chunk states that the backward pass makes again."""
    key, value = a.num_key_heads * a.key_head_dim, a.num_value_heads * a.value_head_dim
    states = a.num_value_heads * a.key_head_dim * a.value_head_dim / Integer(DELTA_RULE_CHUNK)
    repeated = 2 * a.num_value_heads * a.key_head_dim
    return ELEMENT_BYTES * c.tokens * (2 * key + 3 * value + repeated + 2 * states) / tp


def _mamba2(a: SimpleNamespace, c: Context) -> Expr:
    """Gradients of the projected input and the scan, and the fp32 chunk states with their gradients."""
    inner = a.num_heads * a.head_dim
    projected = 2 * inner + 2 * a.num_groups * a.state_dim + a.num_heads
    states = 2 * 2 * inner * a.state_dim / Integer(MAMBA_CHUNK)
    return ELEMENT_BYTES * c.tokens * (projected + 3 * inner + states) / tp


def _dense(f: SimpleNamespace, c: Context) -> Expr:
    """Gradient of the first matrix's output (measured 1 + 2f/h hidden states for fused SwiGLU, 1 + f/h for GELU)."""
    return ELEMENT_BYTES * c.tokens * (2 if f.gated else 1) * f.intermediate_size / tp


def _mixture_of_experts(f: SimpleNamespace, c: Context) -> Expr:
    """Two hidden states of the combine, gradients of the permuted tokens and of the experts' first output.

    The latter of one expert at a time where a rank's experts run one after the other.
    """
    inner = (2 if f.gated else 1) * f.intermediate_size / etp
    if not c.profile.grouped_experts:
        inner = inner * ep / f.num_experts
    return 2 * c.hidden_state + ELEMENT_BYTES * token_copies(f, c) * (c.hidden + inner)


_PARTS: dict[str, Callable[[SimpleNamespace, Context], Expr]] = {
    "self_attention": _self_attention,
    "latent_attention": _latent_attention,
    "gated_delta_net": _gated_delta_net,
    "mamba2": _mamba2,
    "dense": _dense,
    "moe": _mixture_of_experts,
}


def layer_transient(kind: LayerKind, c: Context) -> Expr:
    """Bytes alive only during a layer's backward pass when nothing is recomputed: the larger of its parts."""
    parts = [part for part in (kind.attention, kind.feed_forward) if part is not None]
    inner = [_PARTS[part.type](numbers(part), c) for part in parts]
    # Only the inner gradients differ between the parts; both hold the residual gradient and gathered inputs.
    largest = Max(*inner, evaluate=False) if len(inner) > 1 else sum(inner, Integer(0))
    return c.hidden_state + largest + _gathered_input(c)


def gathered_weights(parameters: Expr) -> Expr:
    """Whole 16-bit weights that ZeRO-3 gathers for one unit while those of the next are prefetched."""
    return zero_3 * 2 * ELEMENT_BYTES * parameters


def sharding_transient(weights: Iterable[Weight], c: Context) -> Expr:
    """Whole weights and gradients of one unit that ZeRO makes for its backward pass.

    ZeRO-3 gathers a unit's weights while the next unit's are prefetched; from ZeRO-2 on its whole gradients exist
    until they are reduced (PyTorch FSDP notes; Rajbhandari et al., arXiv 1910.02054).
    """
    parameters = sum(split_dense_expert(weights))
    return zero_2 * c.profile.gradient_reduce_bytes * parameters + gathered_weights(parameters)


def weight_transient(weights: Iterable[Weight], c: Context) -> Expr:
    """Whole weights and gradients of one unit that ZeRO or the framework makes for its backward pass.

    Without in-place accumulation the largest weight gradient exists once more.
    """
    weights = list(weights)
    total = sharding_transient(weights, c)
    if c.profile.dummy_weight_gradients:
        return total
    largest = []
    for sharding, divisor in (("tp", tp), ("replicated", Integer(1)), ("expert", ep * etp)):
        one = sharding == "expert" and not c.profile.grouped_experts
        counts = [
            weight.count / weight.copies * ep if one else weight.count
            for weight in weights
            if weight.gemm and weight.sharding == sharding
        ]
        if counts:
            largest.append(Max(*counts) / divisor)
    return total + ELEMENT_BYTES * (Max(*largest, evaluate=False) if len(largest) > 1 else sum(largest, Integer(0)))


def head_transient(c: Context, vocabulary_per_device: Expr) -> Expr:
    """Bytes beyond what the head keeps: the larger of the loss and of the projection's backward pass.

    That pass holds the 16-bit gradient of the logits instead of what the loss kept, the gradient of its input and a
    gradient of its weight, a dummy where gradients accumulate in place. The logits' live bytes at the peak are a fact
    of the cross entropy in use (2 fused by Transformer Engine, 6 when the maximum is subtracted in place, 10
    otherwise); only the micro-batch at the loss has them. The projection is Megatron-LM's own linear layer
    (core/tensor_parallel/layers.py), which made its dummy gradient anew every time (caching it would contradict the
    published peaks of last stages, SimuMax, B200) before newer releases cached it as Transformer Engine does.
    """
    logits = c.tokens * vocabulary_per_device
    loss = max(0, c.profile.loss_peak_bytes_per_logit - logit_bytes(c)) * logits
    input_gradient = ELEMENT_BYTES * c.tokens * c.hidden * (1 + sequence_parallel)
    kept = c.profile.dummy_weight_gradients and c.profile.keeps_head_dummy
    weight_gradient = 0 if kept else ELEMENT_BYTES * c.hidden * vocabulary_per_device
    backward = (ELEMENT_BYTES - logit_bytes(c)) * logits + weight_gradient
    return Max(loss, backward, evaluate=False) + input_gradient
