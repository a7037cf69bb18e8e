"""Layer times: facts that hold whatever the constants are, and the two evaluation paths against each other."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_cp.errors import InstanceError
from prism_cp.formulas.flops import attention_linears
from prism_cp.formulas.layer_time import TimeExpressions, time_expressions
from prism_cp.formulas.strategies import strategies_for
from prism_cp.formulas.time_results import LayerTimes, LayoutTimes
from prism_cp.inputs.instance import Instance
from tests.formulas.time_instances import at, catalog_instance, expressions, layout_values, strategy_index


def changed(instance: Instance, **profile: Any) -> TimeExpressions:
    """Times under another framework profile."""
    return time_expressions(instance.model_copy(update={"profile": instance.profile.model_copy(update=profile)}))


# --- two paths, one program --------------------------------------------------------------------------------------


def numbers(times: LayoutTimes[Any]) -> list[Any]:
    """Every number of a result, in a fixed order."""
    values: list[Any] = []
    for layer in (*times.kinds, times.embedding, times.head):
        for field in LayerTimes.__dataclass_fields__:
            value = getattr(layer, field)
            values += value if isinstance(value, list) else [value]
    return [*values, times.p2p_s, times.norm_s, times.head_s, times.last_bucket_s, times.hide_share]


INSTANCES = [
    ("deepseek-v3", "512xh800", 4096, ("job.precision=fp8", "profile.dispatcher=deepep")),
    ("qwen3-next-80b-a3b", "512x910c", 8192, ("profile.dispatcher=allgather", "job.expert_load=1.25")),
    ("gpt-oss-120b", "512xgb200", 4096, ("profile.tp_overlap=true", "profile.overlap_grad_reduce=false")),
    ("gpt3-175b", "512xa100", 2048, ("job.dropout=true", "profile.flash_attention=false")),
]
POWERS = st.sampled_from([1, 2, 4, 8])
LAYOUTS = st.fixed_dictionaries(
    {
        "tp": POWERS,
        "sp": st.sampled_from([0, 1]),
        "cp": POWERS,
        "cp_comm": st.sampled_from(["p2p", "all_gather", "a2a"]),
        "ep": st.sampled_from([1, 2, 8, 32]),
        "etp": st.sampled_from([1, 2]),
        "dp": st.sampled_from([64, 96, 128]),
        "pp": st.sampled_from([1, 2, 3, 16]),
        "mbs": st.sampled_from([1, 2, 3]),
        "num_microbatches": st.integers(1, 100),
        "zero": st.integers(0, 3),
    }
)


@pytest.mark.parametrize("case", INSTANCES, ids=lambda case: case[0])
def test_numpy_path_equals_exact_path(case: tuple[Any, ...]) -> None:
    model, cluster, seq_len, overrides = case
    times = expressions(model, cluster, seq_len, *overrides)

    @settings(max_examples=12, deadline=None)
    @given(st.lists(LAYOUTS, min_size=1, max_size=4))
    def compare(layouts: list[dict[str, Any]]) -> None:
        rows = [layout_values(**layout) for layout in layouts]
        columns = {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}
        arrays = numbers(times.evaluate_numpy(columns))
        for index, row in enumerate(rows):
            exact = numbers(times.evaluate_exact(row))
            assert all(isinstance(value, int | Fraction) for value in exact)
            assert min(exact) >= 0
            floats = np.array([float(array[index]) for array in arrays])
            np.testing.assert_allclose(floats, np.array([float(value) for value in exact]), rtol=1e-9, atol=1e-15)

    compare()


def test_long_columns_are_evaluated_in_blocks_of_the_same_values() -> None:
    times = expressions("llama-3.1-8b", "64xh100", 4096)
    tp = np.resize([1.0, 2.0, 4.0, 8.0], 20_001)
    columns = {name: np.full(tp.size, float(value)) for name, value in layout_values(dp=8).items()} | {"tp": tp}
    long = numbers(times.evaluate_numpy(columns))
    short = numbers(times.evaluate_numpy({name: column[:4] for name, column in columns.items()}))
    for whole, part in zip(long, short, strict=True):
        assert whole.shape == (20_001,)
        np.testing.assert_array_equal(whole, np.resize(part, 20_001))


def test_first_strategy_only_is_the_head_of_every_list() -> None:
    times = expressions("qwen3-30b-a3b", "64xh100", 4096)
    values = layout_values(ep=8, dp=64)
    every, first = times.evaluate_numpy(values), times.evaluate_numpy(values, first_strategy_only=True)
    for whole, head in zip(every.kinds, first.kinds, strict=True):
        assert len(whole.input_grad_s) > 1
        for field in ("forward_s", "input_grad_s", "weight_grad_s"):
            (only,) = getattr(head, field)
            np.testing.assert_array_equal(only, getattr(whole, field)[0])


def test_missing_symbol_is_named() -> None:
    values = layout_values()
    del values["cp"]
    with pytest.raises(KeyError, match="cp"):
        expressions("llama-3.1-8b", "64xh100", 4096).evaluate_exact(values)


# --- facts that hold whatever the constants are ------------------------------------------------------------------


def test_uniform_tensor_parallel_volume_is_the_same_with_and_without_sequence_parallelism() -> None:
    """All-reduce = reduce-scatter + all-gather: only the latency of the second call and pointwise work differ."""
    times = expressions("llama-3.1-70b", "64xh100", 8192)
    without, with_sp = (at(times, tp=8, sp=sp).kinds[0] for sp in (0, 1))
    hidden_bytes = 2 * 8192 * 8192
    # Forward streams of a layer outside tensor parallelism: two norms (2 each) and two residuals (3 each).
    streams = 10 * hidden_bytes * (1 - 1 / 8) / (times.instance.cluster.device.hbm_bytes_per_s * 0.83)
    saved = float(without.forward_s[0] - with_sp.forward_s[0])
    jitter = 1 + 0.003 * 3  # eight nodes
    assert saved == pytest.approx(jitter * (streams - 2 * 20e-6), rel=1e-6)


def test_full_recomputation_adds_one_forward() -> None:
    times = expressions("llama-3.1-70b", "64xh100", 8192)
    kind = at(times, tp=8, sp=1).kinds[0]
    full, none = (kind.input_grad_s[strategy_index(times, 0, name)] for name in ("full", "none"))
    assert full - none == kind.forward_s[0]


def test_modules_add_up_and_never_exceed_full_recomputation() -> None:
    times = expressions("deepseek-v3", "512xh800", 4096, "job.precision=fp8", "profile.dispatcher=deepep")
    result = at(times, tp=2, sp=1, ep=32, dp=32, pp=8, num_microbatches=16)
    for kind, strategies in zip(result.kinds, times.strategies, strict=True):
        base = kind.input_grad_s[0]
        extra = {s.modules: grad - base for s, grad in zip(strategies, kind.input_grad_s, strict=True) if not s.full}
        for modules, amount in extra.items():
            assert amount <= kind.input_grad_s[-1] - base
            if "moe" in modules:
                continue
            assert amount == pytest.approx(sum(extra[frozenset({module})] for module in modules), rel=1e-12)
    assert strategies_for("mla+moe", times.instance)[-1].full


def test_multi_token_prediction_item_costs_more_than_its_layer() -> None:
    times = expressions("deepseek-v3", "512xh800", 4096, "job.precision=fp8", "profile.dispatcher=deepep")
    _, layer, prediction = at(times, ep=32, dp=64, pp=8).kinds
    assert prediction.weight_grad_s[0] > layer.weight_grad_s[0]
    assert prediction.forward_s[0] > layer.forward_s[0]


def test_each_prediction_depth_adds_logits() -> None:
    instance = catalog_instance("deepseek-v3", "512xh800", 4096)
    without = instance.model.model_copy(update={"num_mtp_layers": 0, "mtp_kind": None})
    plain = time_expressions(instance.model_copy(update={"model": without}))
    head, twice = (at(times, dp=64, ep=8, pp=8).head for times in (plain, time_expressions(instance)))
    assert twice.weight_grad_s[0] == 2 * head.weight_grad_s[0]
    assert head.forward_s[0] < twice.forward_s[0] < 2 * head.forward_s[0]  # one final norm for both


@given(st.sampled_from([1, 2, 4, 8, 16]))
@settings(max_examples=5, deadline=None)
def test_weight_gradients_shrink_with_tensor_parallelism(tp: int) -> None:
    times = expressions("llama-3.1-70b", "64xh100", 8192)
    few, many = (at(times, tp=size, sp=1).kinds[0].weight_grad_s[0] for size in (tp, 2 * tp))
    assert many < few < 3 * many


def test_pipeline_of_one_stage_sends_nothing() -> None:
    times = expressions("llama-3.1-70b", "64xh100", 8192)
    assert at(times, tp=8, dp=8).p2p_s == 0
    assert at(times, tp=8, pp=8).p2p_s > at(times, tp=8, sp=1, pp=8).p2p_s > 0


def test_zero_stages_change_what_the_reduction_and_the_gather_move() -> None:
    times = expressions("llama-3.1-70b", "64xh100", 8192, "profile.overlap_param_gather=false")
    layers = [at(times, tp=8, sp=1, dp=8, num_microbatches=4, zero=zero) for zero in range(4)]
    reduce = [result.kinds[0].grad_reduce_s for result in layers]
    gather = [result.kinds[0].param_gather_s for result in layers]
    update = [result.kinds[0].optimizer_s for result in layers]
    assert reduce[0] > reduce[1] == reduce[2] == reduce[3]
    assert gather[0] == 0 < gather[1] == gather[2]
    assert gather[3] == 0  # gathered in every forward and backward instead
    assert update[0] > update[1] > update[2] == update[3]
    forward = [result.kinds[0].forward_s[0] for result in layers]
    assert forward[3] > forward[2] == forward[1] == forward[0]
    assert all(result.head_s == 0 for result in layers)


def test_sharded_gradients_are_reduced_in_every_micro_batch_but_once_in_the_tail() -> None:
    """Nothing hides the reduction: every micro-batch but the last exposes it, the last one in the step's tail."""
    times = expressions("llama-3.1-70b", "64xh100", 8192, "profile.overlap_grad_reduce=false")
    kinds = [at(times, tp=8, sp=1, dp=8, num_microbatches=4, zero=zero).kinds[0] for zero in (1, 2)]
    exposed = kinds[1].input_grad_s[0] - kinds[0].input_grad_s[0]
    assert exposed == Fraction(3, 4) * kinds[1].grad_reduce_s
    single = [at(times, tp=8, sp=1, dp=8, num_microbatches=1, zero=zero).kinds[0].input_grad_s[0] for zero in (1, 2)]
    assert single[0] == single[1]


