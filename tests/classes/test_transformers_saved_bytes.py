"""Saved tensors of transformers' layers against the activation formulas: equal but for what an eager framework adds.

The formulas count fused kernels (Megatron-LM's, or those a compiler makes of torchtitan's layers); these classes run
one operator after the other, with PyTorch's fused attention. Every difference is a term below.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest

from prism_cp.formulas.activations import kept_bytes, layer_tensors
from prism_cp.formulas.saved import context
from prism_cp.formulas.strategies import Strategy
from prism_cp.inputs.huggingface import model_from_huggingface
from tests.formulas.memory_models import evaluate, layout_values, make_instance

torch = pytest.importorskip("torch", reason="optional: pip install -e '.[classes]'")
pytest.importorskip("transformers", reason="optional: pip install -e '.[classes]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

HIDDEN, WIDTH, SEQ, MBS = 64, 96, 32, 2
HEADS, KEY_HEADS, HEAD_DIM = 4, 2, 16
EXPERTS, TOP_K, EXPERT_WIDTH = 4, 2, 48
QUERY_RANK, KEY_RANK, NOPE, ROPE = 24, 20, 16, 8
VALUE_DIM = NOPE + ROPE  # PyTorch's fused attention on a CPU takes one head size only
TOKENS = SEQ * MBS

# bytes per token -----------------------------------------------------------------------------------------------------


def upcast(width: int, norms: int = 1) -> int:
    """RMSNorm keeps its input in fp32 and its normalised input, a fused one the 16-bit input alone."""
    return norms * (4 + 2 - 2) * width


def rotary(width: int) -> Fraction:
    """One sine and one cosine for queries and keys, for all sequences together."""
    return Fraction(2 * 2 * width, MBS)


STATISTICS = -4  # LayerNorm on a CPU keeps mean and deviation in 16 bits
GELU_TANH = 3 * 2 * 4 * HIDDEN  # GPT-2's GELU is written in powers and a tanh: five tensors of the inner width, not two
FUSED_VALUE = 2 * 2 * HEADS * HEAD_DIM  # the value is a part of the fused query-key-value tensor, which stays whole
COPIED_OUTPUT = 2 * HEADS * HEAD_DIM  # attention's output has the queries' layout and is copied for the projection
# Mixtral's router: a softmax over all experts, chosen scores and their sum; no map and no spread probabilities.
ROUTER = -5 * EXPERTS
# The experts' outputs are weighted, not their activations; the permutation keeps three vectors of indices, not one.
LATE_WEIGHTS = TOP_K * (2 * HIDDEN + 2 * 8)
EXPERT_COUNTS = Fraction(4 * EXPERTS, TOKENS)

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEY_HEADS,
    "head_dim": HEAD_DIM,
    "intermediate_size": WIDTH,
    "vocab_size": 128,
    "max_position_embeddings": SEQ,
}


@dataclass
class Case:
    """A configuration and what the class keeps beside the formula, in bytes per token by name."""

    config: dict[str, Any]
    terms: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)  # of the class alone


CASES = {
    "llama": Case(
        LLAMA, {"fp32 in norms": upcast(HIDDEN, 2), "rotary tables": rotary(HEAD_DIM), "silu output": 2 * WIDTH}
    ),
    "qwen3": Case(
        {**LLAMA, "model_type": "qwen3"},
        {
            "fp32 in norms": upcast(HIDDEN, 2),
            "fp32 in norms of queries and keys": upcast(HEAD_DIM, HEADS + KEY_HEADS),
            "rotary tables": rotary(HEAD_DIM),
            "silu output": 2 * WIDTH,
        },
    ),
    "gpt2": Case(
        {"model_type": "gpt2", "n_embd": HIDDEN, "n_head": HEADS, "n_layer": 2, "n_positions": SEQ, "vocab_size": 128},
        {"statistics of 16 bits": 2 * STATISTICS, "gelu": GELU_TANH},
        {"resid_pdrop": 0.0, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "bos_token_id": 0, "eos_token_id": 0},
    ),
    "gpt_neox": Case(
        {**LLAMA, "model_type": "gpt_neox", "num_key_value_heads": HEADS},
        {
            "both norms read the same input": -2 * HIDDEN,
            "statistics of 16 bits": 2 * STATISTICS,
            "rotary tables": rotary(HEAD_DIM // 4),
            "fused value": FUSED_VALUE,
            "copied output": COPIED_OUTPUT,
        },
        {"hidden_act": "gelu"},
    ),
    "mixtral": Case(
        {
            **LLAMA,
            "model_type": "mixtral",
            "intermediate_size": EXPERT_WIDTH,
            "num_local_experts": EXPERTS,
            "num_experts_per_tok": TOP_K,
            "sliding_window": None,
        },
        {
            "fp32 in norms": upcast(HIDDEN, 2),
            "rotary tables": rotary(HEAD_DIM),
            "router": ROUTER,
            "silu output": TOP_K * 2 * EXPERT_WIDTH,
            "weights of outputs": LATE_WEIGHTS,
            "expert counts": EXPERT_COUNTS,
        },
    ),
    "deepseek_v3": Case(
        {
            **{key: value for key, value in LLAMA.items() if key != "head_dim"},
            "model_type": "deepseek_v3",
            "num_key_value_heads": HEADS,
            "q_lora_rank": QUERY_RANK,
            "kv_lora_rank": KEY_RANK,
            "qk_nope_head_dim": NOPE,
            "qk_rope_head_dim": ROPE,
            "v_head_dim": VALUE_DIM,
            "n_routed_experts": EXPERTS,
            "num_experts_per_tok": TOP_K,
            "n_shared_experts": 1,
            "moe_intermediate_size": EXPERT_WIDTH,
            "first_k_dense_replace": 2,
            "n_group": 1,
            "topk_group": 1,
            "num_nextn_predict_layers": 0,
        },
        {
            "fp32 in norms": upcast(HIDDEN, 2),
            # the down-projection of keys and values is not kept beside it, so the rotary key in it is not either
            "fp32 in norms of latents": upcast(QUERY_RANK) + upcast(KEY_RANK) - 2 * ROPE,
            "rotary tables": rotary(ROPE),
            "value in the up-projection's output": 2 * HEADS * NOPE,
            "copied output": 2 * HEADS * VALUE_DIM,
            "silu output": 2 * WIDTH,
        },
    ),
}


def layer_of(network: Any) -> Any:
    base = next(getattr(network, name) for name in ("model", "transformer", "gpt_neox") if hasattr(network, name))
    return (base.layers if hasattr(base, "layers") else base.h)[-1]


def layer_saves(config: dict[str, Any], options: dict[str, Any], hidden: int) -> int:
    """Bytes that the last layer saves, called as the model calls it."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    from tests.classes.saved_storages import saved_bytes

    facts = {key: value for key, value in config.items() if key != "model_type"}
    configuration = CONFIG_MAPPING[config["model_type"]](**facts, **options, attn_implementation="sdpa")
    network = AutoModelForCausalLM.from_config(configuration).to(torch.bfloat16).train()
    layer, seen = layer_of(network), {}

    def remember(_: Any, positional: Any, named: Any) -> None:
        seen.update(positional=positional[1:], named=named)

    hook = layer.register_forward_pre_hook(remember, with_kwargs=True)
    with torch.no_grad():
        network(torch.randint(0, 128, (MBS, SEQ)), use_cache=False)
    hook.remove()
    states = torch.randn(MBS, SEQ, hidden, dtype=torch.bfloat16, requires_grad=True)
    named = {key: value for key, value in seen["named"].items() if key != "hidden_states"}
    return saved_bytes(layer, lambda: layer(states, *seen["positional"], **named))


@pytest.mark.parametrize("family", CASES)
def test_layer_keeps_the_formula_and_what_eager_operators_add(family: str) -> None:
    torch.manual_seed(0)
    case = CASES[family]
    model = model_from_huggingface(case.config, family)
    kind = model.kind(model.chain[-1])
    (kept,) = kept_bytes(layer_tensors(kind, context(make_instance(model, SEQ))), [Strategy("none")])
    expected = evaluate(kept, layout_values(mbs=MBS)) + TOKENS * sum(case.terms.values())
    assert layer_saves(case.config, case.options, model.hidden_size) == expected
