"""What is held between a split backward's input and weight gradients, counted by hand, and beside what it replaces."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from prism_cp.formulas.activations import kept_bytes, layer_tensors
from prism_cp.formulas.deferred import layer_deferred
from prism_cp.formulas.memory import memory_expressions
from prism_cp.formulas.saved import context
from prism_cp.formulas.strategies import FULL, Strategy
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.integer_tables import build_stage_problem
from tests.formulas.memory_models import (
    deepseek_v3,
    dense,
    evaluate,
    gqa,
    layout_values,
    make_instance,
    make_model,
)

NONE = Strategy("none")
SEQ = 4096


def llama_8b(**changes: Any) -> Instance:
    return make_instance(make_model(4096, 128256, [(4, gqa(32, 8, 128), dense(14336))]), SEQ, **changes)


def pair(instance: Instance, kind: int, strategy: Strategy = NONE, **layout: Any) -> tuple[Any, Any]:
    """(kept before the backward, held between the gradients) of one layer, in bytes."""
    c, values = context(instance), layout_values(**layout)
    layer = instance.model.kinds[kind]
    kept = evaluate(kept_bytes(layer_tensors(layer, c), [strategy])[0], values)
    return kept, evaluate(layer_deferred(layer, instance.model.hidden_size, c), values)


def test_llama_layer_holds_everything_but_the_statistics() -> None:
    """qkv: h and h + 2kv; output projection: h and h; fc1: h and 2f; fc2: f and h."""
    h, kv, f = 4096, 1024, 14336
    kept, held = pair(llama_8b(), 0)
    assert held == 2 * SEQ * (6 * h + 2 * kv + 3 * f)
    assert kept - held == SEQ * (2 * 4 + 4 * 32)  # two norms, the softmax of 32 heads
    assert held / kept == pytest.approx(0.999, abs=1e-3)


def test_llama_layer_under_tensor_parallelism() -> None:
    """Gradients behind the two row-parallel matrices are whole; the inputs of the other two are sequence shards."""
    h, kv, f = 4096, 1024, 14336
    _, held = pair(llama_8b(), 0, tp=4, sp=1)
    inputs = Fraction(h + h + h + f, 4)
    gradients = Fraction(h + 2 * kv + 2 * f, 4) + 2 * h
    assert held == 2 * SEQ * (inputs + gradients)


def test_deepseek_v3_experts_hold_more_than_they_kept() -> None:
    """One hidden state per token copy more, the rotary part of 128 queries and keys less (and the statistics)."""
    instance = make_instance(deepseek_v3(), SEQ)
    routed = next(i for i, kind in enumerate(instance.model.kinds) if kind.feed_forward.type == "moe")  # type: ignore[union-attr]
    kept, held = pair(instance, routed, ep=8)
    h, copies, heads, rope = 7168, 8, 128, 64
    statistics = 4 * (2 + 2) + 4 * heads  # four norms, the softmax
    # scores of 256 experts beside their gradients, and a map; of the chosen ones probabilities twice, numbers, indices
    routing = (4 + 1) * 256 + 12 * copies + 4 + 12 * copies
    assert held - kept == SEQ * (2 * (copies * h - heads * rope) - statistics - routing)
    assert held / kept == pytest.approx(1.21, abs=0.01)


def test_recomputation_does_not_help_between_the_gradients() -> None:
    kept, held = pair(llama_8b(), 0, FULL)
    assert held > 15 * kept
    assert held == pair(llama_8b(), 0)[1]


def test_the_table_entry_covers_layers_that_the_gradient_has_not_reached() -> None:
    """Dense layers keep more before their backward than after it, so the larger of both is the entry."""
    instance = llama_8b()
    sizes = {"tp": 1, "cp": 1, "ep": 1, "etp": 1, "dp": 4, "pp": 2, "vpp": 1, "mbs": 1, "num_microbatches": 128}
    layout = Layout(sp=False, cp_comm="p2p", zero=1, schedule="zb-h1", **sizes)  # type: ignore[arg-type]
    problem = build_stage_problem(instance, layout)
    (kind,) = problem.tables[0]
    kept, held = pair(instance, 0, pp=2)
    unit = instance.memory_unit_bytes
    assert kept > held
    assert kind.deferred == max(-(-kept // unit), -(-held // unit)) == max(s.activation for s in kind.strategies)
    for stage in problem.virtual_stages:
        assert stage.ends.deferred >= stage.ends.activation


def test_ends() -> None:
    """Token ids and the gradient of their embedding; the head's input and the gradient of the logits."""
    memory = memory_expressions(llama_8b())
    values = layout_values(pp=2)
    assert evaluate(memory.embedding.deferred_bytes, values) == SEQ * (8 + 2 * 4096)
    assert evaluate(memory.head.deferred_bytes, values) == SEQ * 2 * (4096 + 128256)