def test_overlapped_gather_leaves_the_first_bucket_and_what_the_first_forwards_do_not_hide() -> None:
    times = expressions("llama-3.1-70b", "64xh100", 8192)
    result, long = (at(times, tp=8, sp=1, dp=8, mbs=mbs, zero=1) for mbs in (1, 4))
    assert long.kinds[0].param_gather_s == 0 < long.head_s
    exposed = expressions("llama-3.1-70b", "64xh100", 8192, "profile.overlap_param_gather=false")
    whole = at(exposed, tp=8, sp=1, dp=8, zero=1).kinds[0]
    hidden = whole.param_gather_s - result.kinds[0].param_gather_s
    jitter = 1 + Fraction(3, 1000) * 3
    assert hidden == jitter * Fraction(9, 10) * result.kinds[0].forward_s[0]
    interleaved = at(times, tp=8, sp=1, dp=8, pp=4, vpp=2, zero=1)
    assert interleaved.kinds[0].param_gather_s < result.kinds[0].param_gather_s
    assert at(times, tp=8, sp=1, dp=8, zero=0).head_s == 0
    assert result.hide_share == Fraction(9, 10)
    assert result.last_bucket_s > 0
    assert at(times, tp=8, pp=8, zero=1).last_bucket_s == 0  # nothing to reduce over


