"""Whole-device memory: state bytes by ZeRO stage, transients, ends, buffers, overheads."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_cp.formulas import symbols as s
from prism_cp.formulas.activations import layer_tensors
from prism_cp.formulas.memory import MemoryExpressions, PartMemory, memory_expressions
from prism_cp.formulas.offload import MODULE_OF
from prism_cp.formulas.saved import context
from tests.formulas.memory_models import (
    DEVICE,
    PROFILE,
    deepseek_v3,
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

LAYOUT_SYMBOLS = {
    s.tp, s.sp, s.cp, s.ep, s.etp, s.dp, s.pp, s.mbs, s.cp_p2p, s.cp_all_gather, s.cp_a2a,
    s.zero_1, s.zero_2, s.zero_3, s.is_pipelined,
}  # fmt: skip


def all_expressions(memory: MemoryExpressions) -> list[sympy.Expr]:
    """Every expression of an instance."""
    parts = (*memory.kinds, memory.embedding, memory.head)
    expressions = [memory.fixed_bytes, memory.capacity_bytes, *(buffer[0] for buffer in memory.buffers)]
    for part in parts:
        expressions += [*part.activation_bytes, *part.transient_bytes]
        expressions += [part.weight_bytes, part.gradient_bytes, part.optimizer_bytes, part.optimizer_step_bytes]
    return [sympy.sympify(expression) for expression in expressions]


MODELS = {
    "mha": make_model(1024, 50257, [(4, mha(16, 64), dense(4096, gated=False))], norm="layernorm"),
    "mqa": make_model(1024, 50257, [(4, gqa(16, 1, 64), dense(4096))], num_norms=1, tied_embeddings=True),
    "hybrid": make_model(1024, 50257, [(2, gqa(16, 4, 64), None), (2, None, dense(4096))], num_norms=1),
    "deepseek": deepseek_v3(),
}


@cache
def expressions_of(name: str, precision: str, fused: bool) -> list[sympy.Expr]:
    """Every expression of one of `MODELS`; all of them in layout symbols only."""
    profile = {"flash_attention": fused, "dummy_weight_gradients": fused, "recompute_modules": ("layernorm", "mlp")}
    instance = make_instance(MODELS[name], 4096, profile=profile, precision=precision, dropout=True)
    expressions = all_expressions(memory_expressions(instance))
    assert set().union(*(expression.free_symbols for expression in expressions)) <= LAYOUT_SYMBOLS
    return expressions


@cache
def states_of(name: str) -> list[sympy.Expr]:
    """State bytes of every part of one of `MODELS`."""
    memory = memory_expressions(make_instance(MODELS[name]))
    parts = (*memory.kinds, memory.embedding, memory.head)
    return [part.weight_bytes + part.gradient_bytes + part.optimizer_bytes for part in parts]


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(MODELS)),
    tp=st.sampled_from([1, 2, 4, 8]),
    sp=st.booleans(),
    cp=st.sampled_from([1, 2, 4]),
    cp_comm=st.sampled_from(["p2p", "all_gather", "a2a"]),
    dp=st.sampled_from([8, 16]),
    ep=st.sampled_from([1, 8]),
    pp=st.sampled_from([1, 4]),
    zero=st.integers(0, 3),
    precision=st.sampled_from(["bf16", "fp8"]),
    fused=st.booleans(),
)
def test_bytes_are_numbers_and_not_negative(
    name: str,
    tp: int,
    sp: bool,
    cp: int,
    cp_comm: str,
    dp: int,
    ep: int,
    pp: int,
    zero: int,
    precision: str,
    fused: bool,
) -> None:
    """At every layout, every expression is a rational number of bytes, none below 0."""
    expressions = expressions_of(name, precision, fused)
    values = layout_values(zero, cp_comm, tp=tp, sp=int(sp), cp=cp, dp=dp, ep=ep, pp=pp)
    assert min(evaluate_all(expressions, values)) >= 0


def test_bf16_training_needs_eighteen_bytes_per_parameter() -> None:
    """18; 6 + 12/n with the distributed optimizer (Megatron-LM docs, dist_optimizer); 2 + 16/n; 18/n."""
    memory = memory_expressions(make_instance(MODELS["mha"]))
    part = memory.kinds[0]
    parameters = evaluate(part.weight_bytes, layout_values(zero=0)) / 2
    for zero, per_parameter in enumerate((18, 6 + Fraction(12, 8), 2 + Fraction(16, 8), Fraction(18, 8))):
        values = layout_values(zero, dp=4, cp=2)
        assert evaluate(part.weight_bytes + part.gradient_bytes + part.optimizer_bytes, values) == parameters * (
            per_parameter
        )


def test_expert_states_shard_over_expert_data_parallelism() -> None:
    """64 ranks, ep 16, etp 2: two ranks share an expert's optimizer states, 32 (dp·cp) those of the rest."""
    memory = memory_expressions(make_instance(deepseek_v3()))
    sizes = {"tp": 2, "dp": 32, "ep": 16, "etp": 2}
    experts = 256 * 3 * 7168 * 2048 // 32
    part = memory.kinds[1]
    dense_count = evaluate(part.weight_bytes, layout_values(0, **sizes)) / 2 - experts
    assert evaluate(part.optimizer_bytes, layout_values(1, **sizes)) == 12 * (
        Fraction(experts, 2) + Fraction(int(dense_count), 32)
    )


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(sorted(MODELS)),
    tp=st.sampled_from([1, 4]),
    cp=st.sampled_from([1, 2]),
    dp=st.sampled_from([2, 16]),
)
def test_states_shrink_with_the_zero_stage(name: str, tp: int, cp: int, dp: int) -> None:
    by_stage = [evaluate_all(states_of(name), layout_values(zero, tp=tp, cp=cp, dp=dp)) for zero in range(4)]
    for more, fewer in pairwise(by_stage):
        assert all(a < b for a, b in zip(fewer, more, strict=True))


