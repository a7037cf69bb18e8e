"""Arguments as YAML: Megatron-LM's ``--yaml-cfg`` files and the ``MODEL_ARGS`` of its functional tests, as flags.

The YAML form names values as the framework holds them: underscores, sections ``language_model`` and
``model_parallel``, and ``add_bias_linear: false`` where the command line says ``--disable-bias-linear``
(megatron/training/yaml_arguments.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prism_cp.errors import UsageError
from prism_cp.estimation.megatron_arguments.flags import IRRELEVANT, REFUSED, UNDERSTOOD
from prism_cp.inputs.reading import read_mapping

SUFFIXES = (".yaml", ".yml")
_SECTIONS = ("language_model", "model_parallel")
_FLAGS = {flag.replace("-", "_"): flag for flag in (*UNDERSTOOD, *IRRELEVANT, *REFUSED)}
# Values that are on unless a flag of the command line turns them off.
_ON_BY_DEFAULT = {
    "add_bias_linear": "disable-bias-linear",
    "add_position_embedding": "no-position-embedding",
    "bias_swiglu_fusion": "no-bias-swiglu-fusion",
    "gradient_accumulation_fusion": "no-gradient-accumulation-fusion",
}
_RENAMED = {"num_moe_experts": "num-experts", "fp8": "fp8-format"}
_ACTIVATIONS = {"gelu": (), "swiglu": ("swiglu",), "squaredrelu": ("squared-relu",)}
# What the YAML form holds besides arguments: fields of the core's configuration that change neither memory nor time,
# or that only count together with a switch which is an argument (those of offloading, under `cpu_offloading`).
_FIELDS_TEXT = """
    apply_rope_fusion async_tensor_model_parallel_allreduce autocast_dtype barrier_with_L1_time batch_p2p_comm
    batch_p2p_sync bert_binary_head bias_activation_fusion bias_dropout_fusion clone_scatter_output_in_embedding
    cpu_offloading_activations cpu_offloading_weights deallocate_pipeline_outputs delay_grad_reduce delay_param_gather
    enable_autocast layernorm_zero_centered_gamma log_learning_rate_to_tensorboard log_loss_scale_to_tensorboard
    log_memory_to_tensorboard log_num_zeros_in_grad log_params_norm log_progress log_throughput
    log_timers_to_tensorboard log_validation_ppl_to_tensorboard log_world_size_to_tensorboard masked_softmax_fusion
    memory_efficient_layer_norm overlap_p2p_comm override_opt_param_scheduler persist_layer_norm profile_ranks
    scatter_gather_tensors_in_pipeline tp_comm_atomic_ag tp_comm_atomic_rs tp_comm_bulk_dgrad tp_comm_bulk_wgrad
    tp_comm_split_ag tp_comm_split_rs use_checkpoint_opt_param_scheduler
"""
_FIELDS = frozenset(_FIELDS_TEXT.split())


def arguments_from_yaml(path: Path) -> dict[str, str]:
    """Flags and values of a YAML file.

    Raises
    ------
    UsageError
        A section is not one of the form's, or a value is no scalar or list.
    """
    mapping = read_mapping(path)
    if isinstance(mapping.get("MODEL_ARGS"), dict):
        mapping = mapping["MODEL_ARGS"]
    found: dict[str, str] = {}
    for key, value in _entries(mapping, path):
        found.update(_flags(key.lstrip("-").replace("-", "_"), value, path))
    if not found:
        raise UsageError(f"{path}: no argument in it (accepted: Megatron-LM arguments)")
    return found


def _entries(mapping: Mapping[str, Any], path: Path) -> Iterator[tuple[str, Any]]:
    """Keys and values, sections opened; a null is no value."""
    for key, value in mapping.items():
        if isinstance(value, dict):
            if key not in _SECTIONS:
                sections = ", ".join((*_SECTIONS, "MODEL_ARGS"))
                raise UsageError(f"{path}: {key} is a mapping (accepted: a value; sections {sections})")
            yield from _entries(value, path)
        elif value is not None:
            yield key, value


def _flags(key: str, value: Any, path: Path) -> dict[str, str]:
    """What the command line says for one entry; nothing where it is the default there."""
    if key in _ON_BY_DEFAULT and isinstance(value, bool):
        return {} if value else {_ON_BY_DEFAULT[key]: "true"}
    if key in _FIELDS:
        return {}
    if key == "activation_func":
        if value not in _ACTIVATIONS:
            raise UsageError(f"{path}: activation_func {value!r} (accepted: {', '.join(_ACTIVATIONS)})")
        return dict.fromkeys(_ACTIVATIONS[value], "true")
    if key == "gated_linear_unit":  # with swiglu the file may say either
        return {"geglu": "true"} if value is True else {}
    flag = _RENAMED.get(key) or _FLAGS.get(key) or key.replace("_", "-")
    found = {flag: _text(key, value, path)}
    if key == "num_query_groups":
        found["group-query-attention"] = "true"
    return found


def _text(key: str, value: Any, path: Path) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        if all(isinstance(item, int) and not isinstance(item, bool) for item in value):
            numbers = ",".join(map(str, value))
            return f"[{numbers}]" if key.endswith("freq") else numbers
        if all(isinstance(item, str) for item in value):
            return " ".join(value)
        raise UsageError(f"{path}: {key} {value} (accepted: a list of numbers or of words)")
    return str(value)
