"""Deferred weight gradients: bytes a layer holds between its input gradient and its weight gradient.

Where a schedule splits the backward (Qi et al. 2023, arXiv:2401.10241), every matrix still needs two tensors after its
input gradient: what it multiplied and the gradient of its result (``WeightGradStore`` of
sail-sg/zero-bubble-pipeline-parallelism and of deepseek-ai/DualPipe). Both exist whatever was recomputed: the input
gradient has made recomputed inputs again, and making them a third time is not modelled. Norms, convolutions and
attention kernels make their weight gradients together with their input gradients and hold nothing.

This is no less than what the layer kept before its backward, as one might expect: for a bf16 SwiGLU layer on one
tensor-parallel rank the inputs and gradients are as large as all saved tensors but the statistics (the gradient of
q, k, v takes the place of q, k, v; those of fc1's output and of both results that of fc1's output and both norm
inputs), and a mixture of experts holds one hidden state more per token copy: the gradient of the experts' output.
"""

from __future__ import annotations

from collections.abc import Iterable

from sympy import Add, Expr, Integer

from prism_cp.formulas.activations_feed_forward import token_copies
from prism_cp.formulas.flops import Linear, attention_linears, feed_forward_linears
from prism_cp.formulas.saved import ELEMENT_BYTES, Context
from prism_cp.formulas.symbols import etp, numbers, tp
from prism_cp.inputs.model import LayerKind, MixtureOfExperts

ROUTER_BYTES = 4  # the gradient of the router's scores is fp32


def _is_shared(linear: Linear, hidden_size: int) -> bool:
    """Whether it reads the part's own (normed) input, which all such matrices share."""
    return linear.parallel in ("column", "replicated") and linear.in_features == hidden_size


def _input_bytes(linear: Linear, c: Context, copies: Expr) -> Expr:
    """The saved input: a sequence shard before column-parallel matrices, as before the backward."""
    features = Integer(linear.in_features)
    if linear.name == "router":  # stays in 16 bits
        return ELEMENT_BYTES * c.split_tokens * features
    if linear.parallel in ("column", "replicated"):
        return c.gemm_input(features)
    if linear.parallel == "row":
        return c.product_bytes * c.tokens * features / tp
    return c.product_bytes * copies * features / (etp if linear.parallel == "expert_row" else 1)


def _gradient_bytes(linear: Linear, c: Context, copies: Expr) -> Expr:
    """The gradient of the result; behind a row-parallel matrix it is gathered over tensor parallelism."""
    features = Integer(linear.out_features)
    if linear.name == "router":
        return ROUTER_BYTES * c.split_tokens * features
    if linear.parallel == "column":
        return c.product_bytes * c.tokens * features / tp
    if linear.parallel == "replicated":
        return c.product_bytes * c.split_tokens * features
    if linear.parallel == "row":
        return c.product_bytes * c.tokens * features
    return c.product_bytes * copies * features / (etp if linear.parallel == "expert_column" else 1)


def _part_bytes(linears: Iterable[Linear], hidden_size: int, c: Context, copies: Expr) -> Expr:
    """Inputs, the shared one once in every precision, and gradients."""
    shared: dict[Expr, Expr] = {}
    total = []
    for linear in linears:
        bytes_ = _input_bytes(linear, c, copies)
        if _is_shared(linear, hidden_size):
            shared[bytes_] = bytes_
        else:
            total.append(bytes_)
        total.append(_gradient_bytes(linear, c, copies))
    return Add(*total, *shared.values())


def layer_deferred(kind: LayerKind, hidden_size: int, c: Context) -> Expr:
    """Bytes per device and micro-batch of one layer from its input gradient to its weight gradient."""
    total: list[Expr] = []
    if kind.attention is not None:
        total.append(_part_bytes(attention_linears(kind.attention, hidden_size), hidden_size, c, Integer(0)))
    if kind.feed_forward is not None:
        routed = isinstance(kind.feed_forward, MixtureOfExperts)
        copies = token_copies(numbers(kind.feed_forward), c) if routed else Integer(0)
        linears = feed_forward_linears(kind.feed_forward, hidden_size)
        total.append(_part_bytes(linears, hidden_size, c, copies))
    return Add(*total)


def mtp_deferred(hidden_size: int, c: Context) -> Expr:
    """What the projection of a multi-token-prediction depth adds to its layer."""
    projection = Linear("mtp_projection", 2 * hidden_size, hidden_size, "column")
    return _part_bytes((projection,), hidden_size, c, Integer(0))


def embedding_deferred(c: Context) -> Expr:
    """Token ids and the gathered gradient of the embedded tokens."""
    return (8 + ELEMENT_BYTES * c.hidden) * c.tokens


def head_deferred(num_logit_sets: int, c: Context, vocabulary_per_device: Expr) -> Expr:
    """The projection's input and the 16-bit gradients of all sets of logits."""
    return ELEMENT_BYTES * num_logit_sets * (c.split_tokens * c.hidden + c.tokens * vocabulary_per_device)
