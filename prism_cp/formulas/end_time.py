"""The ends of the chain: embedding, output head with loss, and the projection of a multi-token-prediction depth."""

from __future__ import annotations

from sympy import Expr, Integer, ceiling

from prism_cp.formulas import symbols as s
from prism_cp.formulas.layer_parts import Part, PartBuilder, Times
from prism_cp.inputs.instance import Instance

_FP32_BYTES = 4
# Loss of one logit, bytes moved forward and backward. Fused: 16-bit logits read for maximum and sum, again for the
# gradient that overwrites them. Unfused: passes over an fp32 copy. Eager: PyTorch's own, with a cast (6) and the
# logarithm of the softmax (8), and backward its gradient's zeros (4), its derivative (12) and a cast back (6).
_FUSED_LOSS_BYTES, _UNFUSED_LOSS_BYTES, _EAGER_LOSS_BYTES = (4, 4), (8, 6), (14, 22)
_LOSS_REDUCTIONS = 3  # maximum, sum of exponentials, target logit (Megatron-LM core/tensor_parallel/cross_entropy.py)


def prediction_parts(builder: PartBuilder) -> list[Part]:
    """What a multi-token-prediction depth has besides its layer: three norms, and the projection of two concatenated
    hidden states with its collectives (Megatron-LM ``core/transformer/multi_token_prediction.py``)."""
    hidden = Integer(builder.model.hidden_size)
    projection = builder.product(builder.tokens, 2 * hidden, hidden / s.tp)
    exchange = builder.groups["tp"].ring_s(builder.hidden_bytes, passes=2, calls=2)
    return [Part(projection.times), Part(builder.norms(3)), Part(Times(exchange, exchange))]


def embedding_parts(builder: PartBuilder) -> list[Part]:
    """Lookup (read and write a row a token), scatter-add of fp32 gradients backward, and the sum over tensor-parallel
    vocabulary shards: all-reduce, or reduce-scatter and gather back with sequence parallelism."""
    group, hidden = builder.groups["tp"], builder.hidden_bytes
    lookup = builder.pointwise(2 * hidden)
    scatter = builder.pointwise(3 * _FP32_BYTES * builder.model.hidden_size * builder.tokens)
    times = Times(lookup + group.ring_s(hidden, passes=2 - s.sp), s.sp * group.ring_s(hidden), scatter)
    parts = [Part(times)]
    if builder.model.embedding_norm:
        parts.append(Part(builder.norms(1)))
    return parts


def local_vocabulary(instance: Instance) -> Expr:
    """Padded vocabulary entries of one tensor-parallel rank (Megatron-LM pads to a multiple of padding times tp)."""
    padding = instance.job.vocab_padding
    return padding * ceiling(Integer(instance.model.vocab_size) / (padding * s.tp))


def head_parts(builder: PartBuilder) -> list[Part]:
    """Final norm, logits and vocabulary-parallel loss; logits and loss once more for every prediction depth.

    The matrix stays in 16 bit whatever the job's precision (Megatron-LM, Transformer Engine).
    """
    group, model = builder.groups["tp"], builder.model
    vocabulary = local_vocabulary(builder.instance)
    logits = builder.product(builder.tokens, Integer(model.hidden_size), vocabulary, plain=True)
    size = builder.tokens * vocabulary
    loss_bytes = _FUSED_LOSS_BYTES
    if not builder.profile.fused_cross_entropy:
        loss_bytes = _UNFUSED_LOSS_BYTES if builder.profile.fused_pointwise else _EAGER_LOSS_BYTES
    forward_bytes, backward_bytes = loss_bytes
    reductions: Expr = _LOSS_REDUCTIONS * group.ring_s(_FP32_BYTES * builder.tokens, passes=2)
    hidden = builder.hidden_bytes
    loss = Times(
        builder.pointwise(forward_bytes * size) + reductions + s.sp * group.ring_s(hidden),
        builder.pointwise(backward_bytes * size) + group.ring_s(hidden, passes=2 - s.sp),
    )
    once = logits.times + loss
    times = Times(*((1 + model.num_mtp_layers) * value for value in vars(once).values()))
    return [Part(builder.norms(1)), Part(times)]
