"""Overheads: buffers that ranks pay once, what the software stack takes in any case, and the usable capacity."""

from __future__ import annotations

from sympy import Expr, Integer, Min

from prism_cp.formulas.activations_attention import local_key_heads
from prism_cp.formulas.parameters import padded_vocabulary, part_weights
from prism_cp.formulas.saved import ELEMENT_BYTES, Context, exact, sequence_parallel
from prism_cp.formulas.strategies import layer_kind
from prism_cp.formulas.symbols import cp, cp_p2p, dp, ep, etp, expert_shard, is_pipelined, numbers, shard, tp
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.model import LatentAttention, MixtureOfExperts, SelfAttention


def _buffer_sizes(part: str, instance: Instance, c: Context) -> dict[object, Expr]:
    """Bytes of every buffer that a layer kind needs, by what identifies it."""
    sizes: dict[object, Expr] = {}
    layer = layer_kind(part, instance)
    if c.profile.dummy_weight_gradients:
        for weight in part_weights(part, instance):
            if weight.gemm:
                rows, cols = weight.local_shape
                sizes[rows, cols] = ELEMENT_BYTES * rows * cols
    if isinstance(layer.feed_forward, MixtureOfExperts) and c.profile.grouped_gemm_workspace_bytes:
        sizes["grouped matrix multiplication"] = Integer(c.profile.grouped_gemm_workspace_bytes)
    if (
        not c.profile.flash_attention
        and not c.profile.transformer_engine
        and c.profile.keeps_score_buffer
        and isinstance(layer.attention, SelfAttention | LatentAttention)
    ):
        heads = Integer(layer.attention.num_attention_heads)
        sizes["scores", heads] = ELEMENT_BYTES * c.tokens * c.seq_len * heads / tp
    if c.profile.ring_keeps_block and isinstance(layer.attention, SelfAttention):
        key_heads, head_dim = local_key_heads(numbers(layer.attention)), Integer(layer.attention.head_dim)
        sizes["ring", key_heads * head_dim] = cp_p2p * 2 * ELEMENT_BYTES * c.tokens * key_heads * head_dim
    if not c.profile.transformer_engine:
        sizes["gathered input"] = sequence_parallel * ELEMENT_BYTES * c.tokens * c.hidden
    return sizes


def shared_buffers(instance: Instance, c: Context) -> list[tuple[Expr, frozenset[int], bool, bool]]:
    """Buffers that layers share: ``(bytes, chain kind indices, on the embedding's stage, on the head's stage)``.

    With in-place accumulation of weight gradients Transformer Engine returns a dummy gradient, one cached per distinct
    local weight shape (``get_dummy_wgrad``, transformer_engine/pytorch/module/base.py; experts have one shape each).
    It multiplies grouped matrices on four streams with a cuBLAS workspace each. Megatron's own attention keeps one
    buffer of scores (Megatron-LM core/transformer/dot_product_attention.py), and its own linear layers gather sequence
    shards into one global buffer (core/tensor_parallel/layers.py, ``get_global_memory_buffer``).
    """
    size: dict[object, Expr] = {}
    kinds: dict[object, set[int]] = {}
    for index, kind in enumerate(instance.model.chain_kinds):
        for key, bytes_ in _buffer_sizes(kind, instance, c).items():
            size[key] = bytes_
            kinds.setdefault(key, set()).add(index)
    buffers = [(bytes_, frozenset(kinds[key]), False, False) for key, bytes_ in size.items()]
    if c.profile.dummy_weight_gradients and c.profile.keeps_head_dummy:
        dummy = ELEMENT_BYTES * c.hidden * padded_vocabulary(instance) / tp
        buffers.append((dummy, frozenset[int](), False, True))
    return buffers


def _exists(group: Expr) -> Expr:
    """1 when a process group has more than one rank, else 0."""
    return Min(1, group - 1)


def num_communicators(instance: Instance) -> Expr:
    """Process groups of more than one rank that a rank communicates in (Megatron-LM core/parallel_state.py).

    Tensor, context, pipeline, data with context, data alone where that differs, the world; with experts: expert,
    expert with expert-tensor, expert data; with tied or multi-token-prediction embeddings the group of the stages that
    hold a copy.
    """
    model = instance.model
    count = _exists(tp) + _exists(cp) + is_pipelined + _exists(shard) + _exists(cp) * _exists(dp)
    if model.tied_embeddings or model.num_mtp_layers:
        count += is_pipelined
    if any(isinstance(kind.feed_forward, MixtureOfExperts) for kind in model.kinds):
        count += _exists(ep) + _exists(etp) + _exists(ep) * _exists(etp) + _exists(expert_shard)
    return count + (1 if instance.cluster.num_devices > 1 else 0)


def fixed_bytes(instance: Instance, c: Context) -> Expr:
    """Driver context, library workspaces, communicators, and with pipelining the tensors in flight between stages."""
    profile = instance.profile
    fixed = Integer(profile.context_bytes + profile.workspace_bytes)
    return fixed + profile.communicator_bytes * num_communicators(instance) + is_pipelined * 2 * c.hidden_state


def usable_bytes(instance: Instance) -> Expr:
    """The share of the card that live tensors can fill before fragmentation stops the allocator."""
    return Integer(instance.cluster.device.memory_bytes) * exact(instance.profile.allocator_efficiency)


def capacity_bytes(instance: Instance) -> Expr:
    """What a plan may fill: `usable_bytes` less the profile's margin.

    The margin is no reserve for anything: fragmentation, driver, communicators and workspaces have terms of their own.
    It covers predictions that are too low. Where ``predicted = measured * (1 - margin)``, a measured peak stays inside
    the usable bytes if the predicted one stays inside ``usable * (1 - margin)``.
    """
    return usable_bytes(instance) * (1 - exact(instance.profile.memory_margin))