def test_ring_context_parallelism_hides_behind_attention_and_others_do_not() -> None:
    times = expressions("llama-3.1-70b", "64xh100", 131072)
    forward = {
        cp_comm: at(times, tp=8, sp=1, cp=4, cp_comm=cp_comm, dp=2).kinds[0].forward_s[0]
        for cp_comm in ("p2p", "all_gather")
    }
    assert forward["p2p"] < forward["all_gather"]


def test_tensor_parallel_overlap_hides_part_of_the_collectives() -> None:
    instance = catalog_instance("llama-3.1-70b", "64xh100", 8192)
    exposed, hidden = (
        at(changed(instance, tp_overlap=overlap), tp=8, sp=1).kinds[0].forward_s[0] for overlap in (False, True)
    )
    assert hidden < exposed
    alone = [at(changed(instance, tp_overlap=overlap), tp=1, sp=0).kinds[0] for overlap in (False, True)]
    assert alone[0] == alone[1]


def test_host_floor_and_synchronisation_vanish_under_full_graphs() -> None:
    instance = catalog_instance("qwen3-30b-a3b", "64xh100", 512)
    graphs, eager = (
        at(changed(instance, full_cuda_graphs=flag), ep=8, dp=64).kinds[0].forward_s[0] for flag in (True, False)
    )
    jitter = 1 + Fraction(3, 1000) * 3
    assert eager == jitter * Fraction(4 * 10, 10_000) > graphs


def test_launches_take_longer_on_slow_hosts_and_for_latent_attention() -> None:
    def launched(model: str, cluster: str, *overrides: str) -> Fraction:
        times = expressions(model, cluster, 512, *overrides)
        return times.evaluate_exact(layout_values(ep=8, dp=8)).kinds[-1].forward_s[0]

    x86 = launched("qwen3-30b-a3b", "8xb200")
    assert launched("qwen3-30b-a3b", "8xgb200") == Fraction(3, 2) * x86
    assert launched("deepseek-v2-lite", "8xb200") == Fraction(19, 10) * x86
    graphs = launched("deepseek-v2-lite", "8xb200", "profile.attention_cuda_graphs=true")
    assert graphs == Fraction(3, 4) * x86


