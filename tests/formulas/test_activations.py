"""Saved bytes of layers against published closed forms, and what every recomputation module saves."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_cp.errors import InstanceError
from prism_cp.formulas.activations import kept_bytes, layer_tensors
from prism_cp.formulas.saved import context
from prism_cp.formulas.strategies import FULL, Strategy, strategies_for
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.model import GatedDeltaNet, Mamba2
from tests.formulas.memory_models import (
    dense,
    evaluate,
    evaluate_all,
    gqa,
    layout_values,
    make_instance,
    make_model,
    mha,
    mla,
    moe,
)

NONE = Strategy("none")
HIDDEN, HEADS, SEQ = 4096, 32, 2048


def layer_bytes(instance: Instance, strategy: Strategy = NONE, kind: int = 0, **layout: Any) -> Any:
    """Activation bytes of one layer."""
    tensors = layer_tensors(instance.model.kinds[kind], context(instance))
    return evaluate(kept_bytes(tensors, [strategy])[0], layout_values(**layout))


def modules(*names: str) -> Strategy:
    return Strategy("+".join(names), frozenset(names))


def gelu_instance(**changes: Any) -> Instance:
    """Multi-head attention, GELU of width 4h, dropout, LayerNorm: the layer of Korthikanti et al."""
    model = make_model(HIDDEN, 1024, [(1, mha(HEADS, 128), dense(4 * HIDDEN, gated=False))], norm="layernorm")
    return make_instance(model, SEQ, dropout=True, **changes)


@pytest.mark.parametrize("tp", [1, 2, 8])
@pytest.mark.parametrize("mbs", [1, 3])
def test_korthikanti_with_sequence_parallelism(tp: int, mbs: int) -> None:
    """34 sbh / t (arXiv 2205.05198, table 2), plus fp32 statistics that the paper leaves out."""
    sbh = SEQ * mbs * HIDDEN
    statistics = Fraction(2 * 8 * SEQ * mbs, tp) + Fraction(4 * SEQ * mbs * HEADS, tp)
    assert layer_bytes(gelu_instance(), tp=tp, sp=1, mbs=mbs) == Fraction(34 * sbh, tp) + statistics


@pytest.mark.parametrize("tp", [2, 8])
def test_korthikanti_without_sequence_parallelism(tp: int) -> None:
    """sbh (10 + 24/t)."""
    sbh = SEQ * HIDDEN
    statistics = 2 * 8 * SEQ + Fraction(4 * SEQ * HEADS, tp)
    assert layer_bytes(gelu_instance(), tp=tp) == 10 * sbh + Fraction(24 * sbh, tp) + statistics


@pytest.mark.parametrize("tp", [1, 8])
def test_korthikanti_scores_and_what_core_attention_saves(tp: int) -> None:
    """5 as²b / t when attention is not fused, all of it freed by selective recomputation."""
    instance = gelu_instance(profile={"flash_attention": False})
    scores = Fraction(5 * HEADS * SEQ * SEQ, tp)
    everything = layer_bytes(instance, tp=tp, sp=1)
    assert everything == Fraction(34 * SEQ * HIDDEN + 16 * SEQ, tp) + scores
    assert everything - layer_bytes(instance, modules("core_attn"), tp=tp, sp=1) == scores


@pytest.mark.parametrize("tp", [1, 4])
def test_full_recomputation_keeps_the_input(tp: int) -> None:
    """2 sbh, sharded with sequence parallelism."""
    assert layer_bytes(gelu_instance(), FULL, tp=tp, sp=1) == Fraction(2 * SEQ * HIDDEN, tp)
    assert layer_bytes(gelu_instance(), FULL, tp=tp) == 2 * SEQ * HIDDEN


def test_measured_saved_bytes_of_fused_layers() -> None:
    """Bytes that autograd saves in fused reference layers of these sizes, 256 tokens."""
    llama = make_model(1024, 1024, [(1, gqa(16, 4, 64), dense(2816))])
    assert layer_bytes(make_instance(llama, 256)) == 7_751_680
    gpt2 = make_model(768, 1024, [(1, mha(12, 64), dense(3072, gated=False))], norm="layernorm")
    assert layer_bytes(make_instance(gpt2, 256, dropout=True)) == 6_701_056


def test_one_key_head_stays_whole_beyond_its_count() -> None:
    model = make_model(1024, 1024, [(1, gqa(16, 2, 64), dense(2816))])
    two, eight = (layer_bytes(make_instance(model, 256), tp=tp, sp=1) * tp for tp in (2, 8))
    assert eight - two == 2 * 256 * 2 * 64 * (8 - 2)  # keys and values of one head on each of eight ranks, not of two


def moe_instance(**changes: Any) -> Instance:
    experts = moe(64, 6, 1408, shared_intermediate_size=2816)
    groups = [(1, mla(32), dense(8192)), (1, mla(32), experts)]
    return make_instance(make_model(HIDDEN, 1024, groups), SEQ, **changes)


# bytes per token that a module frees (tp 2 with sequence parallelism, so /2)
FREED = [
    (0, ("layernorm",), 2 * (2 * HIDDEN + 4)),
    (0, ("mlp",), (4 + 2) * 8192),
    (0, ("mla_up_proj",), 2 * 32 * (2 * 192 + 128)),
    (0, ("core_attn",), 4 * 32),
    (0, ("layernorm", "mlp"), 2 * (2 * HIDDEN + 4) + (4 + 2) * 8192),
    (1, ("moe_act",), 6 * 2 * 1408),
    (1, ("shared_experts",), (4 + 2) * 2816),
    (1, ("moe",), 9 * 64 + 12 * 6 + 4 + 6 * (2 * HIDDEN + 6 * 1408 + 12) + 6 * 2816),
    (1, ("moe", "moe_act", "shared_experts"), 9 * 64 + 12 * 6 + 4 + 6 * (2 * HIDDEN + 6 * 1408 + 12) + 6 * 2816),
]


@pytest.mark.parametrize(("kind", "names", "per_token"), FREED)
def test_what_recomputation_frees(kind: int, names: tuple[str, ...], per_token: int) -> None:
    instance = moe_instance()
    saved = [layer_bytes(instance, strategy, kind, tp=2, sp=1) for strategy in (NONE, modules(*names))]
    assert saved[0] - saved[1] == Fraction(per_token * SEQ, 2)


def test_expert_load_counts_copies_and_stops_at_ep() -> None:
    """Load 2.5 on ep 2 is at most 2; without expert parallelism a device has every copy once."""
    per_copy = 2 * HIDDEN + 6 * 1408 + 12
    balanced, loaded = moe_instance(), moe_instance(expert_load=2.5)
    for ep, load in ((1, 1), (2, 2), (8, Fraction(5, 2))):
        extra = layer_bytes(loaded, kind=1, ep=ep) - layer_bytes(balanced, kind=1, ep=ep)
        assert extra == (load - 1) * 6 * SEQ * per_copy


def test_capacity_factor_is_the_load() -> None:
    per_copy = 2 * HIDDEN + 6 * 1408 + 12
    padded = layer_bytes(moe_instance(capacity_factor=1.25, expert_load=3.0), kind=1)
    assert padded - layer_bytes(moe_instance(), kind=1) == Fraction(1, 4) * 6 * SEQ * per_copy


def test_dispatcher_and_plain_experts_keep_more() -> None:
    base = layer_bytes(moe_instance(), kind=1)
    gathered = layer_bytes(moe_instance(profile={"dispatcher": "allgather"}), kind=1)
    assert gathered - base == 6 * SEQ * 2 * HIDDEN
    gated, plain = (
        make_instance(make_model(HIDDEN, 1024, [(1, mha(32, 128), moe(64, 6, 1408, gated=flag))]), SEQ)
        for flag in (True, False)
    )
    assert layer_bytes(gated) == layer_bytes(plain)  # one first output less, one unweighted activation more
    act = modules("moe_act")
    assert layer_bytes(plain) - layer_bytes(plain, act) == 2 * (layer_bytes(gated) - layer_bytes(gated, act))


def test_profile_facts() -> None:
    base = layer_bytes(moe_instance())
    ascend = layer_bytes(moe_instance(profile={"softmax_statistics_bytes": 64, "rope_saves_input": True}))
    assert ascend - base == SEQ * (60 * 32 + 2 * (32 + 1) * 64)
    copied = layer_bytes(moe_instance(profile={"attention_copies_output": True}))
    assert copied - base == SEQ * 2 * 32 * 128
    rope = make_instance(make_model(1024, 1024, [(1, gqa(16, 4, 64), dense(2816))]), 256)
    with_rope = rope.model_copy(update={"profile": rope.profile.model_copy(update={"rope_saves_input": True})})
    assert layer_bytes(with_rope) - layer_bytes(rope) == 256 * 2 * (16 + 4) * 64


def test_all_to_all_context_parallelism_keeps_the_exchanged_output() -> None:
    ring, ulysses = (layer_bytes(moe_instance(), cp=4, cp_comm=comm) for comm in ("p2p", "a2a"))
    assert ulysses - ring == SEQ // 4 * 2 * 32 * 128


def test_fp8_saves_product_inputs_in_fewer_bytes() -> None:
    model = make_model(HIDDEN, 1024, [(1, mha(32, 128), dense(8192))])
    bf16, fp8 = (layer_bytes(make_instance(model, SEQ, precision=p)) for p in ("bf16", "fp8"))
    fewer = (2 - Fraction(33, 32)) * (2 * HIDDEN + 8192)  # both norms' outputs and the second matrix's input
    assert bf16 - fp8 == SEQ * (fewer - Fraction(33, 32) * HIDDEN)  # the projection's fp8 input is a second copy


def test_norms_shared_by_parallel_parts_and_norms_of_outputs() -> None:
    attention, width = mha(32, 128), dense(8192)
    one, two, four = (
        layer_bytes(make_instance(make_model(HIDDEN, 1024, [(1, attention, width)], num_norms=n), SEQ))
        for n in (1, 2, 4)
    )
    assert two - one == SEQ * (4 * HIDDEN + 4)
    assert four - two == 2 * SEQ * (2 * HIDDEN + 4)


def test_mixers_shard_over_tensor_parallelism() -> None:
    """All but the norm's tensors is divided by tp, and nothing grows with the square of the sequence."""
    mixers = [
        Mamba2(num_heads=64, head_dim=64, num_groups=8, state_dim=128, conv_kernel_dim=4),
        GatedDeltaNet(num_key_heads=16, num_value_heads=32, key_head_dim=128, value_head_dim=128, conv_kernel_dim=4),
    ]
    for mixer in mixers:
        model = make_model(2048, 1024, [(1, mixer, None)], num_norms=1)
        instance, longer = make_instance(model, SEQ), make_instance(model, 2 * SEQ)
        norm = SEQ * (4 * 2048 + 4)
        assert layer_bytes(longer) == 2 * layer_bytes(instance)
        assert layer_bytes(instance, tp=8) - norm == Fraction(layer_bytes(instance) - norm, 8)
    mamba = make_instance(make_model(2048, 1024, [(1, mixers[0], None)], num_norms=1), SEQ)
    projected = 2 * 4096 + 2 * 8 * 128 + 64
    assert layer_bytes(mamba) == SEQ * (4 * 2048 + 4 + 2 * projected + 2 * 3 * 4096)


