"""Megatron-LM arguments: every flag in exactly one table, models, layouts and recomputation from arguments."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from prism_cp.errors import PrismError, UsageError
from prism_cp.estimation.configuration import Configuration
from prism_cp.estimation.estimate import estimate
from prism_cp.estimation.megatron_arguments import (
    Arguments,
    UnsupportedArgument,
    configuration_from_arguments,
    flags,
    read_arguments,
)
from prism_cp.estimation.megatron_arguments.flags import IRRELEVANT, REFUSED, UNDERSTOOD
from prism_cp.estimation.megatron_arguments.reading import arguments_from_text
from prism_cp.formulas.parameters import model_parameters
from prism_cp.formulas.strategies import strategies_for

BASE = {
    "num-layers": "12",
    "hidden-size": "512",
    "num-attention-heads": "8",
    "seq-length": "1024",
    "max-position-embeddings": "1024",
    "micro-batch-size": "4",
    "global-batch-size": "32",
    "bf16": "true",
    "tokenizer-type": "GPT2BPETokenizer",
}


def configuration(num_devices: int = 8, **changes: str) -> Configuration:
    """Twelve small layers with some flags added; underscores stand for dashes."""
    added = {name.replace("_", "-"): value for name, value in changes.items()}
    return configuration_from_arguments({**BASE, **added}, cluster="h100", num_devices=num_devices)


def test_tables_do_not_overlap() -> None:
    assert not UNDERSTOOD & IRRELEVANT.keys()
    assert not UNDERSTOOD & REFUSED.keys()
    assert not IRRELEVANT.keys() & REFUSED.keys()


def test_understood_flags_are_exactly_those_that_are_read() -> None:
    """The encoder-decoder's own flags are read by nothing yet, because its program is refused."""
    folder = Path(flags.__file__).parent
    sources = "".join(path.read_text() for path in folder.glob("*.py") if path.name != "flags.py")
    quoted = set(re.findall(r'"([a-z0-9_-]+)"', sources))
    encoder = {"encoder-num-layers", "decoder-num-layers", "encoder-seq-length", "decoder-seq-length"}
    assert UNDERSTOOD - quoted == encoder
    read = set(re.findall(r'\.(?:has|integer|integers|size|number|text|one_of)\(\s*"([a-z0-9_-]+)"', sources))
    assert read <= UNDERSTOOD


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("tp-2d", "true"),
        ("no-such-flag", "3"),
        ("recompute-granularity", "some"),
        ("recompute-modules", "everything"),
        ("position-embedding-type", "rotary"),
        ("optimizer", "sgd"),
        ("num-layers", "eleven"),
        ("pipeline-model-parallel-size", "3"),
        ("context-parallel-algo", "hybrid_cp_algo"),
        ("moe-layer-freq", "([0]*3+[1]*4)"),
    ],
)
def test_refused_by_name(flag: str, value: str) -> None:
    changes = {flag.replace("-", "_"): value, "num_experts": "8", "recompute_granularity": "selective"}
    changes |= {"context_parallel_size": "2"} | {flag.replace("-", "_"): value}
    with pytest.raises(UnsupportedArgument) as caught:
        configuration(**changes)
    assert flag in str(caught.value) or "num-layers" in str(caught.value) or "tensor-model" in str(caught.value)


def test_a_flag_that_is_switched_off_says_nothing() -> None:
    assert configuration(tp_2d="false").layout.tp == 1


def test_gpt2_like_model_from_defaults() -> None:
    """Learned positions, biases, LayerNorm, GELU of four hidden sizes, tied ends: 12 h² + 13 h a layer."""
    found = configuration().instance
    assert model_parameters(found.model) == 12 * (12 * 512**2 + 13 * 512) + (50257 + 1024) * 512 + 2 * 512
    assert found.job.vocab_padding == 128
    assert found.job.dropout


def test_swiglu_width_is_two_thirds_in_steps_of_64() -> None:
    feed_forward = configuration(swiglu="true").instance.model.kinds[0].feed_forward
    assert feed_forward is not None
    assert feed_forward.intermediate_size == 1344


