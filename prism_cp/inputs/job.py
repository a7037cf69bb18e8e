"""The training job, and the framework profile: what a framework does that formulas must know."""

from __future__ import annotations

from fractions import Fraction
from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from prism_cp.inputs.base import FrozenModel
from prism_cp.inputs.cluster import Fraction01

# Megatron-LM --offload-modules
OffloadModule = Literal["attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm", "expert_fc1", "moe_act"]


class Profile(FrozenModel):
    """Software facts of one framework, each a named input of the formulas."""

    name: str
    # memory
    allocator_efficiency: Fraction01  # share of the card that live tensors can fill before fragmentation
    memory_margin: Annotated[float, Field(ge=0, lt=1)]  # share of that kept free against errors of the memory model
    context_bytes: Annotated[int, Field(ge=0)]  # driver context, outside the allocator
    communicator_bytes: Annotated[int, Field(ge=0)]  # per process group of more than one rank
    workspace_bytes: Annotated[int, Field(ge=0)]  # library workspaces inside the allocator
    grouped_gemm_workspace_bytes: Annotated[int, Field(ge=0)] = 0  # more of them on ranks with experts
    dummy_weight_gradients: bool  # one buffer per distinct weight shape (gradient-accumulation fusion)
    fused_cross_entropy: bool  # keeps bf16 logits; unfused keeps fp32 softmax
    loss_peak_bytes_per_logit: PositiveInt  # live bytes per logit at the loss: 2 fused, 6 or 10 unfused
    softmax_statistics_bytes: PositiveInt  # per token and head saved by fused attention: 4 GPU, 64 Ascend
    rope_saves_input: bool
    attention_copies_output: bool  # flash-attn package, sequence-first layout
    flash_attention: bool  # False: scores are materialised
    optimizer_step_bytes: Annotated[int, Field(ge=0)]  # temporary of the optimizer step
    optimizer_step_copies_parameter: bool = False  # the temporary is the fp32 piece of a parameter in the rank's shard
    keeps_head_dummy: bool = False  # the output projection's dummy gradient is cached like those of the layers
    experts_in_one_tensor: bool = False  # weights of all experts of a rank are one parameter
    grouped_experts: bool = True  # False: a rank's experts run one after the other
    repeats_key_values: bool = False  # attention keeps every key and value head once per query head
    fp8_in_products_only: bool = False  # weights and saved inputs stay in 16 bits, products cast them each time
    fp8_parameters: bool = False  # weights of fp8 products exist in 8 bits alone (--fp8-param-gather)
    fp8_activation_input: bool = False  # the input of the activation function is kept in 8 bits
    offload_modules: tuple[OffloadModule, ...] = ()  # what they save waits on the host; the transfers count as hidden
    # Layers of one micro-batch whose offloaded tensors are on the device all the same, in their backward pass.
    offload_layers_on_device: PositiveInt = 2
    fused_gated_activation: bool = True  # False: the activation function's output is kept before its product, too
    fused_state_space_scan: bool = True  # False: Mamba-2 saves matrices of chunk x chunk, which is not modelled
    keeps_score_buffer: bool = True  # Megatron's own attention does, unless a bias (ALiBi) takes its place
    pads_value_heads: bool = False  # the attention kernel wants values as wide as queries and keys
    ring_keeps_block: bool = False  # ring context parallelism keeps its buffer for a block of keys and values
    gradient_bytes: PositiveInt  # bytes per element of the accumulated gradient
    gradient_reduce_bytes: PositiveInt  # bytes per element on the wire
    optimizer_state_bytes: PositiveInt  # master weight and moments per parameter
    optimizer_moment_bytes: PositiveInt = 8  # of these, the moments: they come with the first optimizer step
    optimizer: Literal["adam", "muon"] = "adam"  # muon: its state bytes are those of matrices, others keep 4 more
    precision_aware_optimizer: bool = False  # it reads 16-bit gradients as they are, without a copy in fp32
    optimizer_instances: PositiveInt = 1  # ZeRO shards over one of so many parts of the data-parallel ranks
    transformer_engine: bool = True  # False: Megatron's own linear layers, which keep one buffer of gathered inputs
    # time
    overlap_grad_reduce: bool
    overlap_param_gather: bool
    gradient_overlap_window: Fraction01  # share of the last backward that can hide the reduction
    bucket_parameters: PositiveInt
    tp_overlap: bool  # GEMMs overlap tensor-parallel collectives
    dispatcher: Literal["alltoall", "allgather", "deepep", "hybridep"]
    full_cuda_graphs: bool
    attention_cuda_graphs: bool = False  # graphs of the attention blocks only: part of the host's work is gone
    expert_overlap: bool = False  # token exchange of one micro-batch runs behind another's computation
    expert_overlap_share: Fraction01 = 0.85  # of the token exchange that this hides
    microbatch_group_size_per_vp_stage: PositiveInt | None = None  # of interleaving; None: the smallest legal one
    fp8_scaling: Literal["delayed", "current", "mxfp8", "rowwise"] = "current"  # of casts to 8 bit
    attention_kernel: Literal["native", "flash2", "triton"] = "native"  # vendor's, FlashAttention-2, Triton's of 2023
    fused_pointwise: bool = True  # False: an eager framework, one kernel an operation
    fused_optimizer: bool = True  # False: Adam as one kernel for each of its operations
    accumulation_bytes: Annotated[int, Field(ge=0)] = 0  # per parameter and micro-batch, where not part of the product
    checkpoint_early_stop: bool = False  # full recomputation stops at the last tensor that the backward needs
    prefetch_backward: bool = True  # ZeRO-3: parameters of the next layer are gathered during a layer's backward
    split_pipeline_transfers: bool = False  # transfers are split over tensor-parallel ranks, gathered on arrival
    host_launch_floor_s: Annotated[float, Field(ge=0)]  # per dense layer and direction; four times that for MoE layers
    moe_host_sync_s: Annotated[float, Field(ge=0)]  # per MoE layer and micro-batch
    jitter_per_doubling: Annotated[float, Field(ge=0)]  # share of step time lost per doubling of nodes
    # planning rules
    recompute_modules: tuple[str, ...]  # modules this framework can recompute one by one
    source: dict[str, str] = Field(default_factory=dict)

    @property
    def capacity_share(self) -> Fraction:
        """Share of the card that a plan may fill: what fragmentation leaves, less the margin."""
        return Fraction(str(self.allocator_efficiency)) * (1 - Fraction(str(self.memory_margin)))


class Job(FrozenModel):
    """What one training step has to do."""

    gbs: PositiveInt  # sequences per step
    seq_len: PositiveInt
    precision: Literal["bf16", "fp16", "fp8", "fp4"] = "bf16"
    expert_load: Annotated[float, Field(ge=1)] = 1.0  # tokens of the busiest rank's experts over the mean
    capacity_factor: PositiveFloat | None = None  # pad-to-capacity; None: dropless
    vocab_padding: PositiveInt = 128  # vocabulary is padded to a multiple of this times tp
    # A forward and a backward that DualPipe and DualPipeV run as one pair take this share of the sum of both, and never
    # less than the longer of them; 1: overlapping hides nothing.
    overlap_factor: Annotated[float, Field(ge=0, le=1)] = 1.0
    document_len: PositiveInt | None = None  # of documents packed into a sequence, outside which nothing is attended
    frozen_weights: bool = False  # only low-rank adapters are trained; their own parameters are left out
    dropout: bool = False
    attention_dropout: bool | None = None  # on attention probabilities; None: as `dropout`
    source: str = ""
