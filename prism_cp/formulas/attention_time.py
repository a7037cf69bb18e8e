"""Attention and other mixers: their kernels, what context parallelism communicates, as parts of a layer."""

from __future__ import annotations

from sympy import Expr, Integer, Max, Rational, sympify

from prism_cp.formulas import symbols as s
from prism_cp.formulas.flops import (
    CORE,
    LATENT_UP,
    attention_linears,
    attention_pairs,
    core_width,
    state_space_flops_per_token,
)
from prism_cp.formulas.layer_parts import ELEMENT_BYTES, Part, PartBuilder, Times
from prism_cp.formulas.operators import attention_rate, attention_template
from prism_cp.inputs.model import Attention, GatedDeltaNet, LatentAttention, Mamba2, SelfAttention

# Bytes per attention score where scores are materialised: two products and a softmax, forward and backward, and what
# dropout adds to either (checked on Korthikanti et al. and the BLOOM chronicles).
_SCORE_BYTES_FORWARD, _SCORE_BYTES_BACKWARD, _DROPOUT_SCORE_BYTES = 8, 14, 5
# 16-bit products of a head dimension that is no multiple of 8 elements cannot use the matrix units (NVIDIA's matrix
# multiplication guide; the BLOOM chronicles' heads of 108): 39 against 312 TFLOP/s on an A100.
_MATRIX_UNIT_ALIGNMENT, _VECTOR_UNIT_SLOWDOWN = 8, 8
# Fused attention's backward has five products where the forward has two (FlashAttention-2, arXiv 2307.08691).
_FUSED_BACKWARD_PRODUCTS, _FORWARD_PRODUCTS = 5, 2


def attention_parts(attention: Attention, builder: PartBuilder) -> list[Part]:
    """Parts of one attention block, norms left out: projections, core, tensor- and context-parallel communication."""
    linears = {
        linear.name: (linear, builder.linear(linear))
        for linear in attention_linears(attention, builder.model.hidden_size)
    }
    parts = [Part(times.times, linear.modules) for linear, times in linears.values()]
    parts.append(Part(builder.residual()))
    row = linears["out"][1]
    if isinstance(attention, SelfAttention):
        parts.append(Part(builder.tensor_parallel_exchange(linears["qkv"][1], row)))
        parts += _self_attention_parts(attention, builder)
    elif isinstance(attention, LatentAttention):
        latent = attention.kv_lora_rank + attention.qk_rope_head_dim + (attention.q_lora_rank or 0)
        if attention.q_lora_rank is None:
            latent += builder.model.hidden_size
        gathered = ELEMENT_BYTES * latent * builder.tokens
        parts.append(Part(builder.tensor_parallel_exchange(linears["kv_up"][1], row, gathered)))
        parts += _latent_attention_parts(attention, builder)
    else:
        parts.append(Part(builder.tensor_parallel_exchange(linears["in"][1], row)))
        parts += _state_space_parts(attention, builder, linears["in"][0].out_features)
    return parts


def _self_attention_parts(attention: SelfAttention, builder: PartBuilder) -> list[Part]:
    heads, groups, dim = attention.num_attention_heads, attention.num_key_value_heads, attention.head_dim
    queries = builder.tokens * heads * dim / s.tp * ELEMENT_BYTES
    keys = (
        builder.tokens * Max(1, groups / s.tp, evaluate=False) * dim * ELEMENT_BYTES
    )  # one key head stays whole on a rank
    parts = _core_parts(attention, builder, 2 * dim, attention.window, queries, queries, keys, keys)
    if builder.model.num_learned_positions == 0:
        rotary = builder.pointwise(2 * (queries + keys))  # read and write queries and keys
        parts.append(Part(Times(rotary, rotary)))
    joined = Integer((heads + 2 * groups) * dim) / s.tp
    biases = (joined if attention.qkv_bias else 0) + (builder.model.hidden_size if attention.output_bias else 0)
    parts.append(Part(builder.eager_gradients(sympify(biases), joined)))
    if attention.qk_norm:
        parts.append(Part(Times(builder.pointwise(2 * (queries + keys)), builder.pointwise(4 * (queries + keys)))))
    if attention.output_gate:
        parts.append(Part(Times(builder.pointwise(3 * queries), builder.pointwise(5 * queries))))
    return parts


def _latent_attention_parts(attention: LatentAttention, builder: PartBuilder) -> list[Part]:
    heads = attention.num_attention_heads
    query_dim = attention.qk_nope_head_dim + attention.qk_rope_head_dim
    rank_tokens = builder.tokens * heads / s.tp * ELEMENT_BYTES
    queries, values = rank_tokens * query_dim, rank_tokens * attention.v_head_dim
    parts = _core_parts(attention, builder, query_dim + attention.v_head_dim, None, queries, values, queries, values)
    # Rotation of a part of every query, and assembly of keys from their two parts.
    rotary = builder.pointwise(2 * rank_tokens * (attention.qk_rope_head_dim + query_dim))
    parts.append(Part(Times(rotary, rotary), LATENT_UP))
    latent = attention.kv_lora_rank + (attention.q_lora_rank or 0)
    parts.append(Part(builder.norms(1, latent)))
    return parts