def test_layer_pattern_makes_dense_and_expert_layers() -> None:
    model = configuration(num_experts="8", moe_layer_freq="([0]*3+[1]*9)").instance.model
    assert model.chain == ("dense",) * 3 + ("moe",) * 9


def test_hybrid_pattern() -> None:
    model = configuration(hybrid_layer_pattern="M-M*M-M*M-M*").instance.model
    assert [kind.name for kind in model.kinds] == ["mamba", "mlp", "attention"]


@pytest.mark.parametrize(
    ("changes", "sizes", "vpp"),
    [
        ({}, (6, 6), 1),
        ({"num_layers_per_virtual_pipeline_stage": "3"}, (3, 3, 3, 3), 2),
        ({"decoder_first_pipeline_num_layers": "4"}, (4, 8), 1),
        ({"num_layer_list": "7,5"}, (7, 5), 1),
        ({"noop_layers": "0,11", "num_layers": "12"}, (5, 5), 1),
        ({"pipeline_model_parallel_layout": "Et*5|t*7L"}, (5, 7), 1),
        ({"pipeline_model_parallel_layout": "Et*3|(tt|)*4tL"}, (3, 2, 2, 2, 2, 1), 3),
        (
            {
                "num_layers": "10",
                "account_for_embedding_in_pipeline_split": "true",
                "account_for_loss_in_pipeline_split": "true",
            },
            (5, 5),
            1,
        ),
    ],
)
def test_stages(changes: dict[str, str], sizes: tuple[int, ...], vpp: int) -> None:
    found = configuration(pipeline_model_parallel_size="2", **changes)
    bounds = found.assignment.boundaries
    assert tuple(b - a for a, b in itertools.pairwise(bounds)) == sizes
    assert found.layout.vpp == vpp


def test_block_recomputation_counts_per_stage() -> None:
    found = configuration(
        pipeline_model_parallel_size="2",
        recompute_granularity="full",
        recompute_method="block",
        recompute_num_layers="2",
    )
    assert found.assignment.counts == (((4, 2),), ((4, 2),))


def test_optimizer_state_widths() -> None:
    profile = configuration(use_precision_aware_optimizer="true", exp_avg_dtype="bf16").instance.profile
    assert (profile.optimizer_state_bytes, profile.optimizer_moment_bytes) == (10, 6)
    assert configuration(reuse_fp32_param="true").instance.profile.optimizer_state_bytes == 10


def test_text_of_a_command_line() -> None:
    text = '--num-layers 12 \\\n  --bf16 # comment\n --recompute-modules moe_act layernorm --spec "a b"\n --x=3'
    assert arguments_from_text(text) == {
        "num-layers": "12",
        "bf16": "true",
        "recompute-modules": "moe_act layernorm",
        "spec": "a b",
        "x": "3",
    }


def test_files_of_cases(tmp_path: Path) -> None:
    file = tmp_path / "args.json"
    file.write_text('{"one": {"--num-layers": "2"}, "two": {"--num-layers": "3"}}')
    assert read_arguments(file, "two") == {"--num-layers": "3"}
    for case in (None, "three"):
        with pytest.raises(UsageError, match="--case NAME"):
            read_arguments(file, case)


@pytest.mark.parametrize("framework", ["megatron", "mindspeed"])
def test_unusable_values_are_refused_never_crash(framework: str) -> None:
    """Every understood flag with values that make no sense ends in a configuration or in a named refusal."""
    experts = {"num-experts": "8", "pipeline-model-parallel-size": "2", "recompute-granularity": "full"}
    refused = 0
    for flag in sorted(UNDERSTOOD):
        for value in ("x", "0", "-1"):
            given = {**BASE, **experts, flag: value}
            try:
                configuration_from_arguments(given, cluster="h100", num_devices=8, framework=framework)
            except PrismError:
                refused += 1
    assert refused > len(UNDERSTOOD) // 2


