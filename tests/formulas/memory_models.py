"""Small instances and a plain evaluator for the memory tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy

from prism_cp.formulas import symbols as s
from prism_cp.formulas.evaluate import exact_function
from prism_cp.formulas.memory import MemoryExpressions
from prism_cp.inputs.cluster import Cluster, Device, LinkLevel
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.job import Job, Profile
from prism_cp.inputs.layout import LayoutSpace
from prism_cp.inputs.model import (
    Attention,
    DenseFeedForward,
    FeedForward,
    LatentAttention,
    LayerGroup,
    LayerKind,
    MixtureOfExperts,
    Model,
    SelfAttention,
)

GIB = 2**30
ALL_MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts")

PROFILE = Profile(
    name="test",
    allocator_efficiency=0.94,
    memory_margin=0.05,
    context_bytes=400 * 2**20,
    communicator_bytes=500 * 2**20,
    workspace_bytes=100 * 2**20,
    grouped_gemm_workspace_bytes=4 * 32 * 2**20,
    dummy_weight_gradients=True,
    fused_cross_entropy=True,
    loss_peak_bytes_per_logit=2,
    softmax_statistics_bytes=4,
    rope_saves_input=False,
    attention_copies_output=False,
    flash_attention=True,
    optimizer_step_bytes=0,
    gradient_bytes=4,
    gradient_reduce_bytes=4,
    optimizer_state_bytes=12,
    overlap_grad_reduce=True,
    overlap_param_gather=True,
    gradient_overlap_window=0.9,
    bucket_parameters=40_000_000,
    tp_overlap=False,
    dispatcher="alltoall",
    full_cuda_graphs=False,
    host_launch_floor_s=0.0,
    moe_host_sync_s=0.0,
    jitter_per_doubling=0.0,
    recompute_modules=ALL_MODULES,
)
DEVICE = Device(
    name="test",
    memory_bytes=80 * GIB,
    hbm_bytes_per_s=3e12,
    peak_flops={"bf16": 1e15},
    num_cores=100,
    gemm_efficiency=0.7,
    grouped_gemm_efficiency=0.9,
    attention_efficiency=0.6,
    hbm_efficiency=0.8,
)


def mha(heads: int, head_dim: int, **fields: Any) -> SelfAttention:
    return SelfAttention(num_attention_heads=heads, num_key_value_heads=heads, head_dim=head_dim, **fields)


def gqa(heads: int, key_value_heads: int, head_dim: int, **fields: Any) -> SelfAttention:
    return SelfAttention(num_attention_heads=heads, num_key_value_heads=key_value_heads, head_dim=head_dim, **fields)


def dense(width: int, **fields: Any) -> DenseFeedForward:
    return DenseFeedForward(intermediate_size=width, **fields)


def moe(experts: int, top_k: int, width: int, **fields: Any) -> MixtureOfExperts:
    return MixtureOfExperts(num_experts=experts, top_k=top_k, intermediate_size=width, **fields)


def mla(heads: int, q_lora_rank: int | None = 1536) -> LatentAttention:
    return LatentAttention(
        num_attention_heads=heads,
        q_lora_rank=q_lora_rank,
        kv_lora_rank=512,
        qk_nope_head_dim=128,
        qk_rope_head_dim=64,
        v_head_dim=128,
    )


def make_model(
    hidden: int,
    vocabulary: int,
    groups: Sequence[tuple[int, Attention | None, FeedForward | None]],
    num_norms: int = 2,
    **fields: Any,
) -> Model:
    """A model whose i-th group of layers is a kind named ``k<i>``."""
    kinds = [
        LayerKind(name=f"k{i}", attention=attention, feed_forward=feed_forward, num_norms=num_norms)
        for i, (_, attention, feed_forward) in enumerate(groups)
    ]
    return Model(
        name="test",
        hidden_size=hidden,
        vocab_size=vocabulary,
        kinds=tuple(kinds),
        layers=tuple(LayerGroup(kind=f"k{i}", count=group[0]) for i, group in enumerate(groups)),
        **fields,
    )


def deepseek_v3(mtp: int = 1, **fields: Any) -> Model:
    """DeepSeek-V3 with some prediction depths: kinds k0 dense, k1 routed, and mtp."""
    experts = moe(256, 8, 2048, shared_intermediate_size=2048)
    groups = [(3, mla(128), dense(18432)), (58, mla(128), experts)]
    more = {"num_mtp_layers": mtp, "mtp_kind": "k1"} if mtp else {}
    return make_model(7168, 129280, groups, **more, **fields)


def make_instance(
    model: Model,
    seq_len: int = 4096,
    devices: int = 8,
    profile: dict[str, Any] | None = None,
    recompute: tuple[str, ...] | None = None,
    **job: Any,
) -> Instance:
    link = LinkLevel(name="all", domain_size=devices, bytes_per_s=1e11, latency_s=1e-6)
    return Instance(
        name="test",
        model=model,
        cluster=Cluster(name="test", device=DEVICE, num_devices=devices, links=(link,)),
        job=Job(gbs=512, seq_len=seq_len, **job),
        profile=PROFILE.model_copy(update=profile or {}),
        layout=LayoutSpace(recompute=recompute),
    )


def layout_values(zero: int = 1, cp_comm: str = "p2p", **sizes: int) -> dict[sympy.Symbol, int]:
    """Values of all layout symbols; sizes not given are 1, `sp` 0."""
    size = {
        "tp": 1, "sp": 0, "cp": 1, "ep": 1, "etp": 1, "dp": 1, "pp": 1, "vpp": 1, "mbs": 1, "num_microbatches": 1,
    } | sizes  # fmt: skip
    values = {getattr(s, name): value for name, value in size.items()}
    for name in ("p2p", "all_gather", "a2a"):
        values[getattr(s, f"cp_{name}")] = int(size["cp"] > 1 and cp_comm == name)
    for stage, symbol in enumerate((s.zero_1, s.zero_2, s.zero_3), start=1):
        values[symbol] = int(zero >= stage)
    values[s.is_pipelined] = int(size["pp"] > 1)
    return values


def evaluate_all(expressions: Sequence[Any], values: dict[sympy.Symbol, int]) -> list[Any]:
    """The exact numbers of expressions over layout symbols (others are refused)."""
    return exact_function(list(expressions), list(values))(*values.values())


def evaluate(expression: Any, values: dict[sympy.Symbol, int]) -> Any:
    """The exact number of one expression."""
    return evaluate_all([expression], values)[0]


def allocated_peak(
    memory: MemoryExpressions,
    values: dict[sympy.Symbol, int],
    layers: dict[int, int],
    live: int,
    embedding: bool,
    head: bool,
    strategy: int = 0,
) -> Any:
    """Peak bytes of a rank with `layers[kind]` layers of each kind and `live` micro-batches, in the allocator only."""
    parts = [(memory.kinds[kind], count) for kind, count in layers.items()]
    parts += [(memory.embedding, 1)] * embedding + [(memory.head, 1)] * head
    total, transient = 0, []
    for part, count in parts:
        index = strategy if part.strategies[0] is not memory.head.strategies[0] and len(part.strategies) > 1 else 0
        state = part.weight_bytes + part.gradient_bytes + part.optimizer_bytes
        total += count * evaluate(state + live * part.activation_bytes[index], values)
        transient.append(evaluate(part.transient_bytes[index], values))
    for bytes_, kinds, on_embedding, on_head in memory.buffers:
        if kinds & set(layers) or (on_embedding and embedding) or (on_head and head):
            total += evaluate(bytes_, values)
    return total + max(transient)
