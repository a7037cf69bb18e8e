"""Swapping of activations by MindSpeed: ``--swap-attention`` (mindspeed/core/memory/swap_attention).

What the attention module of a layer saves goes to the host and leaves the device when the layer's forward pass ends.
It comes back when the layer's own backward pass starts, so one layer of one micro-batch is on the device. What the
attention kernel itself returns, its softmax statistics, stays. ``--recompute-num-layers`` means something else then:
in so many layers the feed-forward is recomputed from its input.
"""

from __future__ import annotations

from collections.abc import Sequence

from prism_cp.estimation.megatron_arguments.reading import Arguments, UnsupportedArgument
from prism_cp.inputs.job import OffloadModule

MODULES: tuple[OffloadModule, ...] = ("qkv_linear", "core_attn", "attn_proj")  # of the attention module
LAYERS_ON_DEVICE = 1
FEED_FORWARD = "mlp+moe"  # whichever a layer has
# Names of modules in layers of Megatron's core; the norms' names are those of older layers, which core has not.
_DEFAULT = "input_norm,self_attention,post_attention_norm"
_ACCEPTED = frozenset(_DEFAULT.split(","))
# Flags beside which the module saves views of larger tensors, which stay, or which nothing is known of.
_NOT_BESIDE = (
    "multi-latent-attention",
    "multi-head-latent-attention",
    "experimental-attention-variant",
    "attention-output-gate",
    "qk-layernorm",
    "recompute-granularity",
    "noop-layers",
)


def swaps_attention(arguments: Arguments, framework: str) -> bool:
    """Whether the attention modules of all layers are swapped.

    Raises
    ------
    UnsupportedArgument
        What is swapped beside other flags is not known.
    """
    if not arguments.has("swap-attention"):
        return False
    if framework != "mindspeed":
        raise UnsupportedArgument("swap-attention", "", f"is no flag of {framework}", "--framework mindspeed")
    for flag in ("use-mcore-models", "use-flash-attn"):
        if not arguments.has(flag):
            raise UnsupportedArgument("swap-attention", "", f"without --{flag} is not modelled", f"--{flag}")
    for flag in _NOT_BESIDE:
        if arguments.has(flag):
            raise UnsupportedArgument("swap-attention", "", f"with --{flag} is not modelled")
    if arguments.integer("context-parallel-size", 1) > 1:
        raise UnsupportedArgument("swap-attention", "", "with context parallelism is not modelled")
    named = [name.strip() for name in arguments.text("swap-modules", _DEFAULT).split(",")]
    for name in named:
        if name not in _ACCEPTED:
            raise UnsupportedArgument("swap-modules", name, "is not modelled", ", ".join(sorted(_ACCEPTED)))
    return "self_attention" in named


def swapped_recomputation(arguments: Arguments, pieces: Sequence[int], pp: int, length: int) -> list[str]:
    """Strategy of every chain item beside swapping: layers of a rank are dealt to its chunks in turn.

    Raises
    ------
    UnsupportedArgument
        Only some of the layers would be swapped.
    """
    method = arguments.one_of("recompute-method", "", ("", "uniform", "block"))
    of_rank = [sum(pieces[rank::pp]) for rank in range(pp)]
    count = arguments.integer("recompute-num-layers", 0)
    vpp = len(pieces) // pp
    if not arguments.has("enable-recompute-layers-per-pp-rank"):
        count *= vpp
    if method == "block" and count < max(of_rank):
        text = arguments.text("recompute-num-layers")
        raise UnsupportedArgument("recompute-num-layers", text, "swaps some layers only, which is not modelled")
    texts: list[str] = []
    for piece, size in enumerate(pieces):
        rank, chunk = piece % pp, piece // pp
        whole = method == "uniform" or count >= of_rank[rank]
        done = size if whole else min(size, (count - chunk + vpp - 1) // vpp)
        texts += [FEED_FORWARD] * done + ["none"] * (size - done)
    return texts + [texts[-1]] * (length - len(texts))