YAML_FORM = """
language_model:
  num_layers: 12
  hidden_size: 512
  num_attention_heads: 8
  num_query_groups: 2
  ffn_hidden_size: 1344
  kv_channels: null
  hidden_dropout: 0.0
  attention_dropout: 0.0
  add_bias_linear: False
  gated_linear_unit: False
  activation_func: swiglu
  num_moe_experts: 8
  bias_swiglu_fusion: False
  masked_softmax_fusion: True
  normalization: RMSNorm
  moe_router_topk: 2
  moe_layer_freq: [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
  recompute_granularity: selective
  recompute_modules: [moe, layernorm]
  fp8: null
model_parallel:
  tensor_model_parallel_size: 2
  sequence_parallel: True
  bf16: True
  gradient_accumulation_fusion: True
  cpu_offloading: False
  cpu_offloading_activations: True
  cpu_offloading_num_layers: 0
position_embedding_type: rope
untie_embeddings_and_output_weights: True
seq_length: 1024
micro_batch_size: 4
global_batch_size: 32
rampup_batch_size: [32, 32, 65324160]
tokenizer_type: GPT2BPETokenizer
use_distributed_optimizer: True
scatter_gather_tensors_in_pipeline: True
"""
SAME_AS_TEXT = """
--num-layers 12 --hidden-size 512 --num-attention-heads 8 --group-query-attention --num-query-groups 2
--ffn-hidden-size 1344 --hidden-dropout 0 --attention-dropout 0 --disable-bias-linear --swiglu --num-experts 8
--no-bias-swiglu-fusion --normalization RMSNorm --moe-router-topk 2 --moe-layer-freq ([0]*1+[1]*11)
--recompute-granularity selective --recompute-modules moe layernorm --tensor-model-parallel-size 2 --sequence-parallel
--bf16 --position-embedding-type rope --untie-embeddings-and-output-weights --seq-length 1024 --micro-batch-size 4
--global-batch-size 32 --tokenizer-type GPT2BPETokenizer --use-distributed-optimizer
"""


def from_file(path: Path) -> Configuration:
    return configuration_from_arguments(read_arguments(path), cluster="h100", num_devices=8)


