"""HuggingFace configurations: the parameter counts their `Model` implies, the layers it has, and what is refused."""

from __future__ import annotations

import pytest

from prism_cp.errors import InstanceError
from prism_cp.formulas.parameters import model_parameters
from prism_cp.inputs.catalog import catalog_entry
from prism_cp.inputs.huggingface import model_from_huggingface, supported_families
from prism_cp.inputs.model import GatedDeltaNet, LatentAttention, Mamba2, MixtureOfExperts, Model, SelfAttention
from prism_cp.inputs.parts import build_model
from tests.classes.families import FAMILIES


def catalog_model(name: str) -> Model:
    return build_model({"name": name, **catalog_entry("models", name)})


def llama(hidden: int, layers: int, heads: int, kv: int, width: int, vocab: int, **more: object) -> dict[str, object]:
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": width,
        "vocab_size": vocab,
        **more,
    }


QWEN2_7B = {**llama(3584, 28, 28, 4, 18944, 152064), "model_type": "qwen2"}
QWEN15_MOE = {
    "model_type": "qwen2_moe",
    "hidden_size": 2048,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "intermediate_size": 5632,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "vocab_size": 151936,
}


# Counts of the public classes of transformers, instantiated without memory (multi-token prediction left out).
@pytest.mark.parametrize(
    ("model", "count"),
    [
        ("llama-2-7b", 6_738_415_616),
        (llama(4096, 32, 32, 8, 14336, 128256), 8_030_261_248),  # Llama 3 8B
        (llama(2048, 16, 32, 8, 8192, 128256, tie_word_embeddings=True, head_dim=64), 1_235_814_400),  # Llama 3.2 1B
        ("llama-3.1-70b", 70_553_706_496),
        ("llama-3.1-405b", 405_853_388_800),
        (QWEN2_7B, 7_615_616_512),
        ("qwen2.5-7b", 7_615_616_512),
        ("qwen3-8b", 8_190_735_360),
        ("gpt2", 124_439_808),
        ("gpt2-xl", 1_557_611_200),
        ("gpt-neox-20b", 20_554_567_680),
        ("falcon-7b", 6_921_720_704),
        ("mixtral-8x7b", 46_702_792_704),
        ("mixtral-8x22b", 140_630_071_296),
        ("qwen3-30b-a3b", 30_532_122_624),
        ("qwen3-235b-a22b", 235_093_634_560),
        (QWEN15_MOE, 14_315_784_192),
        ("deepseek-v2-lite", 15_706_484_224),
        ("deepseek-v3", 671_026_404_352),
        # Model cards: 176,247,271,424 (BLOOM), 116.83 and 20.91 billion (gpt-oss).
        ("bloom-176b", 176_247_271_424),
        ("gpt-oss-120b", 116_829_156_672),
        ("gpt-oss-20b", 20_914_757_184),
    ],
)
def test_parameter_counts_are_the_public_ones(model: str | dict[str, object], count: int) -> None:
    built = catalog_model(model) if isinstance(model, str) else model_from_huggingface(model, "test")
    assert model_parameters(built) == count


def test_deepseek_v3_depth_of_multi_token_prediction() -> None:
    model = catalog_model("deepseek-v3")
    assert model_parameters(model, include_mtp=True) - model_parameters(model) == 11_610_067_968
    assert model.mtp_kind == "mla+moe"
    assert model.chain == ("mla+dense",) * 3 + ("mla+moe",) * 58 + ("mtp",)
    attention = model.kind("mla+moe").attention
    assert isinstance(attention, LatentAttention)
    assert (attention.q_lora_rank, attention.kv_lora_rank) == (1536, 512)
    assert model.kind("mla+moe").feed_forward == MixtureOfExperts(
        num_experts=256, top_k=8, intermediate_size=2048, shared_intermediate_size=2048, num_groups=8, topk_groups=4
    )


def test_deepseek_v2_lite_has_no_query_compression() -> None:
    attention = catalog_model("deepseek-v2-lite").kinds[0].attention
    assert isinstance(attention, LatentAttention)
    assert attention.q_lora_rank is None


