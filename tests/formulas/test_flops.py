"""Model FLOPs against published counts per token, and recomputed FLOPs."""

from __future__ import annotations

import csv
from fractions import Fraction
from pathlib import Path

import pytest

from prism_cp.formulas.flops import (
    attention_linears,
    attention_pairs,
    chain_item_forward_flops,
    hardware_flops_per_step,
    model_flops_per_step,
    nominal_attention_pairs,
    recomputed_flops_per_sequence,
)
from prism_cp.inputs.model import SelfAttention
from tests.formulas.time_instances import catalog_instance

PUBLISHED = Path(__file__).parents[1] / "data" / "tflop_per_token.csv"
NO_MODULES: frozenset[str] = frozenset()
NAMES = {
    "DeepSeekV3": "deepseek-v3",
    "LLAMA3_70B": "llama-3.1-70b",
    "LLAMA3_8B": "llama-3.1-8b",
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
}


def _published() -> list[tuple[str, int, float]]:
    lines = [line for line in PUBLISHED.read_text().splitlines() if not line.startswith("#")]
    rows = [row for row in csv.DictReader(lines) if row["task"] == "full" and row["model"] in NAMES]
    return [(NAMES[row["model"]], int(row["seq"]), float(row["median"])) for row in rows]


@pytest.mark.parametrize(("model", "seq_len", "tflop"), _published())
def test_published_flops_per_token(model: str, seq_len: int, tflop: float) -> None:
    instance = catalog_instance(model, "8xh100", seq_len)
    per_token = model_flops_per_step(instance) / (instance.job.gbs * seq_len)
    assert float(per_token) / 1e12 == pytest.approx(tflop, rel=0.01)


def test_published_rows_are_read() -> None:
    assert {model for model, _, _ in _published()} == set(NAMES.values())


@pytest.mark.parametrize(("seq_len", "window"), [(7, None), (7, 3), (7, 7), (7, 20), (1, 1)])
def test_attention_pairs_count_the_mask(seq_len: int, window: int | None) -> None:
    mask = sum(1 for query in range(seq_len) for key in range(seq_len) if 0 <= query - key < (window or seq_len))
    assert attention_pairs(seq_len, window) == mask


def test_nominal_pairs_are_half_of_the_square() -> None:
    assert nominal_attention_pairs(8, None) == 32
    assert nominal_attention_pairs(9, 100) == Fraction(81, 2)
    assert nominal_attention_pairs(8, 2) == 14  # 8 * 2 - 2 * 2 / 2


def test_output_gate_doubles_the_query_projection() -> None:
    shape = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16}
    plain, gated = (attention_linears(SelfAttention(output_gate=gate, **shape), 64)[0] for gate in (False, True))
    assert (plain.out_features, gated.out_features) == (12 * 16, 20 * 16)


def test_full_recomputation_repeats_every_forward_flop() -> None:
    instance = catalog_instance("deepseek-v3", "256xh100", 4096)
    for kind in instance.model.chain_kinds:
        total = sum(chain_item_forward_flops(kind, instance.model, 4096).values())
        assert recomputed_flops_per_sequence(kind, NO_MODULES, True, instance) == total
        assert recomputed_flops_per_sequence(kind, NO_MODULES, False, instance) == 0
        latent = recomputed_flops_per_sequence(kind, frozenset({"mla_up_proj"}), False, instance)
        assert 0 < latent < total


def test_moe_recomputation_contains_the_shared_experts() -> None:
    instance = catalog_instance("deepseek-v3", "256xh100", 4096)
    shared = recomputed_flops_per_sequence("mla+moe", frozenset({"shared_experts"}), False, instance)
    assert shared == 2 * 4096 * 3 * 7168 * 2048
    whole = recomputed_flops_per_sequence("mla+moe", frozenset({"moe"}), False, instance)
    assert whole == 9 * shared  # eight routed experts of the same width for every token
    assert recomputed_flops_per_sequence("mla+moe", frozenset({"moe", "shared_experts"}), False, instance) == whole


def test_hardware_flops_of_full_recomputation_are_four_thirds_of_the_layers() -> None:
    instance = catalog_instance("llama-3.1-8b", "8xh100", 4096)
    (kind,) = instance.model.chain_kinds
    base = model_flops_per_step(instance)
    logits = 3 * 2 * instance.job.gbs * 4096 * 4096 * instance.model.vocab_size
    hardware = hardware_flops_per_step(instance, {kind: {(NO_MODULES, True): instance.model.num_layers}})
    assert hardware == base + (base - logits) / 3
    assert hardware_flops_per_step(instance, {kind: {(NO_MODULES, False): 32}}) == base