def test_yaml_form_says_the_same_as_flags(tmp_path: Path) -> None:
    yaml, text, nested = tmp_path / "run.yaml", tmp_path / "run.txt", tmp_path / "case.yml"
    yaml.write_text(YAML_FORM)
    text.write_text(SAME_AS_TEXT)
    nested.write_text("ENV_VARS: {SKIP: 1}\nMODEL_ARGS:\n" + "".join(f"  --{k}: {v}\n" for k, v in BASE.items()))
    assert from_file(yaml) == from_file(text)
    assert from_file(yaml).instance.model.num_layers == 12
    assert from_file(nested) == configuration()


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("no_such_value: 3", "--no-such-value 3: unknown flag"),
        ("fsdp_double_buffer: True", "--fsdp-double-buffer"),
        ("cpu_offloading: True", "--cpu-offloading"),
        ("trainer: {steps: 3}", "trainer is a mapping"),
        ("activation_func: relu", "activation_func 'relu'"),
        ("recompute_modules: [{moe: 1}]", "recompute_modules"),
    ],
)
def test_yaml_form_refuses_by_name(tmp_path: Path, line: str, named: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("num_layers: 2\n" + line)
    with pytest.raises(PrismError, match=re.escape(named)):
        from_file(path)


@pytest.mark.parametrize(
    ("strategy", "zero"), [("no_shard", 0), ("optim", 1), ("optim_grads", 2), ('"optim_grads_params"', 3)]
)
def test_megatron_fsdp_strategies_are_the_stages_of_zero(strategy: str, zero: int) -> None:
    flags_ = {"use_megatron_fsdp": "true", "data_parallel_sharding_strategy": strategy}
    run = configuration(**flags_, megatron_fsdp_grad_comm_dtype="bf16", init_model_with_meta_device="true")
    assert run.layout.zero == zero
    assert (run.instance.profile.gradient_bytes, run.instance.profile.gradient_reduce_bytes) == (4, 2)


def test_dualpipev_places_two_pieces_on_a_rank() -> None:
    run = configuration(pipeline_model_parallel_size="2", schedules_method="dualpipev", global_batch_size="64")
    assert (run.layout.schedule, run.layout.vpp) == ("dualpipev", 2)
    bounds = run.assignment.boundaries
    assert tuple(b - a for a, b in itertools.pairwise(bounds)) == (3, 3, 3, 3)
    assert estimate(run).iteration_s > 0


# Features that change memory or time and are not modelled: each is refused with its flag and the reason.
NOT_MODELLED = {
    "layer-wise optimizer": ("use_layer_wise_distributed_optimizer", "true", "layer-wise distributed optimizer"),
    "optimizer without momenta": ("optimizer", "sgd", "is not modelled"),
    "copies of optimizer states": ("enable_optimizer_state_local_copy", "true", "copies of optimizer states"),
    "sharding over two levels": ("num_distributed_optimizer_instances", "2", "Megatron-FSDP"),
    "outer sharding": ("outer_dp_sharding_strategy", "optim", "is not modelled"),
    "double buffers": ("fsdp_double_buffer", "true", "persistent buffers"),
    "FSDP2": ("use_torch_fsdp2", "true", "FSDP2"),
    "activation offload of unknown modules": ("offload_modules", "[dense_fc1]", "qkv_linear"),
    "activation offload of an output that stays": ("offload_modules", "[attn_proj]", "only with core_attn"),
    "activation offload by layer": ("cpu_offloading", "true", "offloading of activations"),
    "activation swap of another framework": ("swap_attention", "true", "is no flag of megatron"),
    "swap in latent attention": ("mla_swap_core_attn_out", "true", "offloading of activations"),
    "two-dimensional tensor parallelism": ("tp_2d", "true", "two-dimensional tensor parallelism"),
    "nd matmul": ("use_nd_matmul", "true", "two-dimensional tensor parallelism"),
    "other schedule": ("schedules_method", "zb", "dualpipev"),
    "uneven DualPipeV": ("num_layer_list", "5,7", "dualpipev"),
    "forward-backward overlap": ("moe_fb_overlap", "true", "overlap of forward and backward"),
    "indexer": ("enable_dsa_indexer", "true", "indexer"),
    "fused operations": ("use_transformer_engine_op_fuser", "true", "fused operations"),
}


@pytest.mark.parametrize("feature", NOT_MODELLED)
def test_what_is_not_modelled_is_refused_with_its_flag(feature: str) -> None:
    flag, value, reason = NOT_MODELLED[feature]
    around = {"pipeline_model_parallel_size": "2", "schedules_method": "dualpipev", "use_megatron_fsdp": "true"}
    around |= {"fine_grained_activation_offloading": "true", "offload_modules": "[core_attn]"}
    with pytest.raises(UnsupportedArgument) as caught:
        configuration(**{**around, flag: value})
    assert reason in str(caught.value)
    assert f"--{flag.replace('_', '-')}" in str(caught.value)


def test_variants_of_the_distributed_optimizer_that_are_modelled() -> None:
    """Sharded over a part of the ranks, offloaded, swapped, kept in the upper halves of the master weights."""
    sharded = estimate(configuration(use_distributed_optimizer="true")).ranks[0].steady_gib
    changes = {
        "num_distributed_optimizer_instances": ("2", 1),
        "optimizer_cpu_offload": ("true", -1),
        "swap_optimizer": ("true", -1),
        "reuse_fp32_param": ("true", -1),
    }
    for flag, (value, sign) in changes.items():
        changed = estimate(configuration(use_distributed_optimizer="true", **{flag: value})).ranks[0].steady_gib
        assert (changed - sharded) * sign > 0, flag


def test_offloaded_activations_are_modules_of_the_profile() -> None:
    flags_ = {"fine_grained_activation_offloading": "true", "offload_modules": '"[core_attn attn_proj mlp_norm]"'}
    away, here = configuration(**flags_), configuration(offload_modules="[core_attn]")
    assert away.instance.profile.offload_modules == ("core_attn", "attn_proj", "mlp_norm")
    assert here.instance.profile.offload_modules == ()
    assert estimate(away).ranks[0].peak_gib < estimate(here).ranks[0].peak_gib


def test_mamba_2_is_refused_where_its_scan_is_not_fused() -> None:
    flags_ = {**BASE, "mamba-d-conv": "4", "mamba-chunk-size": "256"}
    with pytest.raises(UnsupportedArgument, match=r"--mamba-chunk-size 256: .*scans unfused"):
        configuration_from_arguments(flags_, cluster="910b", num_devices=8, framework="mindspeed")
    assert configuration_from_arguments(flags_, cluster="h100", num_devices=8).instance.model.chain == ("mamba",) * 12


def test_every_refused_flag_is_named_with_its_reason() -> None:
    for flag, reason in REFUSED.items():
        with pytest.raises(UnsupportedArgument) as caught:
            Arguments({f"--{flag}": "7"})
        assert str(caught.value) == f"--{flag} 7: {reason}"
        Arguments({flag: "false"})  # switched off, it says nothing


def test_an_unknown_flag_is_refused_whatever_its_number() -> None:
    with pytest.raises(UnsupportedArgument, match=r"--new-thing 0: unknown flag"):
        Arguments({"new-thing": "0"})
    with pytest.raises(UnsupportedArgument, match=r"--num_layers 4: unknown flag \(accepted: --num-layers"):
        Arguments({"num_layers": "4"})
    assert not Arguments({"new-thing": "false", "num-layers": None}).given.get("num-layers")


@pytest.mark.parametrize("word", ["-tp", "tensor-model-parallel-size"])
def test_a_flag_without_its_dashes_is_no_value(word: str) -> None:
    with pytest.raises(UsageError, match=f"'{word}' after --swiglu looks like a flag"):
        arguments_from_text(f"--swiglu {word} 2 --lr -1e-4")
    assert arguments_from_text("--min-lr -1e-4") == {"min-lr": "-1e-4"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_experts": "4", "moe_router_topk": "9"}, "top_k: 9 of 4 experts"),
        ({"group_query_attention": "true", "num_query_groups": "3"}, "num_key_value_heads: 3 does not divide 8"),
        ({"expert_model_parallel_size": "2"}, "layout.ep: 2 but .* has no experts"),
        ({"num_experts": "4", "expert_model_parallel_size": "3"}, "layout.ep: 3 does not divide 4 experts"),
        ({"tensor_model_parallel_size": "8", "num_attention_heads": "4"}, "layout.tp: 8 does not divide 4 heads"),
        (
            {"tensor_model_parallel_size": "2", "sequence_parallel": "true", "seq_length": "1023"},
            "layout.sp: tp 2 does not divide the 1023 tokens",
        ),
        ({"seq_length": "2048"}, "job.seq_len: 2048 exceeds the 1024 learned positions"),
        ({"optimizer_cpu_offload": "true", "optimizer_offload_fraction": "3"}, "a number from 0 to 1"),
        ({"exp_avg_dtype": "bf16"}, "--exp-avg-dtype bf16: needs --use-precision-aware-optimizer"),
        ({"pipeline_model_parallel_layout": "E(t*9999)*9999|L"}, "too many stages"),
        ({"pipeline_model_parallel_layout": "E(t*12|L"}, "is not modelled"),
        ({"pipeline_model_parallel_layout": "EEt*12|L"}, "is not modelled"),
        ({"pipeline_model_parallel_layout": "Et*12|mL"}, "places 1 of 0 multi-token-prediction layers"),
        (
            {"pipeline_model_parallel_layout": "Et*12|L", "mtp_num_layers": "1"},
            "places 0 of 1 multi-token-prediction layers",
        ),
        ({"global_batch_size": "99999968", "micro_batch_size": "1"}, "micro-batches on 1 stages are too many"),
    ],
)
def test_sizes_that_contradict_each_other_are_named(changes: dict[str, str], named: str) -> None:
    with pytest.raises(PrismError, match=named):
        configuration(**changes)


