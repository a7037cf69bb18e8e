"""Saved tensors of megatron-core's own layers against the activation formulas: equal but for named terms.

The layers run on a CPU with PyTorch's fused attention kernel in place of a GPU's. Every difference is a term below,
most of them operators that have a fused kernel on a GPU only.

Not counted, because they exist as CUDA kernels alone: Transformer Engine's layers and fp8, its grouped experts (the
older ``grouped_gemm`` layer stands in), Mamba-2 (mamba_ssm, causal_conv1d) and gated delta nets
(flash-linear-attention). All-to-all between several ranks needs their real token counts and is not counted either.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import pytest

from prism_cp.formulas.activations import head_tensors, kept_bytes, layer_tensors, mtp_tensors
from prism_cp.formulas.saved import context
from prism_cp.formulas.strategies import FULL, Strategy
from prism_cp.inputs.model import Attention, FeedForward, LatentAttention, Model
from tests.formulas.memory_models import dense, evaluate, gqa, layout_values, make_instance, make_model, mha, moe

torch = pytest.importorskip("torch", reason="optional: pip install -e '.[classes]'")
pytest.importorskip("megatron.core", reason="optional: pip install -e '.[classes]'")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # deprecations inside megatron-core

HIDDEN, WIDTH, VOCABULARY, SEQ, MBS = 64, 96, 128, 32, 2
HEADS, KEY_HEADS, HEAD_DIM = 4, 2, 16
EXPERTS, TOP_K, EXPERT_WIDTH, SHARED_WIDTH = 4, 2, 48, 32
QUERY_RANK, KEY_RANK, NOPE, ROPE = 24, 20, 16, 8
TOKENS = SEQ * MBS

# bytes per token -----------------------------------------------------------------------------------------------------


def upcast(width: int, norms: int = 1) -> int:
    """PyTorch's RMSNorm on a CPU keeps its input and its normalised input in fp32, a fused one the 16-bit input."""
    return norms * (4 + 4 - 2) * width


ROTARY = Fraction(2 * 2 * 2 * HEAD_DIM, MBS)  # sines and cosines of queries and keys, for all sequences together
LATENT_ROTARY = Fraction(2 * 2 * 2 * ROPE, MBS)
ANGLES = Fraction(4 * HEAD_DIM, MBS)  # fp32 angles, an argument of a checkpoint
LATENT_ANGLES = Fraction(4 * ROPE, MBS)
CAUSAL_MASK = Fraction(SEQ, MBS)  # one byte per pair of tokens, for all sequences together
MASK_KIND = Fraction(4, TOKENS)  # the kind of mask as a tensor, an argument of a checkpoint
# Softmax outside a fused kernel keeps its output in fp32. The 16-bit output of a fused one is also what the product
# with the values keeps; with dropout between them that is another tensor, and fp32 takes the place of 16 bits.
FP32_SCORES = 4 * HEADS * SEQ
FP32_SCORES_WITH_DROPOUT = (4 - 2) * HEADS * SEQ
SCORES_MASK = HEADS * SEQ  # dropout on a CPU keeps a 16-bit mask, on a GPU one byte
HIDDEN_MASK = HIDDEN
STATISTICS = -4  # LayerNorm on a CPU keeps mean and deviation in 16 bits
# The value is still a part of the fused query-key-value tensor, which stays whole beside the rotated queries and keys.
# Formulas take it as its own: Transformer Engine makes it so, and repeating it for groups of queries does.
FUSED_VALUE = 2 * HEADS * HEAD_DIM + 2 * KEY_HEADS * HEAD_DIM
SOFTMAX_ROUTER = -4 * EXPERTS - 4  # scores of the chosen experts only, not normalised again
# A router's softmax before the choice does not need the chosen scores again.
SOFTMAX_ALL_ROUTER = -4 * TOP_K - 4
EXPERT_COUNTS = Fraction(8 * EXPERTS, TOKENS)  # rows of each expert, saved by the grouped product
# Latent attention's norms: both fp32 as above; on a GPU the key-value part keeps the down-projection whole, with the
# rotary key beside it, which here nothing needs.
LATENT_NORMS = upcast(QUERY_RANK) + upcast(KEY_RANK) - 2 * ROPE
# Recomputing the up-projection takes the rotary key as an argument, so the down-projection is whole again.
LATENT_NORMS_RECOMPUTED = upcast(QUERY_RANK) + 8 * KEY_RANK
LATENT_NORMS_WITHOUT_QUERY = LATENT_NORMS - upcast(QUERY_RANK)

