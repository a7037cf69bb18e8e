"""Models of megatron-core on a CPU: what it asks of CUDA, replaced, and its classes for our models.

Nothing here changes which tensors a layer saves. What the release wants of CUDA although its operators run on a CPU:

- ``torch.cuda.current_device`` for small buffers (rotary tables, router statistics),
- a random state of CUDA for dropout under tensor parallelism (``get_cuda_rng_tracker``),
- a side stream on which the all-to-all dispatcher copies token counts to the host,
- names that only exist when Transformer Engine is installed (``te_general_gemm``, ``TELinear``, and in recomputation
  those of its fp8 state),
- for latent attention an attention core that takes two head sizes, which only Transformer Engine's does,
- the ``grouped_gemm`` package for experts in one product.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_mtp_block_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel import random
from megatron.core.transformer import multi_latent_attention
from megatron.core.transformer.moe import grouped_gemm_util, moe_utils
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.torch_norm import WrappedTorchNorm
from megatron.core.transformer.transformer_config import MLATransformerConfig, TransformerConfig
from torch.testing._internal.distributed.fake_pg import FakeStore

from prism_cp.inputs.model import DenseFeedForward, LatentAttention, LayerKind, Model, SelfAttention


class HostStream:
    """Stands for a CUDA stream where everything runs on the host, in order."""

    def wait_stream(self, _: object) -> None: ...

    def record_event(self) -> HostStream:
        return self

    def synchronize(self) -> None: ...


class GroupedProduct(torch.autograd.Function):
    """Products of consecutive rows with one matrix each; saves what grouped_gemm/ops.py ``GroupedGemm`` saves."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, matrices: torch.Tensor, counts: torch.Tensor, _: bool) -> torch.Tensor:
        ctx.save_for_backward(rows, matrices, counts)
        pieces = zip(rows.split(counts.tolist()), matrices, strict=True)
        return torch.cat([piece @ matrix for piece, matrix in pieces])


class GroupedGemm:
    """The function of the ``grouped_gemm`` package that megatron-core calls."""

    @staticmethod
    def gmm(rows: torch.Tensor, matrices: torch.Tensor, counts: torch.Tensor, trans_b: bool = False) -> torch.Tensor:
        return GroupedProduct.apply(rows, matrices, counts, trans_b)


def _norm(_: type, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **__: Any) -> torch.nn.Module:
    """megatron-core's choice of PyTorch's norm, without its refusal of sequence parallelism (a gradient reduction)."""
    kind = torch.nn.RMSNorm if config.normalization == "RMSNorm" else torch.nn.LayerNorm
    return kind(hidden_size, eps=eps)


@contextlib.contextmanager
def megatron_on_cpu(tp: int = 1, ep: int = 1, etp: int | None = None) -> Iterator[None]:
    """The first rank of so many tensor, expert and expert-tensor parallel ones, and stand-ins for what needs CUDA.

    With several ranks collectives return tensors of the right shape and move nothing: shapes are all that is counted.
    """
    host = HostStream()
    world = math.lcm(tp, ep * (etp or tp))
    backend, store = ("fake", FakeStore()) if world > 1 else ("gloo", torch.distributed.HashStore())
    torch.distributed.init_process_group(backend, store=store, rank=0, world_size=world)
    patch = pytest.MonkeyPatch()
    patch.setattr(WrappedTorchNorm, "__new__", _norm)
    patch.setattr(torch.cuda, "current_device", lambda: torch.device("cpu"))
    patch.setattr(torch.cuda, "Stream", lambda *_, **__: host)
    patch.setattr(torch.cuda, "current_stream", lambda *_, **__: host)
    patch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    patch.setattr(random.CudaRNGStatesTracker, "fork", lambda *_, **__: contextlib.nullcontext())
    patch.setattr(random, "_get_cuda_rng_state", lambda *_, **__: torch.get_rng_state())
    patch.setattr(random, "_set_cuda_rng_state", lambda *_, **__: None)
    no_fp8 = SimpleNamespace(is_fp8_enabled=lambda: False)
    patch.setattr(random, "FP8GlobalStateManager", no_fp8, raising=False)
    patch.setattr(random, "activation_recompute_forward", lambda **_: contextlib.nullcontext(), raising=False)
    patch.setattr(grouped_gemm_util, "assert_grouped_gemm_is_available", lambda: None)
    patch.setattr(grouped_gemm_util, "ops", GroupedGemm)
    patch.setattr(moe_utils, "te_general_gemm", None, raising=False)
    patch.setattr(multi_latent_attention, "TELinear", ())
    try:
        parallel_state.initialize_model_parallel(
            tensor_model_parallel_size=tp,
            expert_model_parallel_size=ep,
            expert_tensor_parallel_size=etp,
            create_gloo_process_groups=False,
        )
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        parallel_state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
        patch.undo()