def test_fp8_keeps_two_more_bytes_of_multiplied_weights() -> None:
    bf16, fp8 = (memory_expressions(make_instance(deepseek_v3(), precision=p)) for p in ("bf16", "fp8"))
    values = layout_values(tp=2, ep=8, dp=4)
    for part in ("embedding", "head"):
        same = [evaluate(getattr(memory, part).weight_bytes, values) for memory in (bf16, fp8)]
        assert same[0] == same[1]
    matrices = 256 * 3 * 7168 * 2048 // 8 + 7168 * (1536 + 512 + 64)
    matrices += (1536 * 128 * 192 + 512 * 128 * 256 + 128 * 128 * 7168 + 3 * 7168 * 2048) // 2
    assert evaluate(fp8.kinds[1].weight_bytes - bf16.kinds[1].weight_bytes, values) == 2 * matrices


def strategy(part: PartMemory, name: str) -> int:
    return [entry.name for entry in part.strategies].index(name)


def test_recomputed_bytes_come_back_in_one_layer_at_a_time() -> None:
    """Activations saved per live micro-batch reappear once, in the transient, whatever the strategy."""
    memory = memory_expressions(make_instance(deepseek_v3(mtp=0)))
    values = layout_values(tp=2, sp=1, ep=8, dp=4)
    for part in memory.kinds:
        sums = {evaluate(a + t, values) for a, t in zip(part.activation_bytes, part.transient_bytes, strict=True)}
        assert len(sums) == 1
        assert evaluate(part.activation_bytes[strategy(part, "full")], values) == 4096 * 7168