def _core_parts(
    attention: SelfAttention | LatentAttention,
    builder: PartBuilder,
    head_dims: int,
    window: int | None,
    query_bytes: Expr,
    output_bytes: Expr,
    key_bytes: Expr,
    value_bytes: Expr,
) -> list[Part]:
    """Scores, softmax and weighted sum, with what context parallelism communicates around them."""
    moved = query_bytes + key_bytes + value_bytes + output_bytes
    share = s.mbs / (s.cp * s.tp)
    if builder.profile.flash_attention:
        length = min(builder.instance.job.document_len or builder.seq_len, builder.seq_len)
        pairs = Rational(builder.seq_len, length) * attention_pairs(length, window)
        flops = 2 * pairs * core_width(attention) * share
        # A ring of context-parallel ranks works on blocks of its own length; the other variants see whole sequences.
        block = length * (1 - s.cp_p2p * (1 - 1 / s.cp))
        device, rate = builder.device, attention_rate(builder.instance, builder.templates.peak_flops, head_dims)
        forward = builder.program.call(
            attention_template(f"attention_{head_dims}", device, rate, False), flops, block, moved
        )
        ratio = Integer(_FUSED_BACKWARD_PRODUCTS) / _FORWARD_PRODUCTS
        backward = builder.program.call(
            attention_template(f"attention_backward_{head_dims}", device, rate, True),
            flops * ratio,
            block,
            2 * moved,
        )
        core = Times(forward, backward)
    else:
        core = _unfused_core(attention, builder, head_dims, moved)
    return [
        Part(core, CORE),
        Part(_context_parallel(builder, core, query_bytes, output_bytes, key_bytes + value_bytes)),
    ]


def _unfused_core(
    attention: SelfAttention | LatentAttention, builder: PartBuilder, head_dims: int, moved: Expr
) -> Times:
    """Materialised scores: two batched products over the whole square, and the passes over the scores."""
    rows, columns = builder.seq_len / s.cp, Integer(builder.seq_len)
    batch = s.mbs * attention.num_attention_heads / s.tp
    dropout = _DROPOUT_SCORE_BYTES if builder.instance.job.dropout else 0
    scores = batch * rows * columns

    def product(m: Expr, k: Expr, n: Expr) -> Expr:
        return builder.program.call(builder.templates.plain, m, k, n, batch, ELEMENT_BYTES, moved / 2)

    half = Integer(head_dims) / 2
    forward = product(rows, half, columns) + product(rows, columns, half)
    if head_dims % (2 * _MATRIX_UNIT_ALIGNMENT):
        forward *= _VECTOR_UNIT_SLOWDOWN
    return Times(
        forward + builder.pointwise((_SCORE_BYTES_FORWARD + dropout) * scores),
        2 * forward + builder.pointwise((_SCORE_BYTES_BACKWARD + dropout) * scores),
    )


def _context_parallel(
    builder: PartBuilder, core: Times, query_bytes: Expr, output_bytes: Expr, key_value_bytes: Expr
) -> Times:
    """Exposed context-parallel communication.

    Ring: cp-1 exchanges of keys and values, each hidden behind one block of attention; twice the bytes backward.
    All-gather of keys and values, reduce-scatter of their gradients: not overlapped. All-to-all of heads: queries, keys
    and values in, output out. Source: Megatron-LM's context-parallel documentation.
    """
    group = builder.groups["cp"]

    def ring(bytes_: Expr, work: Expr) -> Expr:
        return (s.cp - 1) * Max(0, group.neighbour_s(bytes_) - work / s.cp, evaluate=False)

    gather = group.ring_s(key_value_bytes * s.cp)
    heads = group.exchange_s(query_bytes + key_value_bytes) + group.exchange_s(output_bytes)
    return Times(
        s.cp_p2p * ring(key_value_bytes, core.forward) + s.cp_all_gather * gather + s.cp_a2a * heads,
        s.cp_p2p * ring(2 * key_value_bytes, core.input_grad) + s.cp_all_gather * 2 * gather + s.cp_a2a * heads,
    )


def _state_space_parts(attention: GatedDeltaNet | Mamba2, builder: PartBuilder, in_features: int) -> list[Part]:
    """Linear attention: a chunked scan (tensor cores at fused attention's rate, or the HBM stream), its convolution
    and gate; context parallelism exchanges channels all-to-all in and out whatever the attention layers use."""
    if isinstance(attention, GatedDeltaNet):
        output = attention.num_value_heads * attention.value_head_dim
        head_dims = attention.key_head_dim + attention.value_head_dim
    else:
        output = attention.num_heads * attention.head_dim
        head_dims = attention.state_dim + attention.head_dim
    tokens = builder.tokens / s.tp * ELEMENT_BYTES
    inputs, outputs = tokens * in_features, tokens * output
    flops = builder.tokens / s.tp * state_space_flops_per_token(attention)
    device, block = builder.device, Integer(builder.seq_len)
    rate = attention_rate(builder.instance, builder.templates.peak_flops, head_dims)
    name = f"scan_{head_dims}"
    forward = builder.program.call(attention_template(name, device, rate, False), flops, block, 2 * inputs + outputs)
    backward = builder.program.call(
        attention_template(f"{name}_backward", device, rate, True),
        2 * flops,
        block,
        4 * inputs + 2 * outputs,
    )
    gate = Times(builder.pointwise(3 * outputs), builder.pointwise(5 * outputs))
    group = builder.groups["cp"]
    exchange = group.exchange_s(inputs) + group.exchange_s(outputs)
    return [Part(Times(forward, backward), CORE), Part(gate), Part(Times(exchange, exchange))]