# "offset": without a fused activation this release adds an offset (gpt-oss has one) to the half that is multiplied with
# the activated one, as an operation of its own even where it is 0; not so between the grouped products.

# The formula keeps it under the all-gather dispatcher, because peaks of Megatron-LM's functional tests have it; it is
# not among the tensors that this release saves.
EXPERT_OUTPUT = -2 * TOP_K * HIDDEN

SELECTIVE = "selective"


@dataclass
class Case:
    """A layer, how megatron-core runs it, and what it keeps beside the formula, in bytes per token by name."""

    attention: Attention
    feed_forward: FeedForward
    terms: dict[str, Any]
    recompute: tuple[str, ...] = ()
    fused_attention: bool = True
    profile: dict[str, Any] = field(default_factory=dict)
    job: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    megatron: dict[str, Any] = field(default_factory=dict)


GQA = gqa(HEADS, KEY_HEADS, HEAD_DIM)
SWIGLU = dense(WIDTH)
LATENT = LatentAttention(
    num_attention_heads=HEADS,
    q_lora_rank=QUERY_RANK,
    kv_lora_rank=KEY_RANK,
    qk_nope_head_dim=NOPE,
    qk_rope_head_dim=ROPE,
    v_head_dim=NOPE + ROPE,  # PyTorch's kernel takes one head size only
)
WITHOUT_QUERY_RANK = LATENT.model_copy(update={"q_lora_rank": None})
GPT = mha(HEADS, HEAD_DIM, qkv_bias=True, output_bias=True)
GELU = dense(WIDTH, gated=False, bias=True)
GPT_MODEL = {"norm": "layernorm", "num_learned_positions": SEQ}
MIXTURE = moe(EXPERTS, TOP_K, EXPERT_WIDTH, shared_intermediate_size=SHARED_WIDTH)
ROUTED = moe(EXPERTS, TOP_K, EXPERT_WIDTH)
PLAIN = moe(EXPERTS, TOP_K, EXPERT_WIDTH, gated=False)
DROPOUT = {"hidden_dropout": 0.1, "attention_dropout": 0.1}
UNFUSED = {"flash_attention": False}
SEPARATE = {"fused_gated_activation": False}
FP32_ROUTER = {"moe_router_dtype": "fp32"}
GROUPED = {**FP32_ROUTER, "moe_grouped_gemm": True, "moe_use_legacy_grouped_gemm": True}
SIGMOID = {**FP32_ROUTER, "moe_router_score_function": "sigmoid"}

BOTH_NORMS = {"fp32 in both norms": upcast(HIDDEN, 2)}
ROTATED = {**BOTH_NORMS, "rotary tables": ROTARY}
ROUTER = {**ROTATED, "softmax router": SOFTMAX_ROUTER}
LATENT_TERMS = {**BOTH_NORMS, "norms of latents": LATENT_NORMS, "rotary tables": LATENT_ROTARY}
CHECKPOINTED_CORE = {"mask": CAUSAL_MASK, "kind of mask": MASK_KIND}
DROPPED = {"masks of 16 bits": 2 * HIDDEN_MASK, "statistics of 16 bits": 2 * STATISTICS}

