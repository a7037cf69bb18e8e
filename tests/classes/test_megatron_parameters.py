"""Parameter counts against megatron-core's GPT model: models that no other public class has, and prediction depths."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator

import pytest

from prism_cp.formulas.parameters import model_parameters
from prism_cp.inputs.model import LayerGroup, Model
from tests.classes.formula_counts import catalog_model, formula_parameters
from tests.classes.test_transformers_parameters import MEGATRON

torch = pytest.importorskip("torch", reason="optional: pip install -e '.[classes]'")
pytest.importorskip("megatron.core", reason="optional: pip install -e '.[classes]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # deprecations inside megatron-core


@pytest.fixture(autouse=True)
def _megatron() -> Iterator[None]:
    from tests.classes.megatron_models import megatron_on_cpu

    with megatron_on_cpu(), torch.device("meta"):
        yield


def parameters_by_part(module: object) -> dict[tuple[int | str, str], int]:
    found: dict[tuple[int | str, str], int] = defaultdict(int)
    for name, parameter in module.named_parameters():  # type: ignore[attr-defined]
        layer = re.match(r"decoder\.layers\.(\d+)\.(\w+)", name)
        if layer:
            part = {"self_attention": "attention", "mlp": "feed_forward"}.get(layer[2], "norms")
            assert part != "norms" or layer[2] in ("input_layernorm", "pre_mlp_layernorm"), name
            found[int(layer[1]), part] += parameter.numel()
        else:
            part = "embedding" if name.startswith("embedding.") else "head"
            assert part == "embedding" or name.startswith(("decoder.final_layernorm", "output_layer")), name
            found["ends", part] += parameter.numel()
    return dict(found)


@pytest.mark.parametrize("name", sorted(MEGATRON))
def test_model_equals_the_gpt_model_of_megatron_core(name: str) -> None:
    from tests.classes.megatron_models import gpt_model

    model = catalog_model(name)
    counted = parameters_by_part(gpt_model(model))
    assert counted == formula_parameters(model)
    assert sum(counted.values()) == model_parameters(model)


def test_prediction_depth_of_deepseek_v3_equals_megatron_core() -> None:
    """A depth is a layer, two norms of its inputs, their projection and a final norm; ends are the model's own."""
    from tests.classes.megatron_models import gpt_model

    model = catalog_model("deepseek-v3")
    assert model.mtp_kind is not None
    kind = model.kind(model.mtp_kind)
    one = Model.model_validate(
        {**model.model_dump(), "kinds": (kind,), "layers": (LayerGroup(kind=kind.name, count=1),)}
    )
    module = gpt_model(one, prediction_depths=1)
    depth = sum(parameter.numel() for name, parameter in module.named_parameters() if name.startswith("mtp."))
    assert depth == model_parameters(model, include_mtp=True) - model_parameters(model)