def test_expert_tensor_parallelism_means_nothing_without_experts() -> None:
    assert configuration(expert_tensor_parallel_size="4").layout.etp == 1


SWAPPING = {"use-mcore-models": "true", "use-flash-attn": "true", "swap-attention": "true", "attention-dropout": "0"}


def swapping(**changes: str) -> Configuration:
    """The small layers under MindSpeed with attention swapped to the host."""
    added = {name.replace("_", "-"): value for name, value in changes.items()}
    given = {**BASE, **SWAPPING, **added}
    return configuration_from_arguments(given, cluster="910b", num_devices=8, framework="mindspeed")


def test_swapped_attention_leaves_but_for_the_layer_at_work() -> None:
    small_head = {"padded_vocab_size": "512"}  # so that the peak is in a layer's backward pass
    here, away = swapping(swap_attention="false", **small_head), swapping(**small_head)
    assert away.instance.profile.offload_modules == ("qkv_linear", "core_attn", "attn_proj")
    assert swapping(swap_modules="input_norm").instance.profile.offload_modules == ()
    before, after = (estimate(run).ranks[0] for run in (here, away))
    assert before.steady_gib == after.steady_gib
    # of eleven of the twelve layers: the norm's output, query, key, value and the output, 512 wide for 4 x 1,024 tokens
    gone = 11 * 2 * 4096 * 5 * 512
    for phase in ("first step", "later steps"):
        assert (before.phases_gib[phase] - after.phases_gib[phase]) * 2**30 == pytest.approx(gone, abs=2**14)