CASES = {
    "gqa swiglu": Case(GQA, SWIGLU, ROTATED),
    "gqa swiglu, layernorm": Case(GQA, SWIGLU, {"rotary tables": ROTARY}, ("layernorm",)),
    "gqa swiglu, mlp": Case(GQA, SWIGLU, ROTATED, ("mlp",)),
    "gqa swiglu, layernorm+mlp": Case(GQA, SWIGLU, {"rotary tables": ROTARY}, ("layernorm", "mlp")),
    "gqa swiglu, core_attn": Case(
        GQA,
        SWIGLU,
        {**ROTATED, **CHECKPOINTED_CORE, "fused value": FUSED_VALUE},
        ("core_attn",),
    ),
    "gqa swiglu, scores": Case(
        GQA,
        SWIGLU,
        {**ROTATED, "fp32 scores": FP32_SCORES, "mask": CAUSAL_MASK},
        fused_attention=False,
        profile=UNFUSED,
    ),
    "mha swiglu, scores": Case(
        mha(HEADS, HEAD_DIM),
        SWIGLU,
        {**ROTATED, "fp32 scores": FP32_SCORES, "mask": CAUSAL_MASK, "fused value": 2 * 2 * HEADS * HEAD_DIM},
        fused_attention=False,
        profile=UNFUSED,
    ),
    "gqa swiglu, scores, core_attn": Case(
        GQA,
        SWIGLU,
        {**ROTATED, **CHECKPOINTED_CORE, "fused value": FUSED_VALUE},
        ("core_attn",),
        fused_attention=False,
        profile=UNFUSED,
    ),
    "gqa swiglu, normed queries and keys": Case(
        gqa(HEADS, KEY_HEADS, HEAD_DIM, qk_norm=True),
        SWIGLU,
        {**ROTATED, "fp32 in norms of queries and keys": upcast(HEAD_DIM, HEADS + KEY_HEADS)},
    ),
    "gpt": Case(GPT, GELU, {"statistics of 16 bits": 2 * STATISTICS}, model=GPT_MODEL),
    "gpt, dropout, scores": Case(
        GPT,
        GELU,
        {**DROPPED, "fp32 scores": FP32_SCORES_WITH_DROPOUT, "mask of scores": SCORES_MASK, "mask": CAUSAL_MASK},
        fused_attention=False,
        profile=UNFUSED,
        job={"dropout": True},
        model=GPT_MODEL,
        megatron=DROPOUT,
    ),
    "gpt, dropout, core_attn": Case(
        GPT,
        GELU,
        {**DROPPED, **CHECKPOINTED_CORE},
        ("core_attn",),
        fused_attention=False,
        profile=UNFUSED,
        job={"dropout": True},
        model=GPT_MODEL,
        megatron=DROPOUT,
    ),
    "mixture": Case(GQA, MIXTURE, ROUTER, megatron=FP32_ROUTER),
    "mixture, allgather": Case(
        GQA,
        MIXTURE,
        {**ROUTER, "experts' output": EXPERT_OUTPUT},
        profile={"dispatcher": "allgather"},
        megatron={**FP32_ROUTER, "moe_token_dispatcher_type": "allgather"},
    ),
    "gqa swiglu, activation not fused": Case(
        GQA,
        SWIGLU,
        {**ROTATED, "offset": 2 * WIDTH},
        profile=SEPARATE,
        megatron={"bias_activation_fusion": False},
    ),
    "mixture, activation not fused": Case(
        GQA,
        MIXTURE,
        {**ROUTER, "expert counts": EXPERT_COUNTS, "offset": 2 * SHARED_WIDTH},
        profile=SEPARATE,
        megatron={**GROUPED, "bias_activation_fusion": False},
    ),
    "mixture, softmax over all": Case(
        GQA,
        MIXTURE,
        {**ROTATED, "softmax router": SOFTMAX_ALL_ROUTER},
        megatron={**FP32_ROUTER, "moe_router_pre_softmax": True},
    ),
    "mixture, sigmoid": Case(GQA, MIXTURE, ROTATED, megatron=SIGMOID),
    "mixture, shared_experts": Case(GQA, MIXTURE, ROUTER, ("shared_experts",), megatron=FP32_ROUTER),
    "mixture, layernorm": Case(
        GQA,
        MIXTURE,
        {"rotary tables": ROTARY, "softmax router": SOFTMAX_ROUTER},
        ("layernorm",),
        megatron=FP32_ROUTER,
    ),
    "mixture, moe": Case(GQA, MIXTURE, ROTATED, ("moe",), megatron=FP32_ROUTER),
    "mixture, moe_act": Case(GQA, MIXTURE, {**ROUTER, "expert counts": EXPERT_COUNTS}, ("moe_act",), megatron=GROUPED),
    "plain experts": Case(GQA, PLAIN, ROUTER, megatron=FP32_ROUTER),
    "plain experts, grouped": Case(GQA, PLAIN, {**ROUTER, "expert counts": EXPERT_COUNTS}, megatron=GROUPED),
    "plain experts, moe_act": Case(
        GQA, PLAIN, {**ROUTER, "expert counts": EXPERT_COUNTS}, ("moe_act",), megatron=GROUPED
    ),
    "mla swiglu": Case(LATENT, SWIGLU, LATENT_TERMS),
    "mla swiglu, mla_up_proj": Case(
        LATENT,
        SWIGLU,
        {**BOTH_NORMS, "norms of latents": LATENT_NORMS_RECOMPUTED, "angles": LATENT_ANGLES},
        ("mla_up_proj",),
    ),
    "mla swiglu, layernorm+mla_up_proj": Case(
        LATENT,
        SWIGLU,
        {"norms of latents": LATENT_NORMS_RECOMPUTED, "angles": LATENT_ANGLES},
        ("layernorm", "mla_up_proj"),
    ),
    "mla without query rank": Case(
        WITHOUT_QUERY_RANK,
        SWIGLU,
        {**BOTH_NORMS, "norms of latents": LATENT_NORMS_WITHOUT_QUERY, "rotary tables": LATENT_ROTARY},
    ),
    "mla mixture": Case(LATENT, MIXTURE, LATENT_TERMS, megatron=SIGMOID),
}


