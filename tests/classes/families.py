"""One configuration of every HuggingFace family that is understood but not in the catalogue, as its files say it."""

from __future__ import annotations

from typing import Any


def _llama(family: str, hidden: int, layers: int, heads: int, kv: int, width: int, vocabulary: int) -> dict[str, Any]:
    return {
        "model_type": family,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": width,
        "vocab_size": vocabulary,
    }


_QWEN3_5 = {
    **_llama("qwen3_5_text", 4096, 8, 16, 4, 12288, 248320),
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
}
_NEMOTRON_H = {
    "model_type": "nemotron_h",
    "num_key_value_heads": 8,
    "mamba_num_heads": 128,
    "n_groups": 8,
    "ssm_state_size": 128,
    "conv_kernel": 4,
    "use_conv_bias": True,
    "use_bias": False,
    "mamba_proj_bias": False,
    "mlp_bias": False,
    "vocab_size": 131072,
}

FAMILIES: dict[str, dict[str, Any]] = {
    "mistral": {**_llama("mistral", 4096, 32, 32, 8, 14336, 32000), "sliding_window": 4096},
    "qwen2_moe": {
        **_llama("qwen2_moe", 2048, 24, 16, 16, 5632, 151936),
        "moe_intermediate_size": 1408,
        "shared_expert_intermediate_size": 5632,
        "num_experts": 60,
        "num_experts_per_tok": 4,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    },
    "gemma": {**_llama("gemma", 3072, 28, 16, 16, 24576, 256000), "head_dim": 256},
    "gemma2": {**_llama("gemma2", 4608, 46, 32, 16, 36864, 256000), "head_dim": 128, "sliding_window": 4096},
    "nemotron": {**_llama("nemotron", 3072, 32, 24, 8, 9216, 256000), "head_dim": 128},
    "mamba2": {
        "model_type": "mamba2",
        "hidden_size": 2560,
        "num_hidden_layers": 64,
        "num_heads": 80,
        "head_dim": 64,
        "n_groups": 1,
        "state_size": 128,
        "conv_kernel": 4,
        "expand": 2,
        "vocab_size": 50288,
        "tie_word_embeddings": True,
    },
    "bamba": {
        **_llama("bamba", 4096, 32, 32, 8, 14336, 128256),
        "attn_layer_indices": [9, 18, 27],
        "mamba_n_heads": 128,
        "mamba_n_groups": 1,
        "mamba_d_state": 128,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
    },
    "nemotron_h": {
        **_NEMOTRON_H,
        "hidden_size": 4480,
        "num_attention_heads": 40,
        "head_dim": 128,
        "mamba_head_dim": 80,
        "intermediate_size": 15680,
        "num_hidden_layers": 8,
        "hybrid_override_pattern": "M-M-M*-M",
    },
    "nemotron_h with experts": {
        **_NEMOTRON_H,
        "hidden_size": 2688,
        "num_attention_heads": 32,
        "num_key_value_heads": 2,
        "head_dim": 128,
        "mamba_num_heads": 64,
        "mamba_head_dim": 64,
        "layers_block_type": ["linear_attention", "moe", "linear_attention", "moe", "full_attention", "moe", "mlp"],
        "intermediate_size": 1856,
        "n_routed_experts": 128,
        "num_experts_per_tok": 6,
        "moe_intermediate_size": 1856,
        "moe_shared_expert_intermediate_size": 3712,
        "n_shared_experts": 1,
    },
    "qwen3_5_text": _QWEN3_5,
    "qwen3_5_moe_text": {
        **{key: value for key, value in _QWEN3_5.items() if key != "intermediate_size"},
        "model_type": "qwen3_5_moe_text",
        "hidden_size": 2048,
        "num_key_value_heads": 2,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    "glm4_moe": {
        **_llama("glm4_moe", 5120, 12, 96, 8, 12288, 151552),
        "head_dim": 128,
        "attention_bias": True,
        "use_qk_norm": True,
        "moe_intermediate_size": 1536,
        "n_routed_experts": 160,
        "n_shared_experts": 1,
        "num_experts_per_tok": 8,
        "first_k_dense_replace": 3,
        "num_nextn_predict_layers": 1,
    },
}
