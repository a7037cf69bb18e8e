"""Memory: every byte a rank holds, as sympy expressions in the layout symbols.

Whoever composes them into a rank's peak adds, for every live vector of the schedule, weights + gradients + optimizer +
live micro-batches x activations + the largest transient + buffers + fixed, and for the optimizer step its own row: the
peak of training is a maximum over phases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sympy import Expr, Integer, Max, Min

from prism_cp.formulas.activations import head_tensors, kept_bytes, layer_tensors, mtp_tensors
from prism_cp.formulas.deferred import embedding_deferred, head_deferred, layer_deferred, mtp_deferred
from prism_cp.formulas.offload import offloaded_bytes
from prism_cp.formulas.overheads import capacity_bytes, fixed_bytes, shared_buffers
from prism_cp.formulas.parameters import mtp_depth_weights, padded_vocabulary, part_weights, split_dense_expert
from prism_cp.formulas.saved import ELEMENT_BYTES, Context, SavedTensor, context
from prism_cp.formulas.strategies import Strategy, layer_kind, strategies_for
from prism_cp.formulas.symbols import expert_shard, is_pipelined, shard, tp, zero_1, zero_2, zero_3
from prism_cp.formulas.transients import (
    gathered_weights,
    head_transient,
    layer_transient,
    sharding_transient,
    weight_transient,
)
from prism_cp.formulas.weights import Weight
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.job import Profile

NONE = Strategy("none")


@dataclass(frozen=True)
class StateExpressions:
    """Bytes per device that do not depend on micro-batches."""

    weight_bytes: Expr
    gradient_bytes: Expr
    optimizer_bytes: Expr
    optimizer_step_bytes: Expr  # exists only while the optimizer steps


@dataclass(frozen=True)
class PartMemory:
    """Bytes of one layer of a chain kind (or of an end: then with one strategy) on a device.

    Attributes
    ----------
    activation_bytes, transient_bytes
        One expression per entry of `strategies`: per live micro-batch, and once while the part's backward runs.
    deferred_bytes
        Per micro-batch between its input gradient and its weight gradient, where the schedule splits them.
    """

    name: str
    strategies: tuple[Strategy, ...]
    activation_bytes: tuple[Expr, ...]
    transient_bytes: tuple[Expr, ...]
    deferred_bytes: Expr
    weight_bytes: Expr
    gradient_bytes: Expr
    optimizer_bytes: Expr
    optimizer_step_bytes: Expr


@dataclass(frozen=True)
class MemoryExpressions:
    """Every memory expression of an instance; the only free symbols are layout symbols.

    Attributes
    ----------
    kinds
        In the order of ``Model.chain_kinds``.
    buffers
        ``(bytes, indices of chain kinds, on the embedding's stage, on the head's stage)``: paid once by a rank that
        holds any of them.
    fixed_bytes, capacity_bytes
        Per rank.
    """

    kinds: tuple[PartMemory, ...]
    embedding: PartMemory
    head: PartMemory
    buffers: list[tuple[Expr, frozenset[int], bool, bool]]
    fixed_bytes: Expr
    capacity_bytes: Expr


def _share(stage: Expr, ranks: Expr) -> Expr:
    """Part of a state that a device holds: all of it, or one of `ranks` shares from a ZeRO stage on."""
    return (1 - stage) + stage / ranks


def _second_moments(weights: Sequence[Weight], profile: Profile) -> Expr:
    """What Muon keeps for tensors that Adam updates beside it: vectors, embeddings and output projections."""
    if profile.optimizer == "adam":
        return Integer(0)
    by_adam = [weight for weight in weights if weight.cols == 1 or weight.name.endswith(("embedding", "projection"))]
    others = [weight for weight in by_adam if weight.name not in ("mtp_projection", "in_projection")]
    dense, expert = split_dense_expert(others)
    ranks = (shard / profile.optimizer_instances, expert_shard / profile.optimizer_instances)
    return 4 * (dense * _share(zero_1, ranks[0]) + expert * _share(zero_1, ranks[1]))


def copies_gradients(profile: Profile) -> bool:
    """Whether 16-bit gradients also exist in fp32 from the optimizer step on, beside the optimizer states."""
    counted = profile.optimizer_state_bytes >= 16  # the states include that copy
    return profile.gradient_bytes < 4 and not counted and not profile.precision_aware_optimizer


def state_expressions(weights: Sequence[Weight], instance: Instance) -> StateExpressions:
    """Weights, accumulated gradients and optimizer states of a list of weights on a device.

    ZeRO stages 1, 2 and 3 shard optimizer states, gradients and weights over dp·cp, those of routed experts over edp
    (Rajbhandari et al., arXiv 1910.02054; Megatron-LM core/optimizer/distrib_optimizer.py shards over dp·cp). fp8
    keeps every layer weight in 16 bits and as a row-wise and a column-wise fp8 copy (Transformer Engine).

    While the optimizer steps it needs a temporary of at most four bytes per parameter of the shard, which the
    profile caps; 16-bit gradients also exist in fp32 from the step to the next backward pass, unless the profile's
    optimizer states (16 bytes) count that copy already.
    """
    profile = instance.profile
    dense, expert = split_dense_expert(weights)
    in_fp8 = split_dense_expert(weight for weight in weights if weight.low_precision)
    copies = 2 if instance.job.precision == "fp8" and not profile.fp8_in_products_only else 0
    weight_bytes = gradient_bytes = sharded = Integer(0)
    for count, low, ranks in ((dense, in_fp8[0], shard), (expert, in_fp8[1], expert_shard)):
        if count != 0:
            wide = count - low if copies and profile.fp8_parameters else count
            weight_bytes += (ELEMENT_BYTES * wide + copies * low) * _share(zero_3, ranks)
            if instance.job.frozen_weights:
                continue
            gradient_bytes += profile.gradient_bytes * count * _share(zero_2, ranks)
            sharded += count * _share(zero_1, ranks / profile.optimizer_instances)
    step = Min(Integer(profile.optimizer_step_bytes), 4 * sharded, evaluate=False)
    if copies_gradients(profile):
        step += 4 * sharded
    optimizer_bytes = profile.optimizer_state_bytes * sharded + _second_moments(weights, profile)
    return StateExpressions(weight_bytes, gradient_bytes, optimizer_bytes, step)


def _part(
    name: str,
    instance: Instance,
    strategies: tuple[Strategy, ...],
    activation: Sequence[Expr],
    transient: Sequence[Expr],
    deferred: Expr,
) -> PartMemory:
    state = state_expressions(part_weights(name, instance), instance)
    return PartMemory(
        name,
        strategies,
        tuple(activation),
        tuple(transient),
        deferred,
        state.weight_bytes,
        state.gradient_bytes,
        state.optimizer_bytes,
        state.optimizer_step_bytes,
    )


def _kind_tensors(name: str, instance: Instance, c: Context) -> tuple[list[SavedTensor], int]:
    """Saved tensors of one layer (of one depth for ``mtp``), and how many such layers the chain item stands for."""
    tensors = layer_tensors(layer_kind(name, instance), c)
    if name == "mtp":
        return tensors + mtp_tensors(c), instance.model.num_mtp_layers
    return tensors, 1


def _chain_part(name: str, instance: Instance, c: Context) -> PartMemory:
    """A chain kind: what a strategy does not keep comes back, one layer at a time, in its backward pass."""
    strategies = strategies_for(name, instance)
    tensors, layers = _kind_tensors(name, instance, c)
    unit = mtp_depth_weights(instance.model) if name == "mtp" else part_weights(name, instance)
    everything, *kept = kept_bytes(tensors, (NONE, *strategies))
    running = layer_transient(layer_kind(name, instance), c) + weight_transient(unit, c)
    away = [offloaded_bytes(tensors, strategy, instance.profile.offload_modules) for strategy in strategies]
    activation = [layers * (bytes_ - host) for bytes_, host in zip(kept, away, strict=True)]
    fetched = instance.profile.offload_layers_on_device
    transient = [running + everything - bytes_ + fetched * host for bytes_, host in zip(kept, away, strict=True)]
    deferred = layer_deferred(layer_kind(name, instance), instance.model.hidden_size, c)
    if name == "mtp":
        deferred += mtp_deferred(instance.model.hidden_size, c)
    return _part(name, instance, strategies, activation, transient, layers * deferred)


def _embedding_part(instance: Instance, c: Context, vocabulary: Expr) -> PartMemory:
    """The embedding: token ids, a dropout mask, and its gradient.

    The whole gradient of the word embedding exists before it is added to the accumulated one, but only after the
    stage's layers have given back this micro-batch's activations and transients; what the first layer alone gives back
    is subtracted.
    """
    activation = 8 * c.tokens + sum(tensor.bytes_ for tensor in c.dropout_mask("embedding_dropout"))
    first = instance.model.chain[0]
    tensors, _ = _kind_tensors(first, instance, c)
    released = kept_bytes(tensors, [NONE])[0] + layer_transient(layer_kind(first, instance), c)
    gradient = ELEMENT_BYTES * vocabulary * c.hidden / tp
    transient = Max(0, gradient - released, evaluate=False) + weight_transient(part_weights("embedding", instance), c)
    return _part("embedding", instance, (NONE,), [activation], [transient], embedding_deferred(c))


def _head_part(instance: Instance, c: Context, vocabulary: Expr) -> PartMemory:
    """Final norm, output projection and loss, with the logits of every multi-token-prediction depth.

    A tied projection that is stored with the embedding is gathered by ZeRO-3 for the head, too; its whole gradient is
    the embedding's.
    """
    activation = kept_bytes(head_tensors(instance.model, c, vocabulary / tp), [NONE])
    transient = head_transient(c, vocabulary / tp) + sharding_transient(part_weights("head", instance), c)
    if instance.model.tied_embeddings:
        transient += (1 - is_pipelined) * gathered_weights(vocabulary * c.hidden / tp)
    deferred = head_deferred(1 + instance.model.num_mtp_layers, c, vocabulary / tp)
    return _part("head", instance, (NONE,), activation, [transient], deferred)


def memory_expressions(instance: Instance) -> MemoryExpressions:
    """All memory expressions of an instance, in bytes, exact, over the layout symbols of `symbols`.

    Raises
    ------
    InstanceError
        The profile or the search space names a recomputation module that is not known or not available.
    """
    c, vocabulary = context(instance), padded_vocabulary(instance)
    return MemoryExpressions(
        kinds=tuple(_chain_part(name, instance, c) for name in instance.model.chain_kinds),
        embedding=_embedding_part(instance, c, vocabulary),
        head=_head_part(instance, c, vocabulary),
        buffers=shared_buffers(instance, c),
        fixed_bytes=fixed_bytes(instance, c),
        capacity_bytes=capacity_bytes(instance),
    )
