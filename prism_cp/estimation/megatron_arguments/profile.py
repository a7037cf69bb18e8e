"""Profiles from arguments: what the framework does with memory and communication under these flags."""

from __future__ import annotations

import re
from typing import Any, get_args

from prism_cp.estimation.megatron_arguments.reading import Arguments, UnsupportedArgument
from prism_cp.estimation.megatron_arguments.swapping import LAYERS_ON_DEVICE, MODULES, swaps_attention
from prism_cp.inputs.catalog import catalog_entry
from prism_cp.inputs.cluster import Device
from prism_cp.inputs.job import OffloadModule, Profile
from prism_cp.inputs.parts import build_profile

NEWEST = (10**6,)
DTYPE_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
MIB = 2**20
HOPPER = ("h100", "h200", "h800", "h20", "gh200")
AMPERE = ("a100", "a800")
CUBLAS_THREADS = 2  # the forward and the autograd thread have a workspace each
# PyTorch aten/src/ATen/cuda/CublasHandlePool.cpp: 32 MiB from Hopper on, before that two pieces of 4 MiB and eight of
# 16 KiB. Deterministic runs set CUBLAS_WORKSPACE_CONFIG=:4096:8, which is 32 MiB everywhere.
CUBLAS_BYTES, OLDER_CUBLAS_BYTES = 32 * MIB, 8 * MIB + 128 * 1024
# Transformer Engine transformer_engine/pytorch/module/base.py get_cublas_workspace_size_bytes
ENGINE_BYTES, OLDER_ENGINE_BYTES = 32 * MIB, 4 * MIB
GROUPED_GEMM_STREAMS = 4


def profile_from_arguments(arguments: Arguments, framework: str, device: Device, release: str = "") -> Profile:
    """The catalogue's profile of the framework with what the arguments change.

    Parameters
    ----------
    framework
        ``megatron`` or ``mindspeed``.
    release
        Of the framework; empty: the newest.
    """
    raw = catalog_entry("profiles", framework)
    changes = _common(arguments)
    if framework == "mindspeed":
        changes |= _mindspeed(arguments, release)
    else:
        changes |= _megatron(arguments, device)
    if swaps_attention(arguments, framework):
        changes |= {"offload_modules": MODULES, "offload_layers_on_device": LAYERS_ON_DEVICE}
    source = {**raw["source"], **dict.fromkeys(changes, "the run's arguments")}
    return build_profile({**raw, **changes, "source": source})


def release_number(release: str) -> tuple[int, ...]:
    """First two numbers of a release; larger than any when it is empty, the newest."""
    return tuple(int(part) for part in re.findall(r"\d+", release)[:2]) or NEWEST


def _common(arguments: Arguments) -> dict[str, Any]:
    changes: dict[str, Any] = {
        "gradient_bytes": _gradient_bytes(arguments),
        "optimizer_instances": arguments.size("num-distributed-optimizer-instances", 1),
        "overlap_grad_reduce": arguments.has("overlap-grad-reduce"),
        "overlap_param_gather": arguments.has("overlap-param-gather"),
        "tp_overlap": arguments.has("tp-comm-overlap") or arguments.has("use-ascend-mc2"),
        "fp8_parameters": arguments.has("fp8-param-gather"),
        "fp8_activation_input": arguments.has("activation-func-fp8-input-store"),
        "bucket_parameters": arguments.size("ddp-bucket-size", 40_000_000),
        "offload_modules": _offload_modules(arguments),
        **_dispatcher(arguments),
        **_optimizer(arguments),
    }
    changes["gradient_reduce_bytes"] = changes["gradient_bytes"]
    if arguments.has("megatron-fsdp-grad-comm-dtype"):
        wire = arguments.one_of("megatron-fsdp-grad-comm-dtype", "fp32", ("fp32", "bf16"))
        changes["gradient_reduce_bytes"] = DTYPE_BYTES[wire]
    return changes


def _offload_modules(arguments: Arguments) -> tuple[str, ...]:
    if not arguments.has("fine-grained-activation-offloading"):
        return ()
    accepted = get_args(OffloadModule)
    modules = re.findall(r"\w+", arguments.text("offload-modules"))
    for module in modules:
        if module not in accepted:
            raise UnsupportedArgument("offload-modules", module, "is not modelled", ", ".join(accepted))
    if not modules or ("attn_proj" in modules and "core_attn" not in modules):
        text = arguments.text("offload-modules")
        raise UnsupportedArgument("offload-modules", text, "is no set of modules", "attn_proj only with core_attn")
    return tuple(modules)


def _gradient_bytes(arguments: Arguments) -> int:
    """Main gradients are fp32 under bf16 unless said otherwise, and 16 bits under fp16 unless said otherwise."""
    if arguments.has("grad-reduce-in-bf16"):
        return 2
    for flag in ("main-grads-dtype", "megatron-fsdp-main-grads-dtype"):
        if arguments.has(flag):
            return DTYPE_BYTES[arguments.one_of(flag, "fp32", ("fp32", "bf16"))]
    if arguments.has("fp16") and not arguments.has("accumulate-allreduce-grads-in-fp32"):
        return 2
    return 4