def test_kimi_k2() -> None:
    model = catalog_model("kimi-k2")
    assert [(group.kind, group.count) for group in model.layers] == [("mla+dense", 1), ("mla+moe", 60)]
    assert model.num_mtp_layers == 0
    assert 1.02e12 < model_parameters(model) < 1.03e12


def windows(model: Model) -> list[int | None]:
    found = []
    for name in model.chain:
        attention = model.kind(name).attention
        assert isinstance(attention, SelfAttention)
        found.append(attention.window)
    return found


def test_llama4_maverick_alternates_dense_and_mixture_and_chunks_three_of_four() -> None:
    model = catalog_model("llama-4-maverick")
    assert windows(model) == [8192, 8192, 8192, None] * 12
    assert [model.kind(name).feed_forward.type for name in model.chain] == ["dense", "moe"] * 24  # type: ignore[union-attr]
    experts = model.kind("gqa+moe").feed_forward
    assert isinstance(experts, MixtureOfExperts)
    assert (experts.num_experts, experts.top_k, experts.shared_intermediate_size) == (128, 1, 8192)
    assert 3.9e11 < model_parameters(model) < 4.05e11
    assert all("moe" in name for name in catalog_model("llama-4-scout").chain)


def test_llama4_reads_text_config_rope_list_and_moe_layers() -> None:
    text = {
        **llama(512, 4, 8, 2, 1024, 1000, head_dim=64),
        "intermediate_size_mlp": 2048,
        "num_local_experts": 4,
        "num_experts_per_tok": 1,
        "interleave_moe_layer_step": 1,
        "moe_layers": [2],
        "no_rope_layers": [0, 1, 0, 1],
        "attention_chunk_size": 128,
    }
    model = model_from_huggingface({"model_type": "llama4", "text_config": text, "vision_config": {}}, "test")
    assert windows(model) == [None, 128, None, 128]
    assert [name.endswith("moe") for name in model.chain] == [False, False, True, False]


def test_qwen3_next_is_a_hybrid() -> None:
    model = catalog_model("qwen3-next-80b-a3b")
    assert [isinstance(model.kind(name).attention, GatedDeltaNet) for name in model.chain] == [
        True,
        True,
        True,
        False,
    ] * 12
    full = model.kind("gqa+moe").attention
    assert isinstance(full, SelfAttention)
    assert full.output_gate
    assert full.qk_norm
    experts = model.kind("gated-delta-net+moe").feed_forward
    assert isinstance(experts, MixtureOfExperts)
    assert (experts.num_experts, experts.top_k, experts.shared_gate) == (512, 10, True)
    assert 7.9e10 < model_parameters(model) < 8.1e10


def test_gpt_oss_alternates_windows_and_has_biases_and_sinks() -> None:
    model = catalog_model("gpt-oss-120b")
    assert windows(model) == [128, None] * 18
    attention, experts = model.kinds[0].attention, model.kinds[0].feed_forward
    assert isinstance(attention, SelfAttention)
    assert isinstance(experts, MixtureOfExperts)
    assert attention.sinks
    assert attention.qkv_bias
    assert attention.output_bias
    assert experts.expert_bias
    assert experts.router_bias


def test_gemma3_has_four_norms_and_five_local_to_one_global() -> None:
    model = catalog_model("gemma-3-27b")
    assert windows(model)[:12] == [1024] * 5 + [None] + [1024] * 5 + [None]
    assert windows(model).count(None) == 10
    assert {kind.num_norms for kind in model.kinds} == {4}
    assert model.tied_embeddings
    assert 2.69e10 < model_parameters(model) < 2.71e10


def test_layer_types_override_the_alternation() -> None:
    config = dict(catalog_entry("models", "gpt-oss-20b")["huggingface"])
    config["layer_types"] = ["full_attention"] * 23 + ["sliding_attention"]
    assert windows(model_from_huggingface(config, "test")) == [None] * 23 + [128]


def test_qwen_window_needs_its_switch() -> None:
    config = {**QWEN2_7B, "sliding_window": 4096, "max_window_layers": 20}
    assert set(windows(model_from_huggingface(config, "test"))) == {None}
    switched = model_from_huggingface({**config, "use_sliding_window": True}, "test")
    assert windows(switched) == [None] * 20 + [4096] * 8


