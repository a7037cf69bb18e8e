"""Models from arguments: kinds of layers, their order, the ends (megatron/training/arguments.py)."""

from __future__ import annotations

import re

from prism_cp.estimation.megatron_arguments.reading import Arguments, UnsupportedArgument
from prism_cp.estimation.megatron_arguments.vocabulary import vocabulary
from prism_cp.inputs.consistency import MAX_LAYERS
from prism_cp.inputs.model import (
    Attention,
    DenseFeedForward,
    GatedDeltaNet,
    LatentAttention,
    LayerGroup,
    LayerKind,
    Mamba2,
    MixtureOfExperts,
    Model,
    SelfAttention,
)

_LIST = re.compile(r"^[\[\]()\d,*+\s]+$")
_PAIR = re.compile(r"\[([\d,\s]*)\](?:\s*\*\s*(\d+))?|(\d+)\s*\*\s*\[([\d,\s]*)\]")
HYBRID_LETTERS = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}


def model_from_arguments(arguments: Arguments, name: str, program: str = "gpt") -> tuple[Model, int]:
    """The network that the arguments describe, and what its vocabulary is padded to a multiple of (times tp).

    BERT adds two segment embeddings, a dense layer with its norm before the output projection, and a pooler
    (megatron/core/models/bert).
    """
    bert = program == "bert"
    entries, multiple = vocabulary(arguments, "BertWordPieceLowerCase" if bert else "GPT2BPETokenizer", name)
    kinds, order = _hybrid(arguments) if is_hybrid(arguments) else _decoder(arguments)
    kept = [kind for index, kind in enumerate(order) if index not in removed_layers(arguments)]
    used = tuple(kind for kind in kinds if kind.name in kept)
    depths = arguments.integer("mtp-num-layers", 0)
    learned = _position(arguments) == "learned_absolute"
    model = Model(
        name=name,
        hidden_size=arguments.size("hidden-size"),
        vocab_size=entries,
        kinds=used,
        layers=tuple(LayerGroup(kind=kind, count=1) for kind in kept),
        norm="rmsnorm" if _normalization(arguments) == "RMSNorm" else "layernorm",
        tied_embeddings=not arguments.has("untie-embeddings-and-output-weights"),
        num_learned_positions=arguments.integer("max-position-embeddings") + 2 * bert if learned else 0,
        embedding_norm=arguments.has("embed-layernorm"),
        head_bias=bert or arguments.has("add-output-layer-bias"),
        head_transform=bert,
        num_mtp_layers=depths,
        mtp_kind=kept[-1] if depths else None,
        source="Megatron-LM arguments",
    )
    return model, multiple


def removed_layers(arguments: Arguments) -> frozenset[int]:
    """Indices that ``--noop-layers`` takes out of the model."""
    return frozenset(arguments.integers("noop-layers"))


def num_layers(arguments: Arguments) -> int:
    """Decoder layers, removed ones included."""
    if "num-layers" in arguments.given:
        layers = arguments.size("num-layers")
        if layers > MAX_LAYERS:
            raise UnsupportedArgument("num-layers", str(layers), "is out of range", f"at most {MAX_LAYERS}")
        return layers
    pattern = hybrid_pattern(arguments)
    if pattern:
        return len(pattern)
    raise UnsupportedArgument("num-layers", "", "is missing", "an integer")


def hybrid_pattern(arguments: Arguments) -> str:
    """One letter per layer of a hybrid model; empty when the arguments state none."""
    text = arguments.text("hybrid-layer-pattern") or arguments.text("hybrid-override-pattern")
    if "/" in text:
        raise UnsupportedArgument("hybrid-layer-pattern", text, "multi-token prediction in the pattern is not modelled")
    return text.replace("|", "")


def _position(arguments: Arguments) -> str:
    if arguments.has("use-rotary-position-embeddings"):
        return "rope"
    if arguments.has("no-position-embedding") or arguments.has("no-add-position-embedding"):
        return "none"
    kinds = ("learned_absolute", "rope", "mrope", "yarn", "alibi", "none", "nope", "relative")
    return arguments.one_of("position-embedding-type", "learned_absolute", kinds)


def _normalization(arguments: Arguments) -> str:
    return arguments.one_of("normalization", "LayerNorm", ("LayerNorm", "RMSNorm"))


def _biased(arguments: Arguments) -> bool:
    return not arguments.has("disable-bias-linear")


def _gated(arguments: Arguments) -> bool:
    return any(arguments.has(flag) for flag in ("swiglu", "geglu", "quick-geglu", "gelu-tanh"))


