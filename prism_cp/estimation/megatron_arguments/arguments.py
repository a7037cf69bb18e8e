"""From arguments to a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from prism_cp.errors import InstanceError
from prism_cp.estimation.configuration import Configuration, configure
from prism_cp.estimation.megatron_arguments.model import is_hybrid, model_from_arguments
from prism_cp.estimation.megatron_arguments.placement import layout_from_arguments, recomputation, stage_layers
from prism_cp.estimation.megatron_arguments.profile import profile_from_arguments, release_number
from prism_cp.estimation.megatron_arguments.reading import Arguments, UnsupportedArgument
from prism_cp.inputs.consistency import check_state_space
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.job import Job
from prism_cp.inputs.layout import Layout
from prism_cp.inputs.parts import build_cluster, expand_cluster

FRAMEWORKS = ("megatron", "mindspeed")
PROGRAMS = ("gpt", "bert", "t5")


def configuration_from_arguments(
    given: Mapping[str, Any],
    *,
    cluster: str,
    num_devices: int | None = None,
    framework: str = "megatron",
    program: str = "gpt",
    release: str = "",
    name: str = "megatron-arguments",
) -> Configuration:
    """The run that Megatron-LM's or MindSpeed-LLM's arguments describe.

    Parameters
    ----------
    given
        Flags (with or without leading dashes) and values; a flag without a value is ``true``.
    cluster
        Catalogue name of the cluster family.
    num_devices
        None: ``nnodes`` x ``nproc_per_node`` of the arguments.
    framework
        ``megatron`` or ``mindspeed``.
    program
        Training program: ``pretrain_gpt.py``, ``pretrain_bert.py`` or ``pretrain_t5.py``.
    release
        Of the framework, as in ``2.1.0``; empty: the newest.

    Raises
    ------
    UnsupportedArgument
        A flag or value is not modelled; it is named.
    """
    try:
        return _configuration(Arguments(given), cluster, num_devices, framework, program, release, name)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InstanceError(where, f"{first['input']} from the arguments: {first['msg']}") from error


def _configuration(
    arguments: Arguments,
    cluster: str,
    num_devices: int | None,
    framework: str,
    program: str,
    release: str,
    name: str,
) -> Configuration:
    if program == "t5":
        raise UnsupportedArgument("program", program, "encoders with decoders are not modelled", "gpt, bert")
    devices = num_devices or arguments.size("nnodes", 1) * arguments.size("nproc_per_node")
    model, multiple = model_from_arguments(arguments, name, program)
    layout = layout_from_arguments(arguments, devices)
    built = build_cluster(expand_cluster({"name": cluster, "num_devices": devices}, None))  # type: ignore[arg-type]
    instance = Instance(
        name=name,
        model=model,
        cluster=built,
        job=_job(arguments, multiple, layout.mbs * layout.dp * layout.num_microbatches),
        profile=profile_from_arguments(arguments, framework, built.device, release),
    )
    _refuse_unfused_scan(arguments, instance)
    pieces = stage_layers(arguments, layout.pp, layout.vpp)
    texts, chunk = recomputation(arguments, model, pieces, layout.pp)
    return configure(
        instance,
        layout,
        stage_layers=pieces,
        recompute=texts,
        uniform_chunk_layers=chunk,
        optimizer_offload_fraction=_offloaded(arguments),
        deferred_projections=arguments.integer("wgrad-deferral-limit", 0) if _defers(arguments) else 0,
        layer_buffer_bytes=_legacy_mask_bytes(arguments, framework),
        all_forwards_first=_all_forwards_first(layout, release),
        whole_blocks=_has_whole_blocks(framework),
    )


def _has_whole_blocks(framework: str) -> bool:
    """MindSpeed-LLM's scripts ask the allocator for segments that grow, which it can cut anywhere."""
    return framework == "megatron"


def _refuse_unfused_scan(arguments: Arguments, instance: Instance) -> None:
    """Name the flag where the instance's profile refuses the layers of a hybrid model."""
    if is_hybrid(arguments):
        try:
            check_state_space(instance.model, instance.profile)
        except InstanceError as error:
            text = arguments.text("mamba-chunk-size")
            raise UnsupportedArgument("mamba-chunk-size", text, error.problem) from error


def _all_forwards_first(layout: Layout, release: str) -> bool:
    """The older interleaving with as many micro-batches as ranks (Megatron-LM core/pipeline_parallel/schedules.py)."""
    few = layout.schedule == "interleaved" and layout.num_microbatches == layout.pp
    return few and release_number(release) <= (2, 1)


def _defers(arguments: Arguments) -> bool:
    """Whether weight gradients of the output projection wait; without a limit all of them would."""
    defers = arguments.has("defer-embedding-wgrad-compute")
    if defers and not arguments.integer("wgrad-deferral-limit", 0):
        reason = "is missing: all micro-batches' weight gradients would wait"
        raise UnsupportedArgument("wgrad-deferral-limit", "", reason, "a number of micro-batches")
    return defers


def _legacy_mask_bytes(arguments: Arguments, framework: str) -> int:
    """MindSpeed-LLM's layers before Megatron core keep one attention mask of sequence x sequence bytes each."""
    legacy = framework == "mindspeed" and not arguments.has("use-mcore-models") and arguments.has("use-flash-attn")
    return arguments.size("seq-length") ** 2 if legacy else 0


def _offloaded(arguments: Arguments) -> float:
    if arguments.has("swap-optimizer"):
        return 1.0
    return arguments.number("optimizer-offload-fraction", 1.0, 1.0) if arguments.has("optimizer-cpu-offload") else 0.0


def _job(arguments: Arguments, multiple: int, gbs: int) -> Job:
    precision = "fp16" if arguments.has("fp16") else "bf16"
    if precision == "bf16" and not arguments.has("bf16"):
        raise UnsupportedArgument("bf16", "", "is missing: training in fp32 is not modelled", "bf16, fp16")
    if arguments.has("fp8") or arguments.has("fp8-format"):
        precision = "fp8"
    capacity = arguments.number("moe-expert-capacity-factor", 0.0)
    if capacity and not arguments.has("moe-pad-expert-input-to-capacity"):
        capacity = 0.0
    return Job(
        gbs=gbs,
        seq_len=arguments.size("seq-length"),
        precision=precision,  # type: ignore[arg-type]
        capacity_factor=capacity or None,
        vocab_padding=multiple,
        dropout=arguments.number("hidden-dropout", 0.1) > 0,
        attention_dropout=arguments.number("attention-dropout", 0.1) > 0,
    )
