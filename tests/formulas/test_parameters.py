"""Parameter counts against published models, and sharding against plain arithmetic."""

from __future__ import annotations

import pytest

from prism_cp.formulas.parameters import (
    device_parameters,
    model_parameters,
    padded_vocabulary,
    parameter_expressions,
    part_weights,
)
from prism_cp.formulas.weights import layer_weights
from prism_cp.inputs.model import GatedDeltaNet, Mamba2, Model
from tests.formulas.memory_models import (
    deepseek_v3,
    dense,
    evaluate,
    gqa,
    layout_values,
    make_instance,
    make_model,
    mha,
    mla,
    moe,
)


def llama(hidden: int, layers: int, attention: object, width: int, vocabulary: int, **fields: object) -> Model:
    return make_model(hidden, vocabulary, [(layers, attention, dense(width))], **fields)  # type: ignore[arg-type, list-item]


def gpt2(hidden: int, layers: int, heads: int) -> Model:
    attention = mha(heads, 64, qkv_bias=True, output_bias=True)
    return make_model(
        hidden,
        50257,
        [(layers, attention, dense(4 * hidden, gated=False, bias=True))],
        norm="layernorm",
        tied_embeddings=True,
        num_learned_positions=1024,
    )


# Element counts of the Hugging Face implementations' parameters (multi-token prediction not included).
PUBLISHED = {
    "Llama-2-7B": (llama(4096, 32, mha(32, 128), 11008, 32000), 6_738_415_616),
    "Llama-3-8B": (llama(4096, 32, gqa(32, 8, 128), 14336, 128256), 8_030_261_248),
    "Llama-3.2-1B": (llama(2048, 16, gqa(32, 8, 64), 8192, 128256, tied_embeddings=True), 1_235_814_400),
    "Llama-3-70B": (llama(8192, 80, gqa(64, 8, 128), 28672, 128256), 70_553_706_496),
    "Llama-3.1-405B": (llama(16384, 126, gqa(128, 8, 128), 53248, 128256), 405_853_388_800),
    "Qwen2-7B": (llama(3584, 28, gqa(28, 4, 128, qkv_bias=True), 18944, 152064), 7_615_616_512),
    "Qwen3-8B": (llama(4096, 36, gqa(32, 8, 128, qk_norm=True), 12288, 151936), 8_190_735_360),
    "GPT-2": (gpt2(768, 12, 12), 124_439_808),
    "GPT-2 XL": (gpt2(1600, 48, 25), 1_557_611_200),
    "GPT-NeoX-20B": (
        make_model(
            6144,
            50432,
            [(44, mha(64, 96, qkv_bias=True, output_bias=True), dense(24576, gated=False, bias=True))],
            norm="layernorm",
        ),
        20_554_567_680,
    ),
    "Falcon-7B": (
        make_model(
            4544,
            65024,
            [(32, gqa(71, 1, 64), dense(18176, gated=False))],
            num_norms=1,
            norm="layernorm",
            tied_embeddings=True,
        ),
        6_921_720_704,
    ),
    "Mixtral-8x7B": (make_model(4096, 32000, [(32, gqa(32, 8, 128), moe(8, 2, 14336))]), 46_702_792_704),
    "Mixtral-8x22B": (make_model(6144, 32768, [(56, gqa(48, 8, 128), moe(8, 2, 16384))]), 140_630_071_296),
    "Qwen3-30B-A3B": (
        make_model(2048, 151936, [(48, gqa(32, 4, 128, qk_norm=True), moe(128, 8, 768))]),
        30_532_122_624,
    ),
    "Qwen3-235B-A22B": (
        make_model(4096, 151936, [(94, gqa(64, 4, 128, qk_norm=True), moe(128, 8, 1536))]),
        235_093_634_560,
    ),
    "Qwen1.5-MoE-A2.7B": (
        make_model(
            2048,
            151936,
            [(24, mha(16, 128, qkv_bias=True), moe(60, 4, 1408, shared_intermediate_size=5632, shared_gate=True))],
        ),
        14_315_784_192,
    ),
    "DeepSeek-V2-Lite": (
        make_model(
            2048,
            102400,
            [(1, mla(16, None), dense(10944)), (26, mla(16, None), moe(64, 6, 1408, shared_intermediate_size=2816))],
        ),
        15_706_484_224,
    ),
    "DeepSeek-V3": (deepseek_v3(), 671_026_404_352),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_model_parameters_equal_the_published_count(name: str) -> None:
    model, count = PUBLISHED[name]
    assert model_parameters(model) == count


def test_one_prediction_depth_of_deepseek_v3() -> None:
    model = deepseek_v3()
    assert model_parameters(model, include_mtp=True) - model_parameters(model) == 11_610_067_968


def test_gated_delta_net_equals_qwen3_next() -> None:
    """in_proj_qkvz, in_proj_ba, conv1d, dt_bias and A_log, norm, out_proj of Qwen/Qwen3-Next-80B-A3B."""
    mixer = GatedDeltaNet(num_key_heads=16, num_value_heads=32, key_head_dim=128, value_head_dim=128, conv_kernel_dim=4)
    model = make_model(2048, 1, [(1, mixer, None)], num_norms=1)
    expected = 2048 * 12288 + 2048 * 64 + 8192 * 4 + 64 + 128 + 4096 * 2048
    assert sum(weight.count for weight in layer_weights(model.kinds[0], model)) == expected + 2048


def test_mamba2_equals_the_public_2_7b_model() -> None:
    """state-spaces/mamba2-2.7b: 64 layers, width 2560, 80 heads of 64, state 128, vocabulary padded to 50288, tied."""
    mixer = Mamba2(num_heads=80, head_dim=64, num_groups=1, state_dim=128, conv_kernel_dim=4)
    model = make_model(2560, 50288, [(64, mixer, None)], num_norms=1, tied_embeddings=True)
    assert model_parameters(model) == 2_702_599_680


def test_gpt_oss_experts_and_sinks_carry_biases() -> None:
    attention = gqa(64, 8, 64, qkv_bias=True, output_bias=True, sinks=True)
    model = make_model(2880, 201088, [(36, attention, moe(128, 4, 2880, expert_bias=True, router_bias=True))])
    assert model_parameters(model) == 116_829_156_672


def test_device_parameters_on_one_device_add_up_to_the_model() -> None:
    instance = make_instance(deepseek_v3())
    values = layout_values()
    parts = {"k0": 3, "k1": 58, "mtp": 1, "embedding": 1, "head": 1}
    expressions = parameter_expressions(instance)
    assert set(expressions) == set(parts)
    total = sum(n * evaluate(sum(expressions[part]), values) for part, n in parts.items())
    assert total == model_parameters(instance.model, include_mtp=True)


def test_every_weight_is_divided_by_its_own_group() -> None:
    instance = make_instance(deepseek_v3())
    values = layout_values(tp=4, ep=8, etp=2, dp=4)
    divisor = {"tp": 4, "replicated": 1, "expert": 16}
    for weight in part_weights("k1", instance):
        assert evaluate(weight.local_count, values) * divisor[weight.sharding] == weight.count
    dense_count, expert_count = (evaluate(e, values) for e in device_parameters("k1", instance))
    assert expert_count == 256 * 3 * 7168 * 2048 // 16
    down_and_router = 7168 * (1536 + 512 + 64) + 1536 + 512 + 256 * 7168 + 2 * 7168
    split = 1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168 + 3 * 7168 * 2048
    assert dense_count == down_and_router + split // 4


def test_pipelining_copies_tied_and_prediction_embeddings() -> None:
    tied = make_instance(PUBLISHED["GPT-2"][0])
    alone, split = (evaluate(device_parameters("head", tied)[0], layout_values(pp=pp)) for pp in (1, 4))
    assert (alone, split) == (2 * 768, 2 * 768 + 50304 * 768)  # 50257 padded to a multiple of 128
    mtp = make_instance(deepseek_v3())
    alone, split = (evaluate(device_parameters("mtp", mtp)[0], layout_values(pp=pp, tp=2)) for pp in (1, 4))
    assert split - alone == 129280 // 2 * 7168


@pytest.mark.parametrize(("tp", "padded"), [(1, 50304), (2, 50432), (8, 51200)])
def test_vocabulary_padding(tp: int, padded: int) -> None:
    instance = make_instance(PUBLISHED["GPT-2"][0])
    assert evaluate(padded_vocabulary(instance), layout_values(tp=tp)) == padded


def test_formulas_in_letters_give_the_same_numbers() -> None:
    model = deepseek_v3()
    kind = model.kinds[1]
    in_numbers = layer_weights(kind, model)
    in_letters = layer_weights(kind, model, symbolic=True)
    sizes = kind.attention.model_dump() | kind.feed_forward.model_dump() | {"hidden_size": 7168}  # type: ignore[union-attr]
    for number, letter in zip(in_numbers, in_letters, strict=True):
        assert letter.count.subs({s: sizes[s.name] for s in letter.count.free_symbols}) == number.count