class FusedAttention(torch.nn.Module):
    """PyTorch's fused attention kernel as an attention core: keeps query, key, value, output and log-sum-exp.

    Like Transformer Engine's it is given dense tensors: ``get_qkv_layout`` of
    transformer_engine/pytorch/attention makes them contiguous when query and key no longer share a buffer with value.
    """

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__()

    def forward(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        query, key, value = (tensor.contiguous().permute(1, 2, 0, 3) for tensor in (query, key, value))
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            output = torch.nn.functional.scaled_dot_product_attention(
                query, key, value, is_causal=True, enable_gqa=query.shape[1] != key.shape[1]
            )
        batch, _heads, length, _dim = output.shape
        return output.permute(2, 0, 1, 3).reshape(length, batch, -1)


def configuration(kind: LayerKind, model: Model, **changes: Any) -> TransformerConfig:
    """megatron-core's configuration of a model whose layers are all of one kind."""
    attention, feed_forward = kind.attention, kind.feed_forward
    assert feed_forward is not None
    options: dict[str, Any] = {
        "num_layers": model.num_layers,
        "hidden_size": model.hidden_size,
        "add_bias_linear": isinstance(feed_forward, DenseFeedForward) and feed_forward.bias,
        "gated_linear_unit": feed_forward.gated,
        "activation_func": torch.nn.functional.silu if feed_forward.gated else torch.nn.functional.gelu,
        "normalization": "RMSNorm" if model.norm == "rmsnorm" else "LayerNorm",
        "params_dtype": torch.bfloat16,
        "bf16": True,
        "hidden_dropout": 0.0,
        "attention_dropout": 0.0,
        "use_cpu_initialization": True,
        "perform_initialization": False,
        "bias_dropout_fusion": False,
        "gradient_accumulation_fusion": False,
        "masked_softmax_fusion": False,
        "bias_activation_fusion": feed_forward.gated or getattr(feed_forward, "bias", False),
    }
    if isinstance(feed_forward, DenseFeedForward):
        options["ffn_hidden_size"] = feed_forward.intermediate_size
    else:
        options |= {
            "num_moe_experts": feed_forward.num_experts,
            "moe_router_topk": feed_forward.top_k,
            "moe_ffn_hidden_size": feed_forward.intermediate_size,
            "moe_router_load_balancing_type": "none",
            "moe_token_dispatcher_type": "alltoall",
            "moe_shared_expert_intermediate_size": feed_forward.shared_intermediate_size or None,
        }
    if isinstance(attention, LatentAttention):
        options |= {
            "multi_latent_attention": True,
            "num_attention_heads": attention.num_attention_heads,
            "q_lora_rank": attention.q_lora_rank,
            "kv_lora_rank": attention.kv_lora_rank,
            "qk_head_dim": attention.qk_nope_head_dim,
            "qk_pos_emb_head_dim": attention.qk_rope_head_dim,
            "v_head_dim": attention.v_head_dim,
            "qk_layernorm": True,
            "rope_type": "rope",
        }
        return MLATransformerConfig(**(options | changes))
    assert isinstance(attention, SelfAttention)
    options |= {
        "num_attention_heads": attention.num_attention_heads,
        "num_query_groups": attention.num_key_value_heads,
        "kv_channels": attention.head_dim,
        "qk_layernorm": attention.qk_norm,
        "add_qkv_bias": attention.qkv_bias,
    }
    return TransformerConfig(**(options | changes))


def layer_specification(config: TransformerConfig, *, fused_attention: bool = True) -> ModuleSpec:
    """megatron-core's own layers (not Transformer Engine's), by default with a fused attention kernel."""
    spec = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts,
        moe_grouped_gemm=config.moe_grouped_gemm,
        qk_layernorm=config.qk_layernorm,
        multi_latent_attention=config.multi_latent_attention,
        normalization=config.normalization,
    )
    if fused_attention:
        spec.submodules.self_attention.submodules.core_attention = FusedAttention
    return spec


def gpt_model(model: Model, *, fused_attention: bool = True, prediction_depths: int = 0, **changes: Any) -> GPTModel:
    """The GPT model of megatron-core for a model of one kind of layer (and prediction depths of that kind)."""
    (kind,) = model.kinds
    if prediction_depths:
        changes["mtp_num_layers"] = prediction_depths
    config = configuration(kind, model, **changes)
    spec = layer_specification(config, fused_attention=fused_attention)
    return GPTModel(
        config,
        spec,
        vocab_size=model.vocab_size,
        max_sequence_length=model.num_learned_positions or 4096,
        position_embedding_type="learned_absolute" if model.num_learned_positions else "rope",
        share_embeddings_and_output_weights=model.tied_embeddings,
        mtp_block_spec=get_gpt_mtp_block_spec(config, spec, False) if prediction_depths else None,
    )