def _window(arguments: Arguments) -> int | None:
    """Tokens a query looks back at, itself included; ``--window-size left,right``."""
    if not arguments.has("window-size"):
        return None
    if arguments.has("window-attn-skip-freq"):
        text = arguments.text("window-attn-skip-freq")
        raise UnsupportedArgument("window-attn-skip-freq", text, "layers with and without a window are not modelled")
    left = arguments.text("window-size").strip("() ").split(",")[0].strip()
    if not left.isdecimal():
        raise UnsupportedArgument("window-size", arguments.text("window-size"), "is no window", "left,right")
    return int(left) + 1


def ffn_hidden_size(arguments: Arguments) -> int:
    """Width of the dense feed-forward: four hidden sizes, with SwiGLU two thirds of that in steps of 64."""
    hidden = arguments.size("hidden-size")
    default = int((4 * hidden * 2 / 3) / 64) * 64 if arguments.has("swiglu") else 4 * hidden
    return arguments.size("ffn-hidden-size", default)


def _self_attention(arguments: Arguments) -> SelfAttention:
    heads = arguments.size("num-attention-heads")
    grouped = arguments.has("group-query-attention")
    return SelfAttention(
        num_attention_heads=heads,
        num_key_value_heads=arguments.size("num-query-groups", 1) if grouped else heads,
        head_dim=arguments.size("kv-channels", arguments.size("hidden-size") // heads),
        qkv_bias=_biased(arguments) or arguments.has("add-qkv-bias"),
        output_bias=_biased(arguments) or arguments.has("add-dense-bias"),
        qk_norm=arguments.has("qk-layernorm"),
        window=_window(arguments),
        output_gate=arguments.has("attention-output-gate"),
    )


def _latent_attention(arguments: Arguments) -> LatentAttention:
    newer = arguments.has("multi-latent-attention")
    nope, rope = ("qk-head-dim", "qk-pos-emb-head-dim") if newer else ("qk-nope-head-dim", "qk-rope-head-dim")
    rank = arguments.integer("q-lora-rank", 0)
    return LatentAttention(
        num_attention_heads=arguments.size("num-attention-heads"),
        q_lora_rank=rank or None,
        kv_lora_rank=arguments.size("kv-lora-rank", 32),
        qk_nope_head_dim=arguments.integer(nope, 128),
        qk_rope_head_dim=arguments.integer(rope, 64),
        v_head_dim=arguments.integer("v-head-dim", 128),
    )


def _gated_delta_net(arguments: Arguments) -> GatedDeltaNet:
    return GatedDeltaNet(
        num_key_heads=arguments.size("linear-num-key-heads", 16),
        num_value_heads=arguments.size("linear-num-value-heads", 32),
        key_head_dim=arguments.integer("linear-key-head-dim", 128),
        value_head_dim=arguments.integer("linear-value-head-dim", 128),
        conv_kernel_dim=arguments.integer("linear-conv-kernel-dim", 4),
    )


def _mamba(arguments: Arguments) -> Mamba2:
    head_dim = arguments.size("mamba-head-dim", arguments.size("mamba-headdim", 64))
    inner = arguments.size("mamba-expand", 2) * arguments.size("hidden-size")
    return Mamba2(
        num_heads=arguments.integer("mamba-num-heads", inner // head_dim),
        head_dim=head_dim,
        num_groups=arguments.integer("mamba-num-groups", arguments.integer("mamba-ngroups", 8)),
        state_dim=arguments.integer("mamba-state-dim", arguments.integer("mamba-d-state", 128)),
        conv_kernel_dim=arguments.integer("mamba-d-conv", 4),
    )


def _dense(arguments: Arguments) -> DenseFeedForward:
    return DenseFeedForward(
        intermediate_size=ffn_hidden_size(arguments), gated=_gated(arguments), bias=_biased(arguments)
    )


def _experts(arguments: Arguments) -> MixtureOfExperts:
    width = arguments.integer("moe-ffn-hidden-size", arguments.integer("moe-intermediate-size", 0))
    width = width or ffn_hidden_size(arguments)
    shared = arguments.integer("moe-shared-expert-intermediate-size", 0)
    return MixtureOfExperts(
        num_experts=arguments.size("num-experts"),
        top_k=arguments.size("moe-router-topk", 2),
        intermediate_size=width,
        shared_intermediate_size=shared or arguments.integer("n-shared-experts", 0) * width,
        shared_gate=arguments.has("moe-shared-expert-gate") or arguments.has("shared-expert-gate"),
        gated=_gated(arguments),
        expert_bias=_biased(arguments),
        num_groups=arguments.integer("moe-router-num-groups", 1),
        topk_groups=arguments.integer("moe-router-group-topk", 1),
    )


def _decoder(arguments: Arguments) -> tuple[list[LayerKind], list[str]]:
    """A transformer: attention and feed-forward in every layer."""
    layers = num_layers(arguments)
    latent = arguments.has("multi-latent-attention") or arguments.has("multi-head-latent-attention")
    softmax: Attention = _latent_attention(arguments) if latent else _self_attention(arguments)
    mixers = {"": softmax, "other_": softmax}
    others = [False] * layers
    if arguments.has("interleave-sliding-window") and isinstance(softmax, SelfAttention):
        # every other layer, from the first on, sees a window
        mixers["other_"] = softmax.model_copy(update={"window": arguments.integer("interleave-sliding-window")})
        others = [layer % 2 == 0 for layer in range(layers)]
    if arguments.has("experimental-attention-variant"):
        arguments.one_of("experimental-attention-variant", "", ("gated_delta_net",))
        mixers["other_"] = _gated_delta_net(arguments)
        softmax_layers = _pattern(arguments, "linear-attention-freq", layers, "4", period_means_last=True)
        others = [not flag for flag in softmax_layers]
        if "," in arguments.text("linear-attention-freq") or "[" in arguments.text("linear-attention-freq"):
            others = softmax_layers
    moe = expert_layers(arguments, layers)
    norms = 4 if arguments.has("post-norm") else 2
    kinds: list[LayerKind] = []
    order = []
    for is_other, is_moe in zip(others, moe, strict=True):
        prefix = "other_" if is_other else ""
        name = prefix + ("moe" if is_moe else "dense")
        order.append(name)
        if name not in {kind.name for kind in kinds}:
            feed_forward = _experts(arguments) if is_moe else _dense(arguments)
            kinds.append(LayerKind(name=name, attention=mixers[prefix], feed_forward=feed_forward, num_norms=norms))
    return kinds, order


def expert_layers(arguments: Arguments, layers: int) -> list[bool]:
    """Which layers are mixtures of experts."""
    if not arguments.has("num-experts"):
        return [False] * layers
    dense = arguments.integer("first-k-dense-replace", 0, -1)
    if "first-k-dense-replace" in arguments.given or arguments.text("moe-layer-freq").startswith("-"):
        period = abs(arguments.integer("moe-layer-freq", 1, -1)) or 1
        return [layer >= dense and layer % period == 0 for layer in range(layers)]
    return _pattern(arguments, "moe-layer-freq", layers, "1")


def _pattern(
    arguments: Arguments, flag: str, layers: int, default: str, *, period_means_last: bool = False
) -> list[bool]:
    """An integer (every N-th layer) or a Python list such as ``([0]*3+[1]*12)``, as flags."""
    text = arguments.text(flag, default).replace(" ", "")
    if text.isdigit() and int(text):
        period = int(text)
        return [(layer + 1 if period_means_last else layer) % period == 0 for layer in range(layers)]
    values: list[int] = []
    if _LIST.match(text):
        for body, times, times_first, body_first in _PAIR.findall(text):
            part = [int(value) for value in (body or body_first).split(",") if value]
            values += part * int(times or times_first or 1)
    outer = re.fullmatch(r"\((.*)\)\*(\d+)", text)
    if outer:
        values *= int(outer[2])
    if len(values) != layers or not set(values) <= {0, 1}:
        raise UnsupportedArgument(flag, text, f"is no pattern of {layers} layers", "N, or [0]*a+[1]*b")
    return [bool(value) for value in values]


def is_hybrid(arguments: Arguments) -> bool:
    """Whether layers are of one part each, among them Mamba-2."""
    flags = (
        "hybrid-layer-pattern",
        "hybrid-override-pattern",
        "is-hybrid-model",
        "mamba-d-conv",
        "hybrid-attention-ratio",
    )
    return any(arguments.has(flag) for flag in flags) or "mamba_spec" in arguments.text("spec")


def _hybrid(arguments: Arguments) -> tuple[list[LayerKind], list[str]]:
    """Layers of one part each: state space, attention, feed-forward or experts (megatron/core/ssm)."""
    pattern = hybrid_pattern(arguments)
    if not pattern:
        for flag in ("hybrid-attention-ratio", "hybrid-mlp-ratio"):
            if arguments.number(flag, 0.0):
                raise UnsupportedArgument(flag, arguments.text(flag), "is not modelled", "hybrid-layer-pattern")
        pattern = "M" * num_layers(arguments)
    makers = {
        "M": lambda: LayerKind(name="mamba", attention=_mamba(arguments), num_norms=1),
        "*": lambda: LayerKind(name="attention", attention=_self_attention(arguments), num_norms=1),
        "-": lambda: LayerKind(name="mlp", feed_forward=_dense(arguments), num_norms=1),
        "E": lambda: LayerKind(name="moe", feed_forward=_experts(arguments), num_norms=1),
    }
    for letter in pattern:
        if letter not in makers:
            raise UnsupportedArgument("hybrid-layer-pattern", pattern, f"layer {letter!r} is not modelled", "M * - E")
    kinds = [makers[letter]() for letter in dict.fromkeys(pattern)]
    return kinds, [HYBRID_LETTERS[letter] for letter in pattern]
