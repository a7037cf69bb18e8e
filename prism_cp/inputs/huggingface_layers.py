"""Inputs room: pieces that the HuggingFace families share: attention, layer kinds, alternations, the final `Model`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from prism_cp.inputs.huggingface_keys import Keys
from prism_cp.inputs.model import (
    Attention,
    FeedForward,
    GatedDeltaNet,
    LatentAttention,
    LayerGroup,
    LayerKind,
    Mamba2,
    Model,
    SelfAttention,
)


def build_model(keys: Keys, name: str, layers: Sequence[LayerKind], *, tied: bool, **facts: Any) -> Model:
    """Join equal neighbours to groups; `tied` is the family's documented default."""
    kinds: dict[str, LayerKind] = {}
    groups: list[tuple[str, int]] = []
    for kind in layers:
        kinds.setdefault(kind.name, kind)
        if groups and groups[-1][0] == kind.name:
            groups[-1] = (kind.name, groups[-1][1] + 1)
        else:
            groups.append((kind.name, 1))
    return Model(
        name=name,
        hidden_size=facts.pop("hidden_size", None) or keys.size("hidden_size"),
        vocab_size=facts.pop("vocab_size", None) or keys.size("vocab_size"),
        kinds=tuple(kinds.values()),
        layers=tuple(LayerGroup(kind=kind, count=count) for kind, count in groups),
        tied_embeddings=keys.flag("tie_word_embeddings", tied),
        source=keys.source,
        **facts,
    )


_MIXERS = {LatentAttention: "mla", GatedDeltaNet: "gated-delta-net", Mamba2: "mamba2"}


def layer_kind(attention: Attention | None, feed_forward: FeedForward | None, num_norms: int = 2) -> LayerKind:
    """A layer kind named attention+feed-forward, e.g. ``mla+moe``, ``gqa-window128+dense``, or by the one it has."""
    parts = []
    if isinstance(attention, SelfAttention):
        heads, kv = attention.num_attention_heads, attention.num_key_value_heads
        mixer = "mha" if heads == kv else "mqa" if kv == 1 else "gqa"
        parts.append(f"{mixer}-window{attention.window}" if attention.window else mixer)
    elif attention is not None:
        parts.append(_MIXERS[type(attention)])
    if feed_forward is not None:
        parts.append(feed_forward.type)
    return LayerKind(name="+".join(parts), attention=attention, feed_forward=feed_forward, num_norms=num_norms)


def self_attention(
    keys: Keys, *, kv_heads: int | None = None, own_head_dim: bool = False, **facts: Any
) -> SelfAttention:
    """Softmax attention from the key names that all families since Llama share.

    `kv_heads` is used when the key is missing; None refuses that, because the defaults of most configuration classes
    fit one size only. `own_head_dim` says that the family's head size is no quotient, so it must be stated. `facts`
    are fields of the type.
    """
    heads = keys.size("num_attention_heads")
    kv = keys.size("num_key_value_heads", kv_heads)
    if own_head_dim:
        head_dim = keys.size("head_dim")
    else:
        head_dim = keys.optional_size("head_dim") or keys.divided("hidden_size", "num_attention_heads")
    if heads % kv:
        problem = f"{kv} does not divide num_attention_heads = {heads}"
        raise keys.error("num_key_value_heads", problem, f"a divisor of {heads}")
    return SelfAttention(num_attention_heads=heads, num_key_value_heads=kv, head_dim=head_dim, **facts)


def layer_windows(
    keys: Keys, layers: int, window_key: str, local: str, is_local: Callable[[int], bool]
) -> list[int | None]:
    """Window of every layer: from ``layer_types`` when it is given, else from the family's documented alternation."""
    types = keys.names("layer_types", layers, (local, "full_attention"))
    flags = [kind == local for kind in types] if types else [is_local(layer) for layer in range(layers)]
    if not any(flags):
        return [None] * layers
    window = keys.size(window_key)
    return [window if flag else None for flag in flags]


def moe_positions(keys: Keys, layers: int) -> list[bool]:
    """Which layers are mixtures in the Qwen families: every ``decoder_sparse_step``-th but ``mlp_only_layers``."""
    step, dense = keys.size("decoder_sparse_step", 1), keys.integers("mlp_only_layers", ())
    return [layer not in dense and (layer + 1) % step == 0 for layer in range(layers)]
