"""Activations: bytes that one layer of a kind keeps per live micro-batch, for any recomputation strategy.

A layer is a list of saved tensors (norms here, the rest in `activations_attention` and `activations_feed_forward`);
a strategy keeps those that none of its modules frees.
"""

from __future__ import annotations

from collections.abc import Iterable

from sympy import Add, Expr

from prism_cp.formulas.activations_attention import attention_tensors
from prism_cp.formulas.activations_feed_forward import feed_forward_tensors
from prism_cp.formulas.saved import ELEMENT_BYTES, Context, SavedTensor, saved
from prism_cp.formulas.strategies import Strategy
from prism_cp.inputs.model import LayerKind, MixtureOfExperts, Model


def _input_tensors(part: str, c: Context, has_norm: bool, is_first: bool, keeps_16_bits: bool) -> list[SavedTensor]:
    """Input of a part of a layer: the residual stream, the norm's statistics, its output.

    Full recomputation keeps the first of them. `keeps_16_bits`: something besides fp8 products reads the output.
    """
    output = c.hidden_state if keeps_16_bits else c.gemm_input(c.hidden)
    if not has_norm:
        return [saved(f"{part}_input", output, survives_full=is_first)]
    return [
        saved(f"{part}_norm_input", c.hidden_state, survives_full=is_first),
        saved(f"{part}_norm_statistics", c.statistics(), "layernorm"),
        saved(f"{part}_norm_output", output, "layernorm"),
    ]


def layer_tensors(kind: LayerKind, c: Context, symbolic: bool = False) -> list[SavedTensor]:
    """Everything one layer keeps from forward to backward.

    A layer with one norm for two parts is a parallel residual (Falcon, GPT-J): both read the same normed input. Norms
    beyond one per part normalise a part's output (Gemma 3) and keep that output.
    """
    tensors: list[SavedTensor] = []
    parts = [part for part in (kind.attention, kind.feed_forward) if part is not None]
    norms = kind.num_norms
    if kind.attention is not None:
        tensors += _input_tensors("attention", c, norms > 0, True, False)
        tensors += attention_tensors(kind.attention, c, symbolic)
        tensors += c.dropout_mask("attention_dropout")
    if kind.feed_forward is not None:
        routed = isinstance(kind.feed_forward, MixtureOfExperts)
        if not (norms == 1 and len(parts) == 2):
            tensors += _input_tensors("feed_forward", c, norms > 0, len(parts) == 1, routed)
        tensors += feed_forward_tensors(kind.feed_forward, c, symbolic)
        tensors += c.dropout_mask("feed_forward_dropout")
    if norms > len(parts):
        extra = norms - len(parts)
        tensors.append(saved("output_norms", extra * c.hidden_state + c.statistics(extra)))
    return tensors


def mtp_tensors(c: Context, symbolic: bool = False) -> list[SavedTensor]:
    """What a multi-token-prediction depth keeps besides its layer.

    Both norms' inputs (hidden state and next token's embedding), the concatenated input of the projection, and the
    final norm's input and output (Megatron-LM core/transformer/multi_token_prediction.py).
    """
    return [
        saved("mtp_norm_inputs", 2 * c.hidden_state, survives_full=True),
        saved("mtp_norm_statistics", c.statistics(2)),
        saved("mtp_projection_input", c.gemm_input(2 * c.hidden)),
        saved("mtp_final_norm", 2 * c.hidden_state + c.statistics(), survives_full=True),
    ]


def head_tensors(model: Model, c: Context, vocabulary_per_device: Expr) -> list[SavedTensor]:
    """Final norm's input and output, and per set of logits what the loss keeps.

    The unfused vocabulary-parallel cross entropy keeps fp32 probabilities (Megatron-LM
    core/tensor_parallel/cross_entropy.py); Transformer Engine's fused one keeps the 16-bit logits and overwrites them
    with their gradient. Multi-token prediction keeps one more set per depth, alive together with the main one.
    """
    per_logit = logit_bytes(c)
    # input of GELU, input of the norm and its statistics, input of the projection
    transform = [saved("head_transform", 3 * c.hidden_state + c.statistics(), survives_full=True)]
    return [
        *(transform if model.head_transform else []),
        saved("final_norm", 2 * c.hidden_state + c.statistics(), survives_full=True),
        saved(
            "logits",
            (1 + model.num_mtp_layers) * per_logit * c.tokens * vocabulary_per_device,
            survives_full=True,
        ),
    ]


def logit_bytes(c: Context) -> int:
    """Bytes per logit kept from the loss to its backward pass."""
    return ELEMENT_BYTES if c.profile.fused_cross_entropy else 4


def kept_bytes(tensors: Iterable[SavedTensor], strategies: Iterable[Strategy]) -> list[Expr]:
    """Activation bytes of a list of saved tensors under each strategy, in bytes per live micro-batch and device."""
    groups: dict[tuple[frozenset[str], bool], list[SavedTensor]] = {}
    for tensor in tensors:
        groups.setdefault((tensor.freed_by, tensor.survives_full), []).append(tensor)
    # Tensors with the same fate are added up once; there are few fates and many strategies.
    fates = [(members[0], Add(*(tensor.bytes_ for tensor in members))) for members in groups.values()]
    return [Add(*(bytes_ for member, bytes_ in fates if member.kept(strategy))) for strategy in strategies]
