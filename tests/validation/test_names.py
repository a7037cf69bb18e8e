"""Published names of models and systems, and pipeline layouts."""

from __future__ import annotations

import re

import pytest

from prism_cp.inputs.catalog import catalog_names
from prism_cp.validation.names import _patterns, cluster_family, model_name, num_layers_in_name
from prism_cp.validation.pipeline_layout import decoder_layers
from prism_cp.validation.rows import Skipped


@pytest.mark.parametrize(
    ("published", "name"),
    [
        ("Llama 3.1 70b [70b]", "llama-3.1-70b"),
        ("LLAMA3_8B", "llama-3.1-8b"),
        ("DeepSeekV3 (w/ MTP)", "deepseek-v3"),
        ("deepseekv2 (4 layers)", "deepseek-v2"),
        ("Qwen3_30B_a3B", "qwen3-30b-a3b"),
        ("NeMo Megatron", "gpt3-175b"),
        ("LLAMA4 maverick 400b", "llama-4-maverick"),
        ("turing-530B", "megatron-530b"),
    ],
)
def test_models(published: str, name: str) -> None:
    assert model_name(published) == name


def test_unknown_names_are_skipped_with_the_name() -> None:
    with pytest.raises(Skipped, match="'llama-99b'"):
        model_name("llama-99b")
    with pytest.raises(Skipped, match="'TPU v5p'"):
        cluster_family("TPU v5p")


def test_every_pattern_compiles_and_names_an_entry() -> None:
    for name, patterns in _patterns().items():
        assert name in catalog_names("models")
        assert all(re.compile(pattern) for pattern in patterns)


def test_systems() -> None:
    assert cluster_family("DGX H100 80GB HBM3") == "h100"
    assert cluster_family("H100 96GB HBM2e 2.4TB/s 500W (Grand Teton)") == "h100-96gb"
    assert cluster_family("DGX-GB200") == "gb200"
    assert cluster_family("a100_40gb") == "a100-40gb"


def test_layers_in_names() -> None:
    assert num_layers_in_name("llama3-70b (12 layers)") == 12
    assert num_layers_in_name("llama3-70b") is None


def test_pipeline_layouts() -> None:
    assert decoder_layers("Et*4|(t*4|)*14tmL") == (4,) * 15 + (1,)
    assert decoder_layers("Et*8|(t*8|)*6t*5mL") == (8,) * 7 + (5,)
    assert decoder_layers("Et*3|(tt|)*29,m|L") == (3, *(2,) * 29, 0, 0)
    with pytest.raises(Skipped, match="pp_layout"):
        decoder_layers("ttt")


def test_proxies_are_named_after_their_model() -> None:
    assert model_name("Deepseek V3 proxy") == "deepseek-v3"
