"""Classes of the transformers library without memory for their weights, and their parameters by part of the model."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM

# The repository of Kimi K2 carries a copy of DeepSeek-V3's modelling file under another model_type.
SAME_CLASS = {"kimi_k2": "deepseek_v3"}

_LAYER = re.compile(r"(?:^|\.)(?:layers|h)\.(\d+)\.(.*)")
_PARTS = {
    "attention": {"self_attn", "attn", "attention", "self_attention", "linear_attn", "mamba"},
    "feed_forward": {"mlp", "feed_forward", "block_sparse_moe"},
}
_INSIDE_FEED_FORWARD = re.compile(r"mixer\.(up_proj|down_proj|gate|experts|shared_experts)\.")


def class_on_meta(config: dict[str, Any], **changes: Any) -> torch.nn.Module:
    """The causal language model of a HuggingFace configuration on PyTorch's meta device."""
    config = {**config, **changes}
    family = config.pop("model_type")
    configuration = CONFIG_MAPPING[SAME_CLASS.get(family, family)](**config)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(configuration)


def layer_part(name: str) -> str:
    """``attention``, ``feed_forward`` or ``norms``, from a parameter's name inside its layer."""
    first = name.split(".")[0]
    if first == "mixer":  # families whose layers are one block each
        return "feed_forward" if _INSIDE_FEED_FORWARD.match(name) else "attention"
    for part, names in _PARTS.items():
        if first in names:
            return part
    assert "norm" in first or first in ("ln_1", "ln_2"), name
    return "norms"


def end_part(name: str) -> str:
    """``embedding`` or ``head``, from the name of a parameter outside the layers."""
    if "lm_head" in name or "embed_out" in name:
        return "head"
    if "embed" in name or ".wte." in name or ".wpe." in name:
        return "embedding"
    assert "norm" in name or "ln_f" in name, name
    return "head"


def parameters_by_part(module: torch.nn.Module) -> dict[tuple[int | str, str], int]:
    """Elements by (layer number, part of the layer) and (``ends``, ``embedding`` or ``head``); tied weights once."""
    found: dict[tuple[int | str, str], int] = defaultdict(int)
    for name, parameter in module.named_parameters():
        layer = _LAYER.search(name)
        key = (int(layer[1]), layer_part(layer[2])) if layer else ("ends", end_part(name))
        found[key] += parameter.numel()
    return dict(found)