def test_formulas_in_letters_give_the_same_numbers() -> None:
    instance = moe_instance()
    kind = instance.model.kinds[1]
    sizes = kind.attention.model_dump() | kind.feed_forward.model_dump()  # type: ignore[union-attr]
    values = layout_values(tp=2, sp=1, ep=4, etp=2)
    numbers = layer_tensors(kind, context(instance))
    letters = layer_tensors(kind, context(instance), symbolic=True)
    for number, letter in zip(numbers, letters, strict=True):
        model_sizes = {s: sizes[s.name] for s in letter.bytes_.free_symbols if s.name in sizes}
        assert evaluate(letter.bytes_.subs(model_sizes), values) == evaluate(number.bytes_, values)


def test_strategies_are_all_subsets_that_apply() -> None:
    instance = moe_instance(profile={"recompute_modules": ("layernorm", "mlp", "moe", "moe_act", "mla_up_proj")})
    names = [strategy.name for strategy in strategies_for("k0", instance)]
    assert names[0] == "none"
    assert names[-1] == "full"
    assert len(names) == len(set(names)) == 2**3 + 1
    routed = {strategy.name for strategy in strategies_for("k1", instance)}
    assert len(routed) == 2 * 2 * 3 + 1  # layernorm, mla_up_proj, and none, moe or moe_act
    assert not any("moe_act" in name and "moe+" in name for name in routed)


