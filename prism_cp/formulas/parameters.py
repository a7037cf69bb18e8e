"""Parameters: the exact size of a model and what each chain kind and end puts on a device.

All counts are sums over the `weights` of the parts; the ends and the multi-token-prediction layers are listed here.
"""

from __future__ import annotations

from collections.abc import Iterable

from sympy import Integer, ceiling

from prism_cp.formulas.symbols import is_pipelined, tp
from prism_cp.formulas.weights import ONE, Number, Weight, layer_weights, matrix, norm_vectors
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.model import Model


def embedding_weights(model: Model, vocabulary: Number) -> list[Weight]:
    """Token embedding, learned positions, embedding norm."""
    hidden = Integer(model.hidden_size)
    weights = [Weight("word_embedding", vocabulary, hidden, "tp")]
    if model.num_learned_positions:
        weights.append(Weight("position_embedding", Integer(model.num_learned_positions), hidden))
    if model.embedding_norm:
        weights.append(Weight("embedding_norm", norm_vectors(model) * hidden))
    return weights


def head_weights(model: Model, vocabulary: Number, copies: Number = ONE) -> list[Weight]:
    """Final norm and output projection; `copies` says how often a tied projection is stored besides the embedding."""
    hidden = Integer(model.hidden_size)
    weights = [Weight("final_norm", norm_vectors(model) * hidden)]
    weights.append(Weight("output_projection", vocabulary, hidden, "tp", copies=copies, gemm=True))
    if model.head_transform:
        transform = [Weight("head_transform", hidden, hidden, gemm=True), Weight("pooler", hidden, hidden, gemm=True)]
        vectors = 2 + norm_vectors(model)  # both biases and a norm; then two classes of a next sentence
        weights += [*transform, Weight("head_transform_vectors", vectors * hidden), Weight("next_sentence", hidden, 2)]
    if model.head_bias:
        weights.append(Weight("output_bias", vocabulary, sharding="tp"))
    return weights


def mtp_depth_weights(model: Model) -> list[Weight]:
    """One multi-token-prediction depth (DeepSeek-V3, arXiv 2412.19437, section 2.2).

    A layer, three norms and the projection of two concatenated hidden states (Megatron-LM
    core/transformer/multi_token_prediction.py).
    """
    assert model.mtp_kind is not None
    hidden = Integer(model.hidden_size)
    return [
        *layer_weights(model.kind(model.mtp_kind), model),
        Weight("mtp_norms", 3 * norm_vectors(model) * hidden),
        matrix("mtp_projection", hidden, 2 * hidden, "rows"),
    ]


def mtp_weights(model: Model, vocabulary: Number, embedding_copies: Number) -> list[Weight]:
    """All multi-token-prediction depths with their copy of the embedding."""
    copy = Weight("mtp_word_embedding", vocabulary, Integer(model.hidden_size), "tp", copies=embedding_copies)
    return [*(mtp_depth_weights(model) * model.num_mtp_layers), copy]


def padded_vocabulary(instance: Instance) -> Number:
    """Vocabulary rounded up to a multiple of ``vocab_padding * tp`` (Megatron-LM training/tokenizer)."""
    multiple = instance.job.vocab_padding * tp
    return multiple * ceiling(Integer(instance.model.vocab_size) / multiple)


def part_weights(part: str, instance: Instance) -> list[Weight]:
    """Weights of a chain kind (``mtp`` included) or of an end, with what pipelining stores twice.

    With ``pp`` > 1 a tied output projection and the multi-token-prediction layers keep their own copy of the embedding
    (Megatron-LM core/models/gpt/gpt_model.py).
    """
    model, vocabulary = instance.model, padded_vocabulary(instance)
    if part == "embedding":
        return embedding_weights(model, vocabulary)
    if part == "head":
        return head_weights(model, vocabulary, is_pipelined if model.tied_embeddings else ONE)
    if part == "mtp":
        return mtp_weights(model, vocabulary, is_pipelined)
    return layer_weights(model.kind(part), model)


def split_dense_expert(weights: Iterable[Weight]) -> tuple[Number, Number]:
    """Parameters on a device: those whose optimizer shards over dp·cp, and those of routed experts, over edp."""
    dense = expert = Integer(0)
    for weight in weights:
        if weight.sharding == "expert":
            expert += weight.local_count
        else:
            dense += weight.local_count
    return dense, expert


def device_parameters(kind_or_end: str, instance: Instance) -> tuple[Number, Number]:
    """Parameters that one layer of a chain kind (or an end) puts on a device.

    Parameters
    ----------
    kind_or_end : str
        A name of ``instance.model.chain_kinds`` (``mtp`` stands for all depths), ``embedding`` or ``head``.

    Returns
    -------
    dense, expert : sympy expressions in layout symbols
        Element counts; optimizer states of the first are sharded over dp·cp, of the second over edp.
    """
    return split_dense_expert(part_weights(kind_or_end, instance))


def parameter_expressions(instance: Instance) -> dict[str, tuple[Number, Number]]:
    """`device_parameters` of every chain kind and of both ends, by name."""
    return {part: device_parameters(part, instance) for part in (*instance.model.chain_kinds, "embedding", "head")}


def model_parameters(model: Model, include_mtp: bool = False) -> int:
    """Exact number of trained parameters of the whole model, vocabulary unpadded, tied weights once.

    Multi-token-prediction depths count only when `include_mtp`, because published totals leave them out.
    """
    vocabulary = Integer(model.vocab_size)
    weights = embedding_weights(model, vocabulary) + head_weights(model, vocabulary, Integer(not model.tied_embeddings))
    total = sum(weight.count for weight in weights)
    for group in model.layers:
        total += group.count * sum(weight.count for weight in layer_weights(model.kind(group.kind), model))
    if include_mtp and model.num_mtp_layers:
        total += sum(weight.count for weight in mtp_weights(model, vocabulary, Integer(0)))
    return int(total)