def test_transient_of_a_dense_layer() -> None:
    """h + 2f per token (SwiGLU backward), with sequence parallelism the gathered input and its gradient too."""
    memory = memory_expressions(make_instance(make_model(1024, 1024, [(1, mha(16, 64), dense(2816))])))
    part = memory.kinds[0]
    none = part.transient_bytes[strategy(part, "none")]
    assert evaluate(none, layout_values()) == 2 * 4096 * (1024 + 2 * 2816)
    assert evaluate(none, layout_values(tp=4)) == 2 * 4096 * (1024 + 2 * 2816 // 4)
    assert evaluate(none, layout_values(tp=4, sp=1)) == 2 * 4096 * (1024 // 4 + 2 * 2816 // 4 + 2 * 1024)
    assert evaluate(none, layout_values(sp=1)) == evaluate(none, layout_values())  # no group, nothing to gather


def test_context_parallel_transients() -> None:
    """All-gather holds keys and values of the other ranks and their gradients, the ring two blocks, all-to-all none."""
    wide = make_model(1024, 1024, [(1, mha(16, 64), dense(256))])
    part = memory_expressions(make_instance(wide)).kinds[0]
    none = part.transient_bytes[strategy(part, "none")]
    block = 2 * 1024 * 2 * 1024  # 1,024 tokens a rank, keys and values, two bytes
    inner = 2 * 1024 * (1024 + 4 * 1024)
    for comm, blocks in (("a2a", 0), ("p2p", 2), ("all_gather", 2 * 3)):
        assert evaluate(none, layout_values(cp=4, cp_comm=comm)) == inner + blocks * block


def test_zero_working_set() -> None:
    """ZeRO-2 holds a unit's whole gradients, ZeRO-3 also the weights of two units."""
    memory = memory_expressions(make_instance(make_model(1024, 1024, [(1, mha(16, 64), dense(2816))])))
    part = memory.kinds[0]
    parameters = 4 * 1024 * 1024 + 3 * 1024 * 2816 + 2 * 1024
    one, two, three = (evaluate(part.transient_bytes[0], layout_values(zero, dp=8)) for zero in (1, 2, 3))
    assert (two - one, three - two) == (4 * parameters, 4 * parameters)


def test_zero_3_gathers_a_tied_projection_for_the_head() -> None:
    """Twice in 16 bits, also where it is stored with the embedding alone; its whole gradient is the embedding's."""
    groups = [(2, mha(8, 64), dense(2048))]
    head = memory_expressions(make_instance(make_model(512, 1024, groups, tied_embeddings=True))).head
    norm, projection = 512, 512 * 1024
    for pp, projections in ((1, 0), (2, 1)):  # copies of the projection on the head's own rank
        whole, gathered = (evaluate(head.transient_bytes[0], layout_values(zero, dp=8, pp=pp)) for zero in (1, 3))
        assert gathered - whole == 2 * 2 * (norm + projection) + 4 * (norm + projections * projection)


@pytest.mark.parametrize(
    ("profile", "kept", "peak"),
    [
        ({"fused_cross_entropy": True, "loss_peak_bytes_per_logit": 2}, 2, 2),
        ({"fused_cross_entropy": False, "loss_peak_bytes_per_logit": 6}, 4, 6),
        ({"fused_cross_entropy": False, "loss_peak_bytes_per_logit": 10}, 4, 10),
    ],
)
def test_logits(profile: dict[str, Any], kept: int, peak: int) -> None:
    """Kept per live micro-batch, once per prediction depth and once for the main head; the peak only once."""
    profile = profile | {"dummy_weight_gradients": True}
    without, with_mtp = (memory_expressions(make_instance(deepseek_v3(n), profile=profile)).head for n in (0, 1))
    values = layout_values(tp=4, sp=1)
    logits, norm = 4096 * 129536 // 4, 2 * 2 * 1024 * 7168 + 4 * 1024  # vocabulary padded to a multiple of 512
    assert evaluate(without.activation_bytes[0], values) == norm + kept * logits
    assert evaluate(with_mtp.activation_bytes[0], values) == norm + 2 * kept * logits
    dummy = 2 * 129536 // 4 * 7168
    largest = max((peak - kept) * logits, (2 - kept) * logits + dummy)
    assert evaluate(without.transient_bytes[0], values) == largest + 2 * 2 * 4096 * 7168


def test_prediction_depth_adds_norms_and_projection_to_a_layer() -> None:
    memory = memory_expressions(make_instance(deepseek_v3(2)))
    layer, mtp = memory.kinds[1], memory.kinds[2]
    values = layout_values()
    for name, hidden_states, norms in (("none", 6, 3), ("full", 4, 1)):
        extra = evaluate(
            mtp.activation_bytes[strategy(mtp, name)] - 2 * layer.activation_bytes[strategy(layer, name)], values
        )
        # two norm inputs, the concatenated pair unless recomputed, the final norm's input and output
        assert extra == 2 * 4096 * (2 * 7168 * hidden_states + 4 * norms)
    weights = [evaluate(part.weight_bytes, values) for part in (layer, mtp)]
    assert weights[1] - 2 * weights[0] == 2 * 2 * (3 * 7168 + 2 * 7168 * 7168)


def test_dummy_gradients_are_shared_by_equal_shapes() -> None:
    """One buffer per distinct local shape; the attention's belong to both kinds, an expert has the size of one."""
    memory = memory_expressions(make_instance(deepseek_v3(0)))
    values = layout_values(tp=2, ep=8, etp=1, dp=4)
    sizes = {(evaluate(bytes_, values), kinds) for bytes_, kinds, _, _ in memory.buffers}
    assert (2 * 128 * 128 // 2 * 7168, frozenset({0, 1})) in sizes
    assert (2 * 2 * 18432 // 2 * 7168, frozenset({0})) in sizes
    assert (2 * 2 * 2048 * 7168, frozenset({1})) in sizes
    assert (4 * 32 * 2**20, frozenset({1})) in sizes  # workspaces of grouped matrix multiplications
    assert len(memory.buffers) == 5 + 2 + 2 + 2 + 1  # attention, dense, experts, shared expert, workspaces
    nothing = {"dummy_weight_gradients": False, "grouped_gemm_workspace_bytes": 0}
    unfused = make_instance(deepseek_v3(0), profile=nothing)
    assert memory_expressions(unfused).buffers == []


def test_without_in_place_accumulation_the_largest_gradient_is_transient() -> None:
    model = make_model(1024, 1024, [(1, mha(16, 64), dense(2816))])
    parts = [
        memory_expressions(make_instance(model, profile={"dummy_weight_gradients": fused})).kinds[0]
        for fused in (True, False)
    ]
    values = layout_values(tp=2)
    assert evaluate(parts[1].transient_bytes[0] - parts[0].transient_bytes[0], values) == 2 * 2 * 2816 * 1024 // 2


def test_megatrons_own_layers_keep_one_buffer_of_scores_and_one_of_gathered_inputs() -> None:
    """Transformer Engine's unfused attention and linear layers keep neither."""
    profile = {"flash_attention": False, "dummy_weight_gradients": False}
    own = make_instance(MODELS["mha"], 2048, profile=profile | {"transformer_engine": False})
    (scores, kinds, _, _), (gathered, _, _, _) = memory_expressions(own).buffers
    assert kinds == {0}
    assert evaluate(scores, layout_values(tp=4, mbs=3)) == 2 * 3 * 16 * 2048**2 // 4
    assert [evaluate(gathered, layout_values(tp=4, sp=sp)) for sp in (0, 1)] == [0, 2 * 2048 * 1024]
    assert memory_expressions(make_instance(MODELS["mha"], 2048, profile=profile)).buffers == []


def test_embedding_gradient_counts_beyond_what_the_first_layer_returns() -> None:
    small = make_instance(make_model(1024, 262144, [(1, mha(16, 64), dense(2816))]), 256)
    memory = memory_expressions(small)
    values = layout_values()
    layer = memory.kinds[0]
    returned = evaluate(layer.activation_bytes[0] + layer.transient_bytes[0], values)
    assert evaluate(memory.embedding.transient_bytes[0], values) == 2 * 262144 * 1024 - returned
    assert evaluate(memory.embedding.transient_bytes[0], layout_values(mbs=64)) == 0


def test_fixed_bytes_count_the_communicators_that_exist() -> None:
    each, rest = PROFILE.communicator_bytes, PROFILE.context_bytes + PROFILE.workspace_bytes
    dense_model = memory_expressions(make_instance(MODELS["mha"]))
    routed = memory_expressions(make_instance(deepseek_v3(0)))
    received = 2 * 2 * 4096 * 1024
    cases: list[tuple[MemoryExpressions, dict[str, int], int, int]] = [
        (dense_model, {"dp": 8}, 2, 0),  # world, data
        (dense_model, {"tp": 8}, 2, 0),
        (dense_model, {"tp": 2, "cp": 2, "dp": 2}, 5, 0),  # and context with data, data alone
        (dense_model, {"tp": 2, "dp": 2, "pp": 2}, 4, received),
        (routed, {"dp": 8, "ep": 8}, 3, 0),
        (routed, {"dp": 8, "ep": 4}, 4, 0),  # and expert data
        (routed, {"tp": 2, "dp": 16, "ep": 4, "etp": 2}, 7, 0),
    ]
    for memory, sizes, groups, extra in cases:
        assert evaluate(memory.fixed_bytes, layout_values(**sizes)) == rest + groups * each + extra


def test_capacity_is_exact() -> None:
    memory = memory_expressions(make_instance(MODELS["mha"]))
    share = Fraction(94, 100) * Fraction(95, 100)  # fragmentation, then the margin
    assert evaluate(memory.capacity_bytes, layout_values()) == share * DEVICE.memory_bytes
    assert PROFILE.capacity_share == share


def test_optimizer_step() -> None:
    """A temporary of at most four bytes per parameter of the shard; 16-bit gradients exist in fp32 meanwhile."""
    model = make_model(1024, 1024, [(1, mha(16, 64), dense(2816))])
    parameters = 4 * 1024 * 1024 + 3 * 1024 * 2816 + 2 * 1024

    def step(**profile: int) -> Any:
        part = memory_expressions(make_instance(model, profile=profile)).kinds[0]
        return evaluate(part.optimizer_step_bytes, layout_values(dp=8))

    assert step(optimizer_step_bytes=0) == 0
    assert step(optimizer_step_bytes=2**20) == 2**20
    assert step(optimizer_step_bytes=2**30) == Fraction(4 * parameters, 8)
    assert step(gradient_bytes=2) == Fraction(4 * parameters, 8)
    assert step(gradient_bytes=2, optimizer_state_bytes=16) == 0


def test_offloaded_modules_leave_two_layers_of_theirs_on_the_device() -> None:
    """Query, key and value and the residual before the feed-forward; nothing under full recomputation."""
    model = make_model(1024, 1024, [(1, mha(16, 64), dense(2816))])
    here, away = (
        memory_expressions(make_instance(model, profile={"offload_modules": modules})).kinds[0]
        for modules in ((), ("core_attn", "mlp_norm"))
    )
    values = layout_values(mbs=2)
    host = 2 * 2 * 4096 * (3 * 1024 + 1024)
    for index, strategy in enumerate(here.strategies):
        gone = 0 if strategy.full else host
        kept = evaluate(here.activation_bytes[index], values) - evaluate(away.activation_bytes[index], values)
        more = evaluate(away.transient_bytes[index], values) - evaluate(here.transient_bytes[index], values)
        assert (kept, more) == (gone, 2 * gone)


def test_every_offloaded_tensor_is_one_that_layers_save() -> None:
    attention = [mla(16), gqa(16, 4, 64, qk_norm=True)]
    names = set()
    for mixer in attention:
        model = make_model(1024, 1024, [(1, mixer, moe(8, 2, 512))])
        everything = {"flash_attention": False, "pads_value_heads": True, "rope_saves_input": True}
        for changes in ({}, everything):
            instance = make_instance(model, profile=changes, precision="fp8")
            names |= {tensor.name for tensor in layer_tensors(model.kinds[0], context(instance))}
    assert set(MODULE_OF) <= names
