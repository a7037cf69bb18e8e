"""Inputs room: HuggingFace families that have experts; Qwen's dense models are here too, they share every rule."""

from __future__ import annotations

from prism_cp.inputs.huggingface_keys import Keys
from prism_cp.inputs.huggingface_layers import build_model, layer_kind, layer_windows, moe_positions, self_attention
from prism_cp.inputs.model import DenseFeedForward, GatedDeltaNet, LatentAttention, MixtureOfExperts, Model


def _qwen_windows(keys: Keys, layers: int) -> list[int | None]:
    """Qwen uses the window only when ``use_sliding_window`` is set, and not in the first ``max_window_layers``."""
    if not keys.flag("use_sliding_window", False):
        return [None] * layers
    full = 0 if keys.has("layer_types") else keys.size("max_window_layers", minimum=0)
    return layer_windows(keys, layers, "sliding_window", "sliding_attention", lambda layer: layer >= full)


def qwen(keys: Keys, name: str, *, mixture: bool, third: bool) -> Model:
    """Qwen2 (biased q, k, v) and Qwen3 (normed q, k), dense or mixture."""
    layers = keys.size("num_hidden_layers")
    bias = keys.flag("attention_bias", False) if third else keys.flag("qkv_bias", keys.flag("attention_bias", True))
    facts = {"own_head_dim": third, "qkv_bias": bias, "output_bias": bias and third, "qk_norm": third}
    moe = moe_positions(keys, layers) if mixture else [False] * layers
    experts = _qwen_experts(keys, shared=not third) if any(moe) else None
    dense = None if all(moe) else DenseFeedForward(intermediate_size=keys.size("intermediate_size"))
    kinds = []
    for window, sparse in zip(_qwen_windows(keys, layers), moe, strict=True):
        feed_forward = experts if sparse else dense
        assert feed_forward is not None
        kinds.append(layer_kind(self_attention(keys, window=window, **facts), feed_forward))
    return build_model(keys, name, kinds, tied=False)


def _qwen_experts(keys: Keys, *, shared: bool) -> MixtureOfExperts:
    width = keys.size("shared_expert_intermediate_size", minimum=0) if shared else 0
    return MixtureOfExperts(
        num_experts=keys.size("num_experts"),
        top_k=keys.top_k("num_experts_per_tok", "num_experts"),
        intermediate_size=keys.size("moe_intermediate_size"),
        shared_intermediate_size=width,
        shared_gate=width > 0,
    )


def qwen3_next(keys: Keys, name: str, mixture: bool | None = None) -> Model:
    """Qwen3-Next and Qwen3.5: gated delta nets, every fourth layer attention; `mixture` None: as ``moe_positions``."""
    layers = keys.size("num_hidden_layers")
    bias = keys.flag("attention_bias", False)
    full = self_attention(keys, own_head_dim=True, qkv_bias=bias, output_bias=bias, qk_norm=True, output_gate=True)
    linear = GatedDeltaNet(
        num_key_heads=keys.size("linear_num_key_heads"),
        num_value_heads=keys.size("linear_num_value_heads"),
        key_head_dim=keys.size("linear_key_head_dim"),
        value_head_dim=keys.size("linear_value_head_dim"),
        conv_kernel_dim=keys.size("linear_conv_kernel_dim"),
    )
    types = keys.names("layer_types", layers, ("linear_attention", "full_attention"))
    if not types:
        # Qwen3.5 documents 4; Qwen3-Next's files say it.
        interval = keys.size("full_attention_interval", None if mixture is None else 4)
        types = ["linear_attention" if (layer + 1) % interval else "full_attention" for layer in range(layers)]
    moe = moe_positions(keys, layers) if mixture is None else [mixture] * layers
    experts = _qwen_experts(keys, shared=True) if any(moe) else None
    dense = None if all(moe) else DenseFeedForward(intermediate_size=keys.size("intermediate_size"))
    kinds = []
    for kind, sparse in zip(types, moe, strict=True):
        feed_forward = experts if sparse else dense
        assert feed_forward is not None
        kinds.append(layer_kind(full if kind == "full_attention" else linear, feed_forward))
    return build_model(keys, name, kinds, tied=False)


def glm4_moe(keys: Keys, name: str) -> Model:
    """GLM-4.5, 4.6 and 4.7: grouped-query attention, DeepSeek's experts and prediction depths."""
    layers, bias = keys.size("num_hidden_layers"), keys.flag("attention_bias", False)
    attention = self_attention(keys, qkv_bias=bias, qk_norm=keys.flag("use_qk_norm", False))
    width = keys.size("moe_intermediate_size")
    experts = MixtureOfExperts(
        num_experts=keys.size("n_routed_experts"),
        top_k=keys.top_k("num_experts_per_tok", "n_routed_experts"),
        intermediate_size=width,
        shared_intermediate_size=width * keys.size("n_shared_experts", minimum=0),
        num_groups=keys.optional_size("n_group") or 1,
        topk_groups=keys.optional_size("topk_group") or 1,
    )
    first = keys.size("first_k_dense_replace", minimum=0)
    dense = DenseFeedForward(intermediate_size=keys.size("intermediate_size")) if first else None
    kinds = [layer_kind(attention, experts if layer >= first else dense) for layer in range(layers)]
    depths = keys.size("num_nextn_predict_layers", minimum=0)
    facts = {"num_mtp_layers": depths, "mtp_kind": kinds[-1].name} if depths else {}
    return build_model(keys, name, kinds, tied=False, **facts)


