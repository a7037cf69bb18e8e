"""Activations of feed-forwards: what dense blocks and mixtures of experts keep for their backward pass."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from sympy import Expr

from prism_cp.formulas.expert_load import expert_load
from prism_cp.formulas.saved import ELEMENT_BYTES, Context, SavedTensor, saved
from prism_cp.formulas.symbols import etp, names, numbers, tp
from prism_cp.inputs.model import FeedForward


def token_copies(f: SimpleNamespace, c: Context) -> Expr:
    """Token copies that the experts of the busiest device process: every token top_k times, times the load."""
    return expert_load(f.expert_load, c.job) * f.top_k * c.split_tokens * etp


def _fc1_features(f: SimpleNamespace, width: Expr) -> Expr:
    """Outputs of the first matrix: doubled by a gate."""
    return 2 * width if f.gated else width


def _dense(f: SimpleNamespace, c: Context) -> list[SavedTensor]:
    """Output of the first matrix and input of the second (fused SwiGLU or GELU keeps nothing else)."""
    width = f.intermediate_size
    tensors = []
    if f.gated and not c.profile.fused_gated_activation:
        ungated = ELEMENT_BYTES * c.tokens * width / tp
        tensors.append(saved("activation_output", ungated, "mlp", "activation_func"))
    return [
        *tensors,
        saved("fc1_output", c.activation_input_bytes * c.tokens * _fc1_features(f, width) / tp, "mlp"),
        saved("fc2_input", c.product_bytes * c.tokens * width / tp, "mlp", "activation_func"),
    ]


def _mixture_of_experts(f: SimpleNamespace, c: Context) -> list[SavedTensor]:
    """Router, permuted tokens, experts, shared experts (Megatron-LM core/transformer/moe).

    Per token: fp32 scores of all experts, int64 numbers, fp32 scores and their sum of the chosen ones, fp32
    probabilities spread over all experts again and a one-byte map (scores by sigmoid, normalised over the chosen; a
    softmax keeps up to 4 bytes per expert less). Per token copy: the permuted input, the two expert activations, an
    fp32 probability and an index. Plain (not gated) experts keep the activation before and after its weighting by the
    router; the all-gather dispatcher also keeps the experts' output.
    """
    copies, width, shared = token_copies(f, c), f.intermediate_size, f.shared_intermediate_size
    tensors = [
        saved("router", (9 * f.num_experts + 12 * f.top_k + 4) * c.split_tokens, "moe"),
        saved("expert_input", c.product_bytes * copies * c.hidden, "moe"),
        saved("expert_fc1_output", c.activation_input_bytes * copies * _fc1_features(f, width) / etp, "moe"),
        saved("expert_fc2_input", c.product_bytes * copies * width / etp, "moe", "moe_act", "activation_func"),
        saved("probabilities_indices", (4 + 8) * copies, "moe"),
    ]
    separate = not c.profile.fused_gated_activation
    if not f.gated or separate:  # gated: the activation function's output, and its product with the gate
        outputs = 2 if f.gated else 1
        unweighted = outputs * ELEMENT_BYTES * copies * width / etp
        tensors.append(saved("unweighted_activation", unweighted, "moe", "moe_act"))
    if c.profile.dispatcher == "allgather":
        tensors.append(saved("expert_output", ELEMENT_BYTES * copies * c.hidden, "moe"))
    if shared != 0:
        inside = ("moe", "shared_experts")
        if c.fp8:  # the router keeps the 16-bit input, so the fp8 one is extra
            tensors.append(saved("shared_input", c.gemm_input(c.hidden), *inside))
        shared_output = c.activation_input_bytes * c.tokens * _fc1_features(f, shared) / tp
        tensors.append(saved("shared_fc1_output", shared_output, *inside))
        shared_activation = c.product_bytes * c.tokens * shared / tp
        tensors.append(saved("shared_fc2_input", shared_activation, *inside, "activation_func"))
        if f.gated and separate:
            ungated = ELEMENT_BYTES * c.tokens * shared / tp
            tensors.append(saved("shared_activation_output", ungated, *inside, "activation_func"))
        if f.shared_gate:
            tensors.append(saved("ungated_shared_output", c.hidden_state + ELEMENT_BYTES * c.split_tokens, *inside))
    return tensors


_TENSORS: dict[str, Callable[[SimpleNamespace, Context], list[SavedTensor]]] = {
    "dense": _dense,
    "moe": _mixture_of_experts,
}


def feed_forward_tensors(feed_forward: FeedForward, c: Context, symbolic: bool = False) -> list[SavedTensor]:
    """Saved tensors of one feed-forward, its input norm not included."""
    return _TENSORS[feed_forward.type]((names if symbolic else numbers)(feed_forward), c)