def _optimizer(arguments: Arguments) -> dict[str, Any]:
    kind = arguments.one_of("optimizer", "adam", ("adam", "muon", "dist_muon", "sgd"))
    if kind == "sgd":
        raise UnsupportedArgument("optimizer", kind, "is not modelled", "adam, muon")
    master, first, second = 4, 4, 4
    if arguments.has("use-precision-aware-optimizer"):
        master = DTYPE_BYTES[arguments.one_of("main-params-dtype", "fp32", ("fp32", "fp16"))]
        first = DTYPE_BYTES[arguments.one_of("exp-avg-dtype", "fp32", ("fp32", "bf16", "fp16", "fp8"))]
        second = DTYPE_BYTES[arguments.one_of("exp-avg-sq-dtype", "fp32", ("fp32", "bf16", "fp16", "fp8"))]
    else:
        _refuse_state_dtypes(arguments)
    # Megatron-FSDP without its own master weights keeps the 16-bit ones alone.
    arguments.one_of("megatron-fsdp-main-params-dtype", "fp32", ("fp32",))
    if arguments.has("reuse-fp32-param"):
        master -= 2  # the upper half of the master weights is the 16-bit weights' storage
    aware = {"precision_aware_optimizer": arguments.has("use-precision-aware-optimizer")}
    if kind != "adam":
        return {"optimizer": "muon", "optimizer_state_bytes": master + first, "optimizer_moment_bytes": first, **aware}
    return {"optimizer_state_bytes": master + first + second, "optimizer_moment_bytes": first + second, **aware}


def _refuse_state_dtypes(arguments: Arguments) -> None:
    """Without the precision-aware optimizer every state is fp32; Megatron-LM refuses other words."""
    for flag in ("main-params-dtype", "exp-avg-dtype", "exp-avg-sq-dtype"):
        if arguments.text(flag, "fp32") != "fp32":
            reason = "needs --use-precision-aware-optimizer"
            raise UnsupportedArgument(flag, arguments.text(flag), reason, "fp32")


def _dispatcher(arguments: Arguments) -> dict[str, Any]:
    kinds = ("allgather", "alltoall", "alltoall_seq", "flex")
    kind = arguments.one_of("moe-token-dispatcher-type", "allgather", kinds)
    if kind == "flex":
        kind = arguments.one_of("moe-flex-dispatcher-backend", "deepep", ("deepep", "hybridep"))
    return {"dispatcher": "alltoall" if kind == "alltoall_seq" else kind}


def _cross_entropy(arguments: Arguments, unfused_peak: int) -> dict[str, Any]:
    if not arguments.has("cross-entropy-loss-fusion"):
        return {"fused_cross_entropy": False, "loss_peak_bytes_per_logit": unfused_peak}
    implementation = arguments.one_of("cross-entropy-fusion-impl", "native", ("native", "te"))
    if implementation == "te":
        return {"fused_cross_entropy": True, "loss_peak_bytes_per_logit": 2}
    return {"fused_cross_entropy": False, "loss_peak_bytes_per_logit": 10}


def _megatron(arguments: Arguments, device: Device) -> dict[str, Any]:
    local = arguments.one_of("transformer-impl", "transformer_engine", ("transformer_engine", "local")) == "local"
    backend = arguments.one_of("attention-backend", "auto", ("auto", "flash", "fused", "unfused", "local"))
    fused_attention = backend in ("flash", "fused") or (backend == "auto" and not local)
    if local and arguments.has("use-flash-attn"):
        fused_attention = True
    ampere, hopper = device.name.startswith(AMPERE), device.name.startswith(HOPPER)
    deterministic = arguments.has("deterministic-mode")
    cublas = OLDER_CUBLAS_BYTES if ampere and not deterministic else CUBLAS_BYTES
    engine = OLDER_ENGINE_BYTES if ampere else ENGINE_BYTES
    grouped = arguments.has("moe-grouped-gemm") and not local
    # cuDNN's attention writes the layout that follows. It is not the choice on Ampere, and elsewhere than on Hopper it
    # has no deterministic backward pass with dropout: there the flash-attn package runs, whose output is copied.
    dropout = arguments.number("attention-dropout", 0.1) > 0
    copies = backend == "flash" or ampere or (deterministic and dropout and not hopper)
    # The overlapped exchange of two micro-batches computes on one more stream, with workspaces of its own.
    threads = CUBLAS_THREADS * (2 if arguments.has("overlap-moe-expert-parallel-comm") else 1)
    return {
        "workspace_bytes": threads * cublas + (0 if local and not arguments.has("num-experts") else engine),
        "grouped_gemm_workspace_bytes": GROUPED_GEMM_STREAMS * engine if grouped else 0,
        "dummy_weight_gradients": not arguments.has("no-gradient-accumulation-fusion"),
        "keeps_head_dummy": True,
        "fused_gated_activation": not arguments.has("no-bias-swiglu-fusion"),
        "transformer_engine": not local,
        "grouped_experts": grouped,
        "flash_attention": fused_attention,
        "attention_copies_output": fused_attention and copies,
        **_cross_entropy(arguments, 6),
    }


def _mindspeed(arguments: Arguments, release: str) -> dict[str, Any]:
    """Releases up to 2.1 subtract the maximum of the logits out of place; up to 2.3 Adam makes a whole temporary."""
    number = release_number(release)
    return {
        "flash_attention": arguments.has("use-flash-attn"),
        "keeps_score_buffer": arguments.text("position-embedding-type") != "alibi",
        "fused_gated_activation": arguments.has("use-fused-swiglu"),
        "rope_saves_input": arguments.has("use-fused-rotary-pos-emb"),
        "transformer_engine": False,
        "optimizer_step_copies_parameter": number <= (2, 3),
        "experts_in_one_tensor": arguments.has("moe-grouped-gemm"),
        "grouped_experts": arguments.has("moe-grouped-gemm"),
        "repeats_key_values": not arguments.has("use-mcore-models"),
        "ring_keeps_block": True,
        "pads_value_heads": not arguments.has("mla-fa-without-pad"),
        **_cross_entropy(arguments, 10 if number <= (2, 1) else 6),
    }