def mixtral(keys: Keys, name: str) -> Model:
    attention = self_attention(keys, window=keys.optional_size("sliding_window"))
    experts = MixtureOfExperts(
        num_experts=keys.size("num_local_experts"),
        top_k=keys.top_k("num_experts_per_tok", "num_local_experts"),
        intermediate_size=keys.size("intermediate_size"),
    )
    return build_model(keys, name, [layer_kind(attention, experts)] * keys.size("num_hidden_layers"), tied=False)


def gpt_oss(keys: Keys, name: str) -> Model:
    layers = keys.size("num_hidden_layers")
    bias = keys.flag("attention_bias", True)
    windows = layer_windows(keys, layers, "sliding_window", "sliding_attention", lambda layer: layer % 2 == 0)
    experts = MixtureOfExperts(
        num_experts=keys.size("num_local_experts"),
        top_k=keys.top_k("num_experts_per_tok", "num_local_experts"),
        intermediate_size=keys.size("intermediate_size"),
        expert_bias=True,
        router_bias=True,
    )
    kinds = [
        layer_kind(
            self_attention(keys, own_head_dim=True, window=window, qkv_bias=bias, output_bias=bias, sinks=True), experts
        )
        for window in windows
    ]
    return build_model(keys, name, kinds, tied=False)


def llama4(keys: Keys, name: str) -> Model:
    layers = keys.size("num_hidden_layers")
    bias = keys.flag("attention_bias", False)
    rope = keys.integers("no_rope_layers", ())  # 1: rotary and chunked, 0: global without positions
    if rope and len(rope) != layers:
        raise keys.error("no_rope_layers", f"{len(rope)} entries for {layers} layers", f"{layers} entries")
    interval = keys.size("no_rope_layer_interval", 4)
    local = [bool(flag) for flag in rope] or [(layer + 1) % interval != 0 for layer in range(layers)]
    chunk = keys.optional_size("attention_chunk_size", required=True)
    step = keys.size("interleave_moe_layer_step")
    sparse = keys.integers("moe_layers", None)
    positions = set(range(step - 1, layers, step) if sparse is None else sparse)
    experts = MixtureOfExperts(
        num_experts=keys.size("num_local_experts"),
        top_k=keys.top_k("num_experts_per_tok", "num_local_experts"),
        intermediate_size=keys.size("intermediate_size"),
        shared_intermediate_size=keys.size("intermediate_size"),
    )
    dense = None
    if len(positions) < layers:
        dense = DenseFeedForward(intermediate_size=keys.size("intermediate_size_mlp"))
    kinds = []
    for layer in range(layers):
        window = chunk if local[layer] else None
        attention = self_attention(keys, own_head_dim=True, window=window, qkv_bias=bias, output_bias=bias)
        feed_forward = experts if layer in positions else dense
        assert feed_forward is not None
        kinds.append(layer_kind(attention, feed_forward))
    return build_model(keys, name, kinds, tied=False)


def deepseek(keys: Keys, name: str, *, mtp: bool) -> Model:
    """DeepSeek V2 and V3, Kimi K2: latent attention, leading dense layers, shared experts."""
    layers = keys.size("num_hidden_layers")
    if keys.flag("attention_bias", False):
        raise keys.error("attention_bias", "biased latent attention is not modelled", "false")
    attention = LatentAttention(
        num_attention_heads=keys.size("num_attention_heads"),
        q_lora_rank=keys.optional_size("q_lora_rank", required=True),
        kv_lora_rank=keys.size("kv_lora_rank"),
        qk_nope_head_dim=keys.size("qk_nope_head_dim"),
        qk_rope_head_dim=keys.size("qk_rope_head_dim"),
        v_head_dim=keys.size("v_head_dim"),
    )
    first = keys.size("first_k_dense_replace", minimum=0)
    frequency = keys.size("moe_layer_freq", 1)
    width = keys.size("moe_intermediate_size")
    experts = MixtureOfExperts(
        num_experts=keys.size("n_routed_experts"),
        top_k=keys.top_k("num_experts_per_tok", "n_routed_experts"),
        intermediate_size=width,
        shared_intermediate_size=width * (keys.optional_size("n_shared_experts", required=True) or 0),
        num_groups=keys.optional_size("n_group") or 1,
        topk_groups=keys.optional_size("topk_group") or 1,
    )
    moe = [layer >= first and layer % frequency == 0 for layer in range(layers)]
    dense = None if all(moe) else DenseFeedForward(intermediate_size=keys.size("intermediate_size"))
    kinds = []
    for sparse in moe:
        feed_forward = experts if sparse else dense
        assert feed_forward is not None
        kinds.append(layer_kind(attention, feed_forward))
    depths = keys.size("num_nextn_predict_layers", minimum=0) if mtp else 0
    # The extra depths repeat the last decoder layer (arXiv 2412.19437, section 2.2).
    facts = {"num_mtp_layers": depths, "mtp_kind": kinds[-1].name} if depths else {}
    return build_model(keys, name, kinds, tied=False, **facts)
