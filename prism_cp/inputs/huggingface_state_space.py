"""Inputs room: HuggingFace families with Mamba-2 layers, alone or in turn with attention."""

from __future__ import annotations

from prism_cp.inputs.huggingface_keys import Keys
from prism_cp.inputs.huggingface_layers import build_model, layer_kind, self_attention
from prism_cp.inputs.model import DenseFeedForward, LayerKind, Mamba2, MixtureOfExperts, Model, SelfAttention

_PATTERN = {"M": "mamba", "*": "attention", "-": "mlp", "E": "moe"}  # letters of hybrid_override_pattern
# Names that releases of transformers have given the same layers.
_TYPES = {"linear_attention": "mamba", "full_attention": "attention", **{kind: kind for kind in _PATTERN.values()}}


def mamba2(keys: Keys, name: str) -> Model:
    """Mamba-2 layers only, one norm each (state-spaces/mamba)."""
    _refuse_bias(keys, "use_bias")
    _require_convolution_bias(keys, "use_conv_bias")
    mixer = Mamba2(
        num_heads=keys.size("num_heads"),
        head_dim=keys.size("head_dim"),
        num_groups=keys.size("n_groups"),
        state_dim=keys.size("state_size"),
        conv_kernel_dim=keys.size("conv_kernel"),
    )
    kinds = [layer_kind(mixer, None, 1)] * keys.size("num_hidden_layers")
    return build_model(keys, name, kinds, tied=False)


def bamba(keys: Keys, name: str) -> Model:
    """Mamba-2 or attention, and a gated feed-forward in every layer (IBM Bamba)."""
    layers, bias = keys.size("num_hidden_layers"), keys.flag("attention_bias", False)
    _refuse_bias(keys, "mamba_proj_bias")
    _require_convolution_bias(keys, "mamba_conv_bias")
    heads = keys.size("mamba_n_heads")
    inner = keys.size("mamba_expand") * keys.size("hidden_size")
    if inner % heads:
        raise keys.error("mamba_n_heads", f"{heads} does not divide mamba_expand * hidden_size = {inner}", "a divisor")
    mixer = Mamba2(
        num_heads=heads,
        head_dim=inner // heads,
        num_groups=keys.size("mamba_n_groups"),
        state_dim=keys.size("mamba_d_state"),
        conv_kernel_dim=keys.size("mamba_d_conv"),
    )
    attention = self_attention(keys, qkv_bias=bias, output_bias=bias)
    dense = DenseFeedForward(intermediate_size=keys.size("intermediate_size"), bias=keys.flag("mlp_bias", False))
    at = keys.integers("attn_layer_indices", ())
    kinds = [layer_kind(attention if layer in at else mixer, dense) for layer in range(layers)]
    return build_model(keys, name, kinds, tied=False)


def nemotron_h(keys: Keys, name: str) -> Model:
    """Nemotron-H and Nemotron Nano: every layer is a norm and one of four blocks (arXiv 2504.03624)."""
    types = _block_types(keys)
    for key in ("use_bias", "mamba_proj_bias"):
        _refuse_bias(keys, key)
    _require_convolution_bias(keys, "use_conv_bias")
    if keys.has("moe_latent_size"):
        raise keys.error("moe_latent_size", "experts on a projected hidden state are not modelled", "null")
    if keys.size("num_nextn_predict_layers", 0, minimum=0):
        raise keys.error("num_nextn_predict_layers", "prediction depths of several blocks are not modelled", "0")
    builders = {"mamba": _nemotron_mamba, "attention": _nemotron_attention, "mlp": _nemotron_mlp, "moe": _nemotron_moe}
    kinds = {kind: builders[kind](keys) for kind in set(types)}
    return build_model(keys, name, [kinds[kind] for kind in types], tied=False)


def _block_types(keys: Keys) -> list[str]:
    """Block of every layer, from ``hybrid_override_pattern`` or ``layers_block_type``."""
    pattern = keys.text("hybrid_override_pattern")
    if pattern is None:
        types = [_TYPES[kind] for kind in keys.names("layers_block_type", None, tuple(_TYPES))]
        if not types:
            raise keys.error("hybrid_override_pattern", "is missing", "a letter a layer: M, *, - or E")
        return types
    for letter in pattern:
        if letter not in _PATTERN:
            raise keys.error("hybrid_override_pattern", f"letter {letter!r}", "a letter a layer: M, *, - or E")
    layers = keys.size("num_hidden_layers", len(pattern))
    if layers != len(pattern) or not pattern:
        raise keys.error("hybrid_override_pattern", f"{len(pattern)} letters for {layers} layers", f"{layers} letters")
    return [_PATTERN[letter] for letter in pattern]


def _nemotron_mamba(keys: Keys) -> LayerKind:
    mixer = Mamba2(
        num_heads=keys.size("mamba_num_heads"),
        head_dim=keys.size("mamba_head_dim"),
        num_groups=keys.size("n_groups"),
        state_dim=keys.size("ssm_state_size"),
        conv_kernel_dim=keys.size("conv_kernel", 4),
    )
    return layer_kind(mixer, None, 1)


def _nemotron_attention(keys: Keys) -> LayerKind:
    heads, key_heads = keys.size("num_attention_heads"), keys.size("num_key_value_heads")
    if heads % key_heads:
        problem = f"{key_heads} does not divide num_attention_heads = {heads}"
        raise keys.error("num_key_value_heads", problem, f"a divisor of {heads}")
    # It is no quotient of the hidden size; older files say attention_head_dim.
    head_dim = keys.size("attention_head_dim" if keys.has("attention_head_dim") else "head_dim")
    attention = SelfAttention(num_attention_heads=heads, num_key_value_heads=key_heads, head_dim=head_dim)
    return layer_kind(attention, None, 1)


def _nemotron_mlp(keys: Keys) -> LayerKind:
    width, bias = keys.size("intermediate_size"), keys.flag("mlp_bias", False)
    return layer_kind(None, DenseFeedForward(intermediate_size=width, gated=False, bias=bias), 1)


def _nemotron_moe(keys: Keys) -> LayerKind:
    if keys.flag("mlp_bias", False):
        raise keys.error("mlp_bias", "biased shared experts are not modelled", "false")
    experts = MixtureOfExperts(
        num_experts=keys.size("n_routed_experts"),
        top_k=keys.top_k("num_experts_per_tok", "n_routed_experts"),
        intermediate_size=keys.size("moe_intermediate_size"),
        shared_intermediate_size=keys.size("moe_shared_expert_intermediate_size"),
        gated=False,
        num_groups=keys.optional_size("n_group") or 1,
        topk_groups=keys.optional_size("topk_group") or 1,
    )
    return layer_kind(None, experts, 1)


def _refuse_bias(keys: Keys, key: str) -> None:
    if keys.flag(key, False):
        raise keys.error(key, "biased projections of Mamba-2 are not modelled", "false")


def _require_convolution_bias(keys: Keys, key: str) -> None:
    if not keys.flag(key, True):
        raise keys.error(key, "a convolution without bias is not modelled", "true")