@pytest.mark.parametrize(
    ("changes", "recomputed"),
    [
        ({"recompute_num_layers": "1"}, [1, 1, 1, 1]),
        ({"recompute_num_layers": "1", "enable_recompute_layers_per_pp_rank": "true"}, [1, 1, 0, 0]),
        ({"recompute_num_layers": "3", "enable_recompute_layers_per_pp_rank": "true"}, [2, 2, 1, 1]),
        ({"recompute_num_layers": "9", "enable_recompute_layers_per_pp_rank": "true"}, [3, 3, 3, 3]),
        ({"recompute_method": "uniform"}, [3, 3, 3, 3]),
        ({"recompute_method": "block", "recompute_num_layers": "3"}, [3, 3, 3, 3]),
        ({}, [0, 0, 0, 0]),
    ],
)
def test_recomputed_layers_beside_swapping_are_feed_forwards(changes: dict[str, str], recomputed: list[int]) -> None:
    pipelined = {"pipeline_model_parallel_size": "2", "num_layers_per_virtual_pipeline_stage": "3"}
    run = swapping(**pipelined, **changes)
    names = [strategy.name for strategy in strategies_for(run.instance.model.chain[0], run.instance)]
    index = names.index("mlp") if "mlp" in names else None
    assert [0 if index is None else counts[0][index] for counts in run.assignment.counts] == recomputed


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"use_mcore_models": "false"}, "without --use-mcore-models"),
        ({"use_flash_attn": "false"}, "without --use-flash-attn"),
        ({"qk_layernorm": "true"}, "with --qk-layernorm"),
        ({"recompute_granularity": "full"}, "with --recompute-granularity"),
        ({"context_parallel_size": "2"}, "with context parallelism"),
        ({"swap_modules": "mlp"}, "--swap-modules mlp"),
        (
            {"recompute_method": "block", "recompute_num_layers": "2"},
            "--recompute-num-layers 2: swaps some layers only",
        ),
    ],
)
def test_swapping_beside_what_is_not_known_is_refused(changes: dict[str, str], named: str) -> None:
    with pytest.raises(UnsupportedArgument, match=named):
        swapping(**changes)