def test_padding_to_capacity_needs_no_synchronisation_but_moves_its_factor() -> None:
    plain, padded, more = (
        at(expressions("mixtral-8x7b", "64xh100", 4096, *overrides), ep=8, dp=64).kinds[0]
        for overrides in ((), ("job.capacity_factor=1.0",), ("job.capacity_factor=1.5",))
    )
    jitter = 1 + Fraction(3, 1000) * 3
    assert plain.forward_s[0] - padded.forward_s[0] == jitter * Fraction(32, 10_000)
    assert more.weight_grad_s[0] > padded.weight_grad_s[0]


def test_deduplicating_dispatcher_is_faster_between_nodes() -> None:
    instance = catalog_instance("deepseek-v3", "512xh800", 4096)
    plain, deduplicated = (
        at(changed(instance, dispatcher=name), ep=64, dp=64, pp=8).kinds[1].forward_s[0]
        for name in ("alltoall", "deepep")
    )
    assert deduplicated < plain


def test_fp8_speeds_up_matrices_and_needs_a_device_that_has_it() -> None:
    half, low = (
        at(expressions("llama-3.1-70b", "64xh100", 8192, f"job.precision={precision}"), tp=2, sp=1, dp=32)
        for precision in ("bf16", "fp8")
    )
    assert low.kinds[0].weight_grad_s[0] < half.kinds[0].weight_grad_s[0]
    assert low.head.weight_grad_s == half.head.weight_grad_s  # the output matrix stays in 16 bit
    instance = catalog_instance("llama-3.1-70b", "64xa100", 8192)
    job = instance.job.model_copy(update={"precision": "fp8"})
    with pytest.raises(InstanceError, match=r"job\.precision"):
        time_expressions(instance.model_copy(update={"job": job}))


def test_sliding_window_shortens_attention() -> None:
    times = expressions("gpt-oss-120b", "64xh100", 32768)
    by_window = {
        kind.attention.window is None: at(times, tp=8, sp=1, ep=8, dp=8).kinds[index].forward_s[0]
        for index, name in enumerate(times.instance.model.chain_kinds)
        for kind in [times.instance.model.kind(name)]
    }
    assert by_window[False] < by_window[True]


def test_latent_down_projections_are_not_split_by_tensor_parallelism() -> None:
    model = catalog_instance("deepseek-v3", "64xh100", 4096).model
    kind = model.kind("mla+dense").attention
    assert kind is not None
    assert [
        linear.name for linear in attention_linears(kind, model.hidden_size) if linear.parallel == "replicated"
    ] == [
        "q_down",
        "kv_down",
    ]


def test_tied_embeddings_add_up_between_the_first_and_the_last_stage() -> None:
    times = expressions("qwen2.5-1.5b", "64xh100", 4096)
    assert times.instance.model.tied_embeddings
    alone, piped = at(times, dp=64), at(times, dp=32, pp=2)
    assert piped.head.grad_reduce_s > alone.head.grad_reduce_s


def test_frozen_weights_have_no_gradients_and_short_documents_less_attention() -> None:
    full, packed, frozen = (
        at(expressions("llama-3.1-8b", "8xh100", 8192, *overrides), dp=8)
        for overrides in ((), ("job.document_len=512",), ("job.frozen_weights=true",))
    )
    assert packed.kinds[0].forward_s[0] < full.kinds[0].forward_s[0]
    assert packed.kinds[0].weight_grad_s == full.kinds[0].weight_grad_s
    assert frozen.kinds[0].weight_grad_s[0] == frozen.kinds[0].grad_reduce_s == frozen.kinds[0].optimizer_s == 0
    assert frozen.kinds[0].forward_s[0] > full.kinds[0].forward_s[0]  # adapters


def test_early_stop_recomputes_less() -> None:
    instance = catalog_instance("llama-3.1-8b", "8xh100", 4096)
    whole, early = (
        at(changed(instance, checkpoint_early_stop=flag), dp=8).kinds[0].input_grad_s[-1] for flag in (False, True)
    )
    assert early < whole


def test_an_eager_framework_is_slower() -> None:
    instance = catalog_instance("mpt-1b", "8xh100", 2048)
    fused, eager = (at(changed(instance, fused_pointwise=flag), dp=8) for flag in (True, False))
    assert eager.kinds[0].input_grad_s[0] > fused.kinds[0].input_grad_s[0]


def test_heads_that_miss_the_matrix_units_are_slow() -> None:
    slow, fast = (
        at(
            expressions(
                "megatron-22b", "8xa100", 2048, f"model.kinds.0.attention.head_dim={dim}", profile="megatron-2022"
            )
        )
        for dim in (100, 104)
    )
    assert slow.kinds[0].forward_s[0] > fast.kinds[0].forward_s[0]
