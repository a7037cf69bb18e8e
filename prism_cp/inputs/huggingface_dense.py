"""Inputs room: HuggingFace families without experts."""

from __future__ import annotations

from prism_cp.inputs.huggingface_keys import Keys
from prism_cp.inputs.huggingface_layers import build_model, layer_kind, layer_windows, self_attention
from prism_cp.inputs.model import DenseFeedForward, Model, SelfAttention


def llama(keys: Keys, name: str) -> Model:
    bias = keys.flag("attention_bias", False)
    # LlamaConfig documents plain multi-head attention for a missing num_key_value_heads.
    attention = self_attention(keys, kv_heads=keys.size("num_attention_heads"), qkv_bias=bias, output_bias=bias)
    dense = DenseFeedForward(intermediate_size=keys.size("intermediate_size"), bias=keys.flag("mlp_bias", False))
    return build_model(keys, name, [layer_kind(attention, dense)] * keys.size("num_hidden_layers"), tied=False)


def mistral(keys: Keys, name: str) -> Model:
    window = keys.optional_size("sliding_window")
    attention = self_attention(keys, window=window)
    dense = DenseFeedForward(intermediate_size=keys.size("intermediate_size"))
    return build_model(keys, name, [layer_kind(attention, dense)] * keys.size("num_hidden_layers"), tied=False)


def gemma(keys: Keys, name: str) -> Model:
    bias = keys.flag("attention_bias", False)
    attention = self_attention(keys, own_head_dim=True, qkv_bias=bias, output_bias=bias)
    dense = DenseFeedForward(intermediate_size=keys.size("intermediate_size"))
    return build_model(keys, name, [layer_kind(attention, dense)] * keys.size("num_hidden_layers"), tied=True)


def gemma2(keys: Keys, name: str) -> Model:
    """Local and global layers in turn, norms around both parts (arXiv 2408.00118)."""
    layers = keys.size("num_hidden_layers")
    bias = keys.flag("attention_bias", False)
    windows = layer_windows(keys, layers, "sliding_window", "sliding_attention", lambda layer: layer % 2 == 0)
    dense = DenseFeedForward(intermediate_size=keys.size("intermediate_size"))
    kinds = [
        layer_kind(
            self_attention(keys, own_head_dim=True, window=window, qkv_bias=bias, output_bias=bias), dense, num_norms=4
        )
        for window in windows
    ]
    return build_model(keys, name, kinds, tied=True)


def gemma3(keys: Keys, name: str) -> Model:
    layers = keys.size("num_hidden_layers")
    bias = keys.flag("attention_bias", False)
    pattern = keys.size("sliding_window_pattern", 6)  # five local layers, then a global one (arXiv 2503.19786)
    windows = layer_windows(
        keys, layers, "sliding_window", "sliding_attention", lambda layer: (layer + 1) % pattern != 0
    )
    dense = DenseFeedForward(intermediate_size=keys.size("intermediate_size"))
    kinds = [
        layer_kind(
            self_attention(keys, own_head_dim=True, window=window, qkv_bias=bias, output_bias=bias, qk_norm=True),
            dense,
            num_norms=4,
        )
        for window in windows
    ]
    # All published sizes rely on the class default vocabulary.
    return build_model(keys, name, kinds, tied=True, vocab_size=keys.size("vocab_size", 262_208))


def nemotron(keys: Keys, name: str) -> Model:
    """Nemotron-4 and Minitron: squared ReLU, layer norms."""
    bias = keys.flag("attention_bias", False)
    attention = self_attention(keys, qkv_bias=bias, output_bias=bias)
    width, mlp_bias = keys.size("intermediate_size"), keys.flag("mlp_bias", False)
    dense = DenseFeedForward(intermediate_size=width, gated=False, bias=mlp_bias)
    kinds = [layer_kind(attention, dense)] * keys.size("num_hidden_layers")
    return build_model(keys, name, kinds, tied=False, norm="layernorm")


def gpt2(keys: Keys, name: str) -> Model:
    hidden, heads = keys.size("n_embd"), keys.size("n_head")
    attention = SelfAttention(
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=keys.divided("n_embd", "n_head"),
        qkv_bias=True,
        output_bias=True,
    )
    dense = DenseFeedForward(intermediate_size=keys.optional_size("n_inner") or 4 * hidden, gated=False, bias=True)
    kinds = [layer_kind(attention, dense)] * keys.size("n_layer")
    positions = keys.size("n_positions")
    return build_model(
        keys, name, kinds, tied=True, norm="layernorm", hidden_size=hidden, num_learned_positions=positions
    )


def gpt_neox(keys: Keys, name: str) -> Model:
    bias = keys.flag("attention_bias", True)
    attention = self_attention(keys, kv_heads=keys.size("num_attention_heads"), qkv_bias=bias, output_bias=bias)
    dense = DenseFeedForward(intermediate_size=keys.size("intermediate_size"), gated=False, bias=True)
    kinds = [layer_kind(attention, dense)] * keys.size("num_hidden_layers")
    return build_model(keys, name, kinds, tied=False, norm="layernorm")


def falcon(keys: Keys, name: str) -> Model:
    heads = keys.size("num_attention_heads")
    new, bias = keys.flag("new_decoder_architecture", False), keys.flag("bias", False)
    old_kv = 1 if keys.flag("multi_query", True) else heads
    kv = (keys.optional_size("num_kv_heads") or heads) if new else old_kv
    if keys.flag("parallel_attn", True):
        num_norms = (keys.optional_size("num_ln_in_parallel_attn") or 2) if new else 1
    else:
        num_norms = 2
    attention = SelfAttention(
        num_attention_heads=heads,
        num_key_value_heads=kv,
        head_dim=keys.divided("hidden_size", "num_attention_heads"),
        qkv_bias=bias,
        output_bias=bias,
    )
    width = keys.optional_size("ffn_hidden_size") or 4 * keys.size("hidden_size")
    dense = DenseFeedForward(intermediate_size=width, gated=False, bias=bias)
    kinds = [layer_kind(attention, dense, num_norms)] * keys.size("num_hidden_layers")
    return build_model(keys, name, kinds, tied=True, norm="layernorm")


def bloom(keys: Keys, name: str) -> Model:
    hidden, heads = ("hidden_size" if keys.has("hidden_size") else "n_embed"), "n_head"
    if not keys.has(heads):
        heads = "num_attention_heads"
    attention = SelfAttention(
        num_attention_heads=keys.size(heads),
        num_key_value_heads=keys.size(heads),
        head_dim=keys.divided(hidden, heads),
        qkv_bias=True,
        output_bias=True,
    )
    dense = DenseFeedForward(intermediate_size=4 * keys.size(hidden), gated=False, bias=True)
    kinds = [layer_kind(attention, dense)] * keys.size("n_layer" if keys.has("n_layer") else "num_hidden_layers")
    return build_model(
        keys, name, kinds, tied=True, norm="layernorm", hidden_size=keys.size(hidden), embedding_norm=True
    )