def test_qwen_moe_sparse_steps_and_dense_layers() -> None:
    config = {**QWEN15_MOE, "num_hidden_layers": 6, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    model = model_from_huggingface(config, "test")
    assert [name.endswith("moe") for name in model.chain] == [False, True, False, False, False, True]


def test_falcon_new_architecture_has_grouped_heads_and_two_norms() -> None:
    config = {
        "model_type": "falcon",
        "hidden_size": 8192,
        "num_hidden_layers": 2,
        "num_attention_heads": 128,
        "num_kv_heads": 8,
        "new_decoder_architecture": True,
        "vocab_size": 65024,
    }
    kind = model_from_huggingface(config, "test").kinds[0]
    assert kind.num_norms == 2
    assert isinstance(kind.attention, SelfAttention)
    assert kind.attention.num_key_value_heads == 8


@pytest.mark.parametrize("family", supported_families())
def test_every_family_refuses_an_empty_configuration_with_a_key(family: str) -> None:
    with pytest.raises(InstanceError, match="is missing") as caught:
        model_from_huggingface({"model_type": family}, "test", "config.json")
    assert caught.value.key
    assert caught.value.source == "config.json"


@pytest.mark.parametrize(
    ("changes", "key", "accepted"),
    [
        ({"model_type": "lama"}, "model_type", "did you mean llama"),
        ({"model_type": None}, "model_type", "deepseek_v3"),
        ({"hidden_size": None}, "hidden_size", "integer"),
        ({"hidden_size": 0}, "hidden_size", "at least 1"),
        ({"hidden_size": True}, "hidden_size", "at least 1"),
        ({"hidden_size": "4096"}, "hidden_size", "at least 1"),
        ({"num_hidden_layers": -1}, "num_hidden_layers", "at least 1"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers", "at most"),
        ({"num_attention_heads": 24}, "num_attention_heads", "divisor of 4096"),
        ({"num_key_value_heads": 5}, "num_key_value_heads", "divisor"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings", "true or false"),
    ],
)
def test_wrong_values_name_key_and_what_is_accepted(changes: dict[str, object], key: str, accepted: str) -> None:
    with pytest.raises(InstanceError) as caught:
        model_from_huggingface({**llama(4096, 2, 32, 8, 14336, 1000), **changes}, "test")
    assert caught.value.key == key
    assert accepted in caught.value.accepted


@pytest.mark.parametrize(
    ("name", "changes", "key"),
    [
        ("deepseek-v3", {"num_nextn_predict_layers": None}, "num_nextn_predict_layers"),
        ("deepseek-v3", {"attention_bias": True}, "attention_bias"),
        ("deepseek-v3", {"num_experts_per_tok": 300}, "num_experts_per_tok"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "layer_types"),
        ("gpt-oss-20b", {"layer_types": ["round_attention"] * 24}, "layer_types"),
        ("gpt-oss-20b", {"head_dim": None}, "head_dim"),
        ("qwen3-32b", {"head_dim": None}, "head_dim"),
        ("mixtral-8x7b", {"num_key_value_heads": None}, "num_key_value_heads"),
        ("gemma-3-27b", {"num_key_value_heads": None}, "num_key_value_heads"),
        ("llama-4-scout", {"no_rope_layers": [1, 0]}, "no_rope_layers"),
        ("llama-4-scout", {"interleave_moe_layer_step": None}, "interleave_moe_layer_step"),
        ("qwen3-next-80b-a3b", {"full_attention_interval": None}, "full_attention_interval"),
        ("qwen3-30b-a3b", {"mlp_only_layers": "none"}, "mlp_only_layers"),
    ],
)
def test_families_refuse_what_they_cannot_know(name: str, changes: dict[str, object], key: str) -> None:
    config = {**catalog_entry("models", name)["huggingface"], **changes}
    with pytest.raises(InstanceError) as caught:
        model_from_huggingface(config, name)
    assert caught.value.key == key


def test_a_missing_latent_rank_is_refused_but_null_is_a_value() -> None:
    config = dict(catalog_entry("models", "deepseek-v2-lite")["huggingface"])
    assert config["q_lora_rank"] is None
    del config["q_lora_rank"]
    with pytest.raises(InstanceError, match="q_lora_rank"):
        model_from_huggingface(config, "test")


def test_gemma2_alternates_local_and_global_layers_with_four_norms() -> None:
    model = model_from_huggingface(FAMILIES["gemma2"], "test")
    assert windows(model) == [4096, None] * 23
    assert {kind.num_norms for kind in model.kinds} == {4}
    assert model.tied_embeddings
    assert model_parameters(model) == 27_227_128_320


def test_nemotron_h_is_one_block_a_layer() -> None:
    model = model_from_huggingface(FAMILIES["nemotron_h"], "test")
    assert model.chain == ("mamba2", "dense", "mamba2", "dense", "mamba2", "gqa", "dense", "mamba2")
    assert [kind.num_norms for kind in model.kinds] == [1, 1, 1]
    assert isinstance(model.kind("mamba2").attention, Mamba2)
    assert model.kind("dense").attention is None
    routed = model_from_huggingface(FAMILIES["nemotron_h with experts"], "test")
    assert routed.chain == ("mamba2", "moe", "mamba2", "moe", "gqa", "moe", "dense")
    experts = routed.kind("moe").feed_forward
    assert isinstance(experts, MixtureOfExperts)
    assert (experts.gated, experts.shared_intermediate_size) == (False, 3712)


def test_bamba_and_qwen35_are_hybrids() -> None:
    bamba = model_from_huggingface(FAMILIES["bamba"], "test")
    assert [layer for layer, name in enumerate(bamba.chain) if name == "gqa+dense"] == [9, 18, 27]
    assert set(bamba.chain) == {"gqa+dense", "mamba2+dense"}
    for family, part in (("qwen3_5_text", "dense"), ("qwen3_5_moe_text", "moe")):
        model = model_from_huggingface(FAMILIES[family], "test")
        assert model.chain[:4] == (*[f"gated-delta-net+{part}"] * 3, f"gqa+{part}")


@pytest.mark.parametrize(
    ("family", "changes", "key"),
    [
        ("nemotron_h", {"hybrid_override_pattern": "M-X"}, "hybrid_override_pattern"),
        ("nemotron_h", {"hybrid_override_pattern": "M-"}, "hybrid_override_pattern"),
        ("nemotron_h", {"hybrid_override_pattern": None}, "hybrid_override_pattern"),
        ("nemotron_h", {"mamba_proj_bias": True}, "mamba_proj_bias"),
        ("nemotron_h", {"use_conv_bias": False}, "use_conv_bias"),
        ("nemotron_h", {"num_nextn_predict_layers": 1}, "num_nextn_predict_layers"),
        ("nemotron_h", {"num_key_value_heads": 3}, "num_key_value_heads"),
        ("nemotron_h with experts", {"moe_latent_size": 1024}, "moe_latent_size"),
        ("nemotron_h with experts", {"mlp_bias": True}, "mlp_bias"),
        ("nemotron_h with experts", {"layers_block_type": ["mamba1"]}, "layers_block_type"),
        ("bamba", {"mamba_n_heads": 100}, "mamba_n_heads"),
        ("mamba2", {"use_bias": True}, "use_bias"),
        ("gemma2", {"sliding_window": None}, "sliding_window"),
        ("glm4_moe", {"num_nextn_predict_layers": None}, "num_nextn_predict_layers"),
    ],
)
def test_what_a_family_may_hold_but_is_not_modelled_is_named(family: str, changes: dict[str, object], key: str) -> None:
    with pytest.raises(InstanceError) as error:
        model_from_huggingface({**FAMILIES[family], **changes}, "test")
    assert error.value.key == key
    assert error.value.accepted


@pytest.mark.parametrize(
    ("family", "why"),
    [("deepseek_v32", "indexer"), ("falcon_h1", "side by side"), ("jamba", "Mamba-1"), ("zamba2", "share")],
)
def test_families_of_other_layers_are_refused_with_the_reason(family: str, why: str) -> None:
    with pytest.raises(InstanceError, match=why) as error:
        model_from_huggingface({"model_type": family}, "test")
    assert error.value.key == "model_type"
