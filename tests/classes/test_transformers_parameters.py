"""Parameter counts of the catalogue's models against the classes of transformers, part by part of every layer."""

from __future__ import annotations

import pytest

from prism_cp.formulas.parameters import model_parameters
from prism_cp.inputs.catalog import catalog_entry, catalog_names
from prism_cp.inputs.huggingface import model_from_huggingface, supported_families
from prism_cp.inputs.model import DenseFeedForward, Model, SelfAttention
from tests.classes.families import FAMILIES
from tests.classes.formula_counts import catalog_model, formula_parameters

# Models that the catalogue writes out in layer groups. Whoever adds one says here which public class has its shape.
NEMOTRON = {"nemotron-4-15b", "nemotron-4-340b"}  # NemotronForCausalLM of transformers
MEGATRON = {
    # OpenAI's GPT-3 and NVIDIA's GPT models: no weights or class in transformers; Megatron-LM's GPTModel trains them.
    "gpt3-175b",
    "megatron-22b",
    "megatron-530b",
    "megatron-1t",
    # llm-foundry trains its MPT sizes with biases and learned positions; transformers' MptForCausalLM knows neither.
    "mpt-125m",
    "mpt-350m",
    "mpt-760m",
    "mpt-1b",
    "mpt-3b",
    "mpt-7b",
    "mpt-13b",
    "mpt-30b",
    "mpt-70b",
    # Published rows train it with Megatron-LM (two norms a layer); transformers has no class of it.
    "grok-1",
}
CONFIGURED = [name for name in catalog_names("models") if "huggingface" in catalog_entry("models", name)]


def test_every_model_of_the_catalogue_is_counted_in_some_class() -> None:
    assert set(catalog_names("models")) == {*CONFIGURED, *NEMOTRON, *MEGATRON}
    assert not {*CONFIGURED} & {*NEMOTRON, *MEGATRON}


# Their language model is one of the other families under text_config.
NESTED = {"gemma3", "llama4", "qwen3_5", "qwen3_5_moe"}


def test_every_family_is_counted_in_its_class() -> None:
    in_catalogue = {catalog_entry("models", name)["huggingface"]["model_type"] for name in CONFIGURED}
    beside = {config["model_type"] for config in FAMILIES.values()}
    assert set(supported_families()) == in_catalogue | beside | NESTED


@pytest.fixture
def _transformers() -> None:
    pytest.importorskip("transformers", reason="optional: pip install -e '.[classes]'")


def compare(model: Model, module: object) -> None:
    from tests.classes.transformers_classes import parameters_by_part

    counted = parameters_by_part(module)  # type: ignore[arg-type]
    assert counted == formula_parameters(model)
    assert sum(counted.values()) == model_parameters(model)


@pytest.mark.slow
@pytest.mark.usefixtures("_transformers")
@pytest.mark.parametrize("name", CONFIGURED)
def test_configured_model_equals_its_class(name: str) -> None:
    from tests.classes.transformers_classes import class_on_meta

    compare(catalog_model(name), class_on_meta(catalog_entry("models", name)["huggingface"]))


@pytest.mark.slow
@pytest.mark.usefixtures("_transformers")
@pytest.mark.parametrize("name", sorted(NEMOTRON))
def test_nemotron_4_equals_its_class(name: str) -> None:
    from tests.classes.transformers_classes import class_on_meta

    model = catalog_model(name)
    attention, feed_forward = model.kinds[0].attention, model.kinds[0].feed_forward
    assert isinstance(attention, SelfAttention)
    assert isinstance(feed_forward, DenseFeedForward)
    config = {
        "model_type": "nemotron",
        "hidden_size": model.hidden_size,
        "vocab_size": model.vocab_size,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": attention.num_attention_heads,
        "num_key_value_heads": attention.num_key_value_heads,
        "head_dim": attention.head_dim,
        "intermediate_size": feed_forward.intermediate_size,
        "tie_word_embeddings": model.tied_embeddings,
    }
    compare(model, class_on_meta(config))


@pytest.mark.slow
@pytest.mark.usefixtures("_transformers")
@pytest.mark.parametrize("name", FAMILIES)
def test_family_equals_its_class(name: str) -> None:
    from tests.classes.transformers_classes import class_on_meta

    compare(model_from_huggingface(FAMILIES[name], name), class_on_meta(FAMILIES[name]))