@pytest.fixture(autouse=True)
def _megatron(request: pytest.FixtureRequest) -> Iterator[None]:
    from tests.classes.megatron_models import megatron_on_cpu

    torch.manual_seed(0)
    # the test below takes the group's size from its parameters
    sizes = getattr(request.node, "callspec", None)
    with megatron_on_cpu(sizes.params.get("tp", 1) if sizes else 1):
        yield


def one_layer(attention: Attention, feed_forward: FeedForward, **facts: Any) -> Model:
    return make_model(HIDDEN, VOCABULARY, [(1, attention, feed_forward)], **facts)


def gpt(model: Model, **changes: Any) -> Any:
    from tests.classes.megatron_models import gpt_model

    module = gpt_model(model, **changes).bfloat16()
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    return module


def hidden_states(split: int = 1) -> Any:
    return torch.randn(SEQ // split, MBS, HIDDEN, dtype=torch.bfloat16, requires_grad=True)


def causal_mask() -> Any:
    return torch.triu(torch.ones(1, 1, SEQ, SEQ, dtype=torch.bool), 1)


def angles(module: Any) -> Any:
    rotary = module.position_embedding_type == "rope" and not module.config.multi_latent_attention
    return module.rotary_pos_emb(SEQ) if rotary else None


def layer_saves(model: Model, *, decoder: bool = False, split: int = 1, **changes: Any) -> int:
    """Bytes that one layer saves; with `decoder` run by the block around it, which is what recomputes it fully.

    `split`: the ranks that the sequence is split over.
    """
    from tests.classes.saved_storages import saved_bytes

    module = gpt(model, **changes)
    module.decoder.final_layernorm = None
    layer = module.decoder if decoder else module.decoder.layers[0]
    return saved_bytes(layer, lambda: layer(hidden_states(split), causal_mask(), rotary_pos_emb=angles(module)))


@pytest.mark.parametrize("name", CASES)
def test_layer_keeps_what_the_formula_says(name: str) -> None:
    case = CASES[name]
    model = one_layer(case.attention, case.feed_forward, **case.model)
    changes = dict(case.megatron)
    if case.recompute:
        changes |= {"recompute_granularity": SELECTIVE, "recompute_modules": list(case.recompute)}
    measured = layer_saves(model, fused_attention=case.fused_attention, **changes)
    instance = make_instance(model, SEQ, profile=case.profile, **case.job)
    strategy = Strategy("+".join(case.recompute), frozenset(case.recompute))
    (kept,) = kept_bytes(layer_tensors(model.kinds[0], context(instance)), [strategy])
    assert measured == evaluate(kept, layout_values(mbs=MBS)) + TOKENS * sum(case.terms.values())


ONE_KEY_HEAD = gqa(HEADS, 1, HEAD_DIM)  # fewer than ranks: each keeps all of it


@pytest.mark.parametrize("sequence_parallel", [False, True])
@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize(
    ("attention", "feed_forward", "norms", "rotary"),
    [
        (GQA, SWIGLU, upcast(HIDDEN, 2), ROTARY),
        (ONE_KEY_HEAD, SWIGLU, upcast(HIDDEN, 2), ROTARY),
        (LATENT, SWIGLU, upcast(HIDDEN, 2) + LATENT_NORMS, LATENT_ROTARY),
        (GPT, GELU, upcast(HIDDEN, 2), ROTARY),
    ],
    ids=["gqa", "one key head", "mla", "gelu"],
)
def test_tensor_and_sequence_parallel_ranks_keep_their_share(
    attention: Attention, feed_forward: FeedForward, norms: Any, rotary: Any, tp: int, sequence_parallel: bool
) -> None:
    model = one_layer(attention, feed_forward)
    split = tp if sequence_parallel else 1
    measured = layer_saves(model, split=split, tensor_model_parallel_size=tp, sequence_parallel=sequence_parallel)
    tensors = layer_tensors(model.kinds[0], context(make_instance(model, SEQ)))
    (kept,) = kept_bytes(tensors, [Strategy("none")])
    values = layout_values(mbs=MBS, tp=tp, sp=int(sequence_parallel))
    assert measured == evaluate(kept, values) + TOKENS * (Fraction(norms, split) + rotary)


@pytest.mark.parametrize(
    ("attention", "feed_forward", "terms"),
    [(GQA, SWIGLU, ANGLES), (GQA, MIXTURE, ANGLES), (LATENT, MIXTURE, 0)],
)
def test_full_recomputation_keeps_the_input_and_its_arguments(
    attention: Attention, feed_forward: FeedForward, terms: Any
) -> None:
    model = one_layer(attention, feed_forward)
    mixture = SIGMOID if feed_forward is MIXTURE else {}
    recompute = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
    measured = layer_saves(model, decoder=True, **mixture, **recompute)
    (kept,) = kept_bytes(layer_tensors(model.kinds[0], context(make_instance(model, SEQ))), [FULL])
    assert measured == evaluate(kept, layout_values(mbs=MBS)) + TOKENS * (CAUSAL_MASK + terms)


@pytest.mark.parametrize("model_fields", [{}, {**GPT_MODEL, "tied_embeddings": True}])
def test_final_norm_and_loss(model_fields: dict[str, Any]) -> None:
    """A whole model less its layer: token numbers (8), and the loss' own: label (8), label outside the shard (1)."""
    from tests.classes.saved_storages import saved_bytes

    positions = bool(model_fields)
    model = one_layer(GPT, GELU, **model_fields) if positions else one_layer(GQA, SWIGLU)
    module = gpt(model)
    numbers = torch.randint(0, VOCABULARY, (MBS, SEQ))
    where = torch.arange(SEQ).expand(MBS, SEQ)
    whole = saved_bytes(module, lambda: module(numbers, where, causal_mask(), labels=numbers))
    instance = make_instance(model, SEQ, profile={"fused_cross_entropy": False})
    head = head_tensors(model, context(instance), VOCABULARY)
    expected = sum(evaluate(tensor.bytes_, layout_values(mbs=MBS)) for tensor in head)
    norm = STATISTICS + Fraction(8, MBS) if positions else upcast(HIDDEN)  # and the positions' numbers
    assert whole - layer_saves(model) == expected + TOKENS * (8 + 8 + 1 + norm)


def test_multi_token_prediction_depth() -> None:
    """A depth's layer, norms, projection and logits; of its loss: mask (8), loss (4), and a count for all tokens."""
    from tests.classes.saved_storages import saved_bytes

    model = one_layer(GQA, SWIGLU, num_mtp_layers=1, mtp_kind="k0")
    module = gpt(model, prediction_depths=1)
    numbers = torch.randint(0, VOCABULARY, (MBS, SEQ))
    where = torch.arange(SEQ).expand(MBS, SEQ)
    whole = saved_bytes(module, lambda: module(numbers, where, causal_mask(), labels=numbers))
    c = context(make_instance(model, SEQ, profile={"fused_cross_entropy": False}))
    tensors = [*head_tensors(model, c, VOCABULARY), *mtp_tensors(c)]
    expected = sum(evaluate(tensor.bytes_, layout_values(mbs=MBS)) for tensor in tensors)
    losses = 2 * (8 + 8 + 1) + 8 + 4 + Fraction(8, TOKENS)
    assert whole - 2 * layer_saves(model) == expected + TOKENS * (losses + upcast(HIDDEN, 4))
