"""Parameter counts against megatron-core's GPT model: models that no other public class has, and prediction depths."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from prism_cp.formulas.parameters import device_parameters, model_parameters
from prism_cp.formulas.weights import layer_weights
from prism_cp.inputs.model import LayerGroup, Model
from tests.classes.formula_counts import catalog_model, formula_parameters
from tests.classes.test_transformers_parameters import MEGATRON
from tests.formulas.memory_models import dense, evaluate, gqa, layout_values, make_instance, make_model, mha, mla, moe

torch = pytest.importorskip("torch", reason="optional: pip install -e '.[classes]'")
pytest.importorskip("megatron.core", reason="optional: pip install -e '.[classes]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # deprecations inside megatron-core


@pytest.fixture(autouse=True)
def _megatron(request: pytest.FixtureRequest) -> Iterator[None]:
    from tests.classes.megatron_models import megatron_on_cpu

    sizes = getattr(request.node, "callspec", None)
    groups = {name: sizes.params[name] for name in ("tp", "ep", "etp") if sizes and name in sizes.params}
    with megatron_on_cpu(**groups), torch.device("meta"):
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


DENSE = {
    "one key head": make_model(256, 1024, [(2, gqa(8, 1, 32, qk_norm=True), dense(512))]),
    "biases": make_model(
        256, 1024, [(2, mha(8, 32, qkv_bias=True, output_bias=True), dense(512, gated=False, bias=True))]
    ),
}
ROUTED = {
    "experts": make_model(256, 1024, [(2, gqa(8, 2, 32), moe(8, 2, 128, shared_intermediate_size=256))]),
    "latent attention and experts": make_model(256, 1024, [(2, mla(8, 64), moe(8, 2, 128))], tied_embeddings=True),
}


def a_rank_holds_its_share(model: Model, tp: int, ep: int, etp: int) -> None:
    """Dense weights over tensor parallelism, experts over expert and expert-tensor parallelism, the rest whole."""
    from tests.classes.megatron_models import gpt_model

    groups: dict[str, Any] = {"tensor_model_parallel_size": tp, "sequence_parallel": tp > 1}
    if ep * etp > 1:
        groups |= {"expert_model_parallel_size": ep, "expert_tensor_parallel_size": etp}
    counted = sum(parameter.numel() for parameter in gpt_model(model, **groups).parameters())
    instance = make_instance(model)
    expressions = [sum(device_parameters(part, instance)) for part in ("embedding", "k0", "k0", "head")]
    # megatron-core's own layers split latent attention's down-projections and gather their outputs; Transformer
    # Engine's, which the formulas follow, are whole on every rank ("duplicated" in multi_latent_attention.py).
    split = [
        weight.count for weight in layer_weights(model.kinds[0], model) if weight.name in ("kv_down", "query_down")
    ]
    values = layout_values(tp=tp, sp=int(tp > 1), ep=ep, etp=etp)
    whole = sum(evaluate(expression, values) for expression in expressions)
    assert counted == whole - 2 * sum(split) * Fraction(tp - 1, tp)


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("name", DENSE)
def test_a_tensor_parallel_rank_holds_its_share(name: str, tp: int) -> None:
    a_rank_holds_its_share(DENSE[name], tp, 1, 1)


@pytest.mark.parametrize(("tp", "ep", "etp"), [(2, 1, 2), (4, 1, 4), (2, 4, 1), (4, 2, 2), (1, 8, 1)])
@pytest.mark.parametrize("name", ROUTED)
def test_a_rank_holds_its_share_of_experts(name: str, tp: int, ep: int, etp: int) -> None:
    a_rank_holds_its_share(ROUTED[name], tp, ep, etp)
