"""What a neural network is to the planner: an ordered chain of layers of a few kinds, between two ends.

Nothing here knows about devices, parallelism or solvers.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from prism_cp.inputs.base import FrozenModel


class SelfAttention(FrozenModel):
    """Softmax attention: MHA, GQA or MQA by the number of key/value heads."""

    type: Literal["self_attention"] = "self_attention"
    num_attention_heads: PositiveInt
    num_key_value_heads: PositiveInt
    head_dim: PositiveInt
    window: PositiveInt | None = None  # tokens a query may look back at (sliding window or chunk); None: all
    qkv_bias: bool = False
    output_bias: bool = False
    qk_norm: bool = False  # a learned norm over every query and key head
    output_gate: bool = False  # the query projection is doubled by a gate (Qwen3-Next)
    sinks: bool = False  # one learned logit per head (gpt-oss)


class LatentAttention(FrozenModel):
    """Multi-head latent attention (DeepSeek V2/V3, Kimi K2)."""

    type: Literal["latent_attention"] = "latent_attention"
    num_attention_heads: PositiveInt
    q_lora_rank: PositiveInt | None = None
    kv_lora_rank: PositiveInt
    qk_nope_head_dim: PositiveInt
    qk_rope_head_dim: PositiveInt
    v_head_dim: PositiveInt


class GatedDeltaNet(FrozenModel):
    """Linear attention with a gated delta rule (Qwen3-Next)."""

    type: Literal["gated_delta_net"] = "gated_delta_net"
    num_key_heads: PositiveInt
    num_value_heads: PositiveInt
    key_head_dim: PositiveInt
    value_head_dim: PositiveInt
    conv_kernel_dim: PositiveInt


class Mamba2(FrozenModel):
    """Mamba-2 state-space mixer."""

    type: Literal["mamba2"] = "mamba2"
    num_heads: PositiveInt
    head_dim: PositiveInt  # inner width = num_heads * head_dim
    num_groups: PositiveInt
    state_dim: PositiveInt
    conv_kernel_dim: PositiveInt


Attention = Annotated[SelfAttention | LatentAttention | GatedDeltaNet | Mamba2, Field(discriminator="type")]


class DenseFeedForward(FrozenModel):
    """Two (plain) or three (gated) matrices around an activation function."""

    type: Literal["dense"] = "dense"
    intermediate_size: PositiveInt
    gated: bool = True
    bias: bool = False


class MixtureOfExperts(FrozenModel):
    """Routed experts, with optional experts shared by all tokens."""

    type: Literal["moe"] = "moe"
    num_experts: PositiveInt
    top_k: PositiveInt
    intermediate_size: PositiveInt  # width of one routed expert
    shared_intermediate_size: Annotated[int, Field(ge=0)] = 0  # total width of the shared experts; 0: none
    shared_gate: bool = False  # a sigmoid gate on the shared experts' output (Qwen1.5/2-MoE, Qwen3-Next)
    gated: bool = True
    expert_bias: bool = False
    router_bias: bool = False  # a trained bias; DeepSeek's correction bias is a buffer and does not count
    num_groups: PositiveInt = 1  # router groups (node-limited routing)
    topk_groups: PositiveInt = 1
    expert_load: Annotated[float, Field(ge=1)] | None = None  # of these layers; None: the job's


FeedForward = Annotated[DenseFeedForward | MixtureOfExperts, Field(discriminator="type")]


class LayerKind(FrozenModel):
    """One kind of decoder layer: an attention (or other mixer), a feed-forward, or both."""

    name: str
    attention: Attention | None = None
    feed_forward: FeedForward | None = None
    num_norms: Annotated[int, Field(ge=0)] = 2  # learned norms of width hidden_size in one layer


class LayerGroup(FrozenModel):
    """A run of consecutive layers of one kind."""

    kind: str
    count: PositiveInt


class Model(FrozenModel):
    """A network: embedding, `layers` in order, optional multi-token-prediction layers, output head."""

    name: str
    hidden_size: PositiveInt
    vocab_size: PositiveInt
    kinds: tuple[LayerKind, ...]
    layers: tuple[LayerGroup, ...]
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    tied_embeddings: bool = False
    num_learned_positions: Annotated[int, Field(ge=0)] = 0
    embedding_norm: bool = False  # a norm right after the embedding (BLOOM)
    head_bias: bool = False
    head_transform: bool = False  # a dense layer, GELU and norm before the output projection, and a pooler (BERT)
    num_mtp_layers: Annotated[int, Field(ge=0)] = 0  # multi-token-prediction depths, each one layer of `mtp_kind`
    mtp_kind: str | None = None
    source: str = ""

    @property
    def num_layers(self) -> int:
        """Decoder layers, multi-token-prediction layers not counted."""
        return sum(group.count for group in self.layers)

    def kind(self, name: str) -> LayerKind:
        """The layer kind of that name (KeyError when there is none)."""
        for kind in self.kinds:
            if kind.name == name:
                return kind
        raise KeyError(name)

    @property
    def chain(self) -> tuple[str, ...]:
        """Kind name of every item of the chain that is cut into stages, in order.

        Decoder layers first; all multi-token-prediction depths together are ONE last item, named ``mtp``, because
        frameworks keep them on one stage.
        """
        names = [group.kind for group in self.layers for _ in range(group.count)]
        return tuple(names + (["mtp"] if self.num_mtp_layers else []))

    @property
    def chain_kinds(self) -> tuple[str, ...]:
        """Distinct entries of `chain`, in order of first appearance."""
        return tuple(dict.fromkeys(self.chain))
