"""Inputs room: a HuggingFace ``config.json`` (as a dict) to a `Model`.

What a configuration does not say is taken from the default that the ``transformers`` configuration class of its family
documents, but only where that default cannot mislead (a bias flag, tied embeddings, the alternation of layer types).
Sizes are never guessed: a missing one is refused with its key. Only the language model of a multi-modal
configuration is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from prism_cp.errors import InstanceError
from prism_cp.inputs import huggingface_dense as dense
from prism_cp.inputs import huggingface_moe as moe
from prism_cp.inputs import huggingface_state_space as state_space
from prism_cp.inputs.huggingface_keys import Keys
from prism_cp.inputs.model import Model
from prism_cp.inputs.suggest import accepted_names, shown


def model_from_huggingface(config: Mapping[str, Any], name: str, source: str = "") -> Model:
    """Translate a HuggingFace configuration.

    Parameters
    ----------
    config : mapping
        The parsed ``config.json``; ``model_type`` selects the family. Keys that do not change shapes are ignored.
    name : str
        Name of the resulting model.
    source : str
        Where the configuration comes from.

    Raises
    ------
    InstanceError
        Unknown ``model_type``, a missing or ill-typed key, or a feature whose shapes are not modelled.

    Notes
    -----
    Shapes follow the ``modeling_*.py`` files of github.com/huggingface/transformers.
    """
    if not isinstance(config, Mapping):
        raise InstanceError("", f"{shown(config)} is no HuggingFace configuration", "a mapping", source)
    family = config.get("model_type")
    if isinstance(family, str) and family in _NESTED:
        if not isinstance(config.get("text_config"), Mapping):
            raise InstanceError("text_config", "is missing", "the language model's configuration", source)
        outer, family = config, _NESTED[family]
        config = {**outer["text_config"], "model_type": family}
        if "tie_word_embeddings" in outer:
            config.setdefault("tie_word_embeddings", outer["tie_word_embeddings"])
    if "model_type" not in config:
        raise InstanceError("model_type", "is missing", accepted_names("", supported_families()), source)
    if isinstance(family, str) and family in _NOT_MODELLED:
        raise InstanceError("model_type", f"{family}: {_NOT_MODELLED[family]}", "another family", source)
    if not isinstance(family, str) or family not in _FAMILIES:
        problem = f"{shown(family)} is not understood"
        raise InstanceError("model_type", problem, accepted_names(family, supported_families()), source)
    return _FAMILIES[family](Keys(config, source), name)


def supported_families() -> list[str]:
    """Every accepted value of ``model_type``."""
    return sorted({*_FAMILIES, *_NESTED})


_NESTED = {  # multi-modal configurations with a text_config
    "llama4": "llama4_text",
    "gemma3": "gemma3_text",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
}
_FAMILIES: dict[str, Callable[[Keys, str], Model]] = {
    "llama": dense.llama,
    "mistral": dense.mistral,
    "llama4_text": moe.llama4,
    "mixtral": moe.mixtral,
    "qwen2": lambda keys, name: moe.qwen(keys, name, mixture=False, third=False),
    "qwen2_moe": lambda keys, name: moe.qwen(keys, name, mixture=True, third=False),
    "qwen3": lambda keys, name: moe.qwen(keys, name, mixture=False, third=True),
    "qwen3_moe": lambda keys, name: moe.qwen(keys, name, mixture=True, third=True),
    "qwen3_next": moe.qwen3_next,
    "qwen3_5_text": lambda keys, name: moe.qwen3_next(keys, name, mixture=False),
    "qwen3_5_moe_text": lambda keys, name: moe.qwen3_next(keys, name, mixture=True),
    "glm4_moe": moe.glm4_moe,
    "deepseek_v2": lambda keys, name: moe.deepseek(keys, name, mtp=False),
    "deepseek_v3": lambda keys, name: moe.deepseek(keys, name, mtp=True),
    "kimi_k2": lambda keys, name: moe.deepseek(keys, name, mtp=True),
    "gpt_oss": moe.gpt_oss,
    "gemma": dense.gemma,
    "gemma2": dense.gemma2,
    "gemma3_text": dense.gemma3,
    "nemotron": dense.nemotron,
    "nemotron_h": state_space.nemotron_h,
    "mamba2": state_space.mamba2,
    "bamba": state_space.bamba,
    "gpt2": dense.gpt2,
    "gpt_neox": dense.gpt_neox,
    "falcon": dense.falcon,
    "bloom": dense.bloom,
}
_NOT_MODELLED = {
    "deepseek_v32": "sparse attention with an indexer is not modelled",
    "deepseek_v4": "sparse attention with an indexer is not modelled",
    "glm_moe_dsa": "sparse attention with an indexer is not modelled",
    "falcon_h1": "attention and Mamba-2 side by side in one layer are not modelled",
    "jamba": "Mamba-1 layers are not modelled",
    "falcon_mamba": "Mamba-1 layers are not modelled",
    "mamba": "Mamba-1 layers are not modelled",
    "zamba": "layers that share their weights are not modelled",
    "zamba2": "layers that share their weights are not modelled",
    "kimi_linear": "Kimi's delta attention is not modelled",
    "t5": "encoders with decoders are not modelled",
}