def test_named_strategies_keep_what_applies_to_a_kind() -> None:
    instance = moe_instance(recompute=("layernorm+moe_act", "full"))
    assert [s.name for s in strategies_for("k0", instance)] == ["layernorm", "full"]
    assert [s.name for s in strategies_for("k1", instance)] == ["layernorm+moe_act", "full"]


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"recompute": ("layernom",)}, "layout.recompute"),
        ({"recompute": ()}, "layout.recompute"),
        ({"recompute": ("mlp",), "profile": {"recompute_modules": ("moe",)}}, "layout.recompute"),
        ({"profile": {"recompute_modules": ("attention",)}}, "profile.recompute_modules"),
    ],
)
def test_unknown_modules_are_refused(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(InstanceError) as error:
        strategies_for("k0", moe_instance(**changes))
    assert error.value.key == key
    assert error.value.accepted


@settings(max_examples=40, deadline=None)
@given(
    kind=st.integers(0, 1),
    tp=st.sampled_from([1, 2, 4]),
    sp=st.integers(0, 1),
    ep=st.sampled_from([1, 4]),
    mbs=st.integers(1, 4),
)
def test_more_modules_never_keep_more(kind: int, tp: int, sp: int, ep: int, mbs: int) -> None:
    instance = moe_instance()
    strategies = strategies_for(f"k{kind}", instance)
    tensors = layer_tensors(instance.model.kinds[kind], context(instance))
    values = layout_values(tp=tp, sp=sp, ep=ep, mbs=mbs)
    kept = evaluate_all(kept_bytes(tensors, strategies), values)
    full = kept[-1]
    for first, bytes_ in zip(strategies, kept, strict=True):
        assert bytes_ >= full > 0
        for second, other in zip(strategies, kept, strict=True):
            if not (first.full or second.full) and first.modules < second.modules:
                assert other < bytes_
