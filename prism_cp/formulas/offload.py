"""Activations on the host: what Megatron-LM's fine-grained offloading and MindSpeed's swapping take off the device.

Everything that a named module saves goes to the host behind its forward pass and comes back before its backward pass,
but for the last layer of a rank before its first backward pass, while the one before it is on its way
(megatron/core/pipeline_parallel/fine_grained_activation_offload.py): two layers of one micro-batch are on the device.
With MindSpeed's ``--swap-attention`` it is the one at work alone (``profile.offload_layers_on_device``). Tensors of
less than a million elements stay (``min_offloaded_tensor_size``): norm and softmax statistics, routers.
"""

from __future__ import annotations

from collections.abc import Iterable

from sympy import Add, Expr

from prism_cp.formulas.saved import SavedTensor
from prism_cp.formulas.strategies import Strategy

# The module whose forward pass saves a tensor (core/transformer/{attention,transformer_layer}.py, moe/experts.py).
MODULE_OF = {
    "attention_norm_input": "attn_norm",
    "attention_norm_output": "qkv_linear",
    "qk_norm_input": "qkv_linear",
    "rope_input": "qkv_linear",
    "down_projected": "qkv_linear",
    "up_projection_inputs": "qkv_linear",
    "query_key_value": "core_attn",
    "repeated_key_value": "core_attn",
    "exchanged_output": "core_attn",
    "padded_output": "core_attn",
    "scores": "core_attn",
    "attention_output": "attn_proj",
    "output_projection_input": "attn_proj",
    "feed_forward_norm_input": "mlp_norm",
    "expert_input": "expert_fc1",
    "expert_fc1_output": "moe_act",
}


def offloaded_bytes(tensors: Iterable[SavedTensor], strategy: Strategy, modules: Iterable[str]) -> Expr:
    """Bytes of one layer and micro-batch that wait on the host under a strategy.

    Full recomputation keeps its layer's input outside of every module, so nothing leaves.
    """
    if strategy.full:
        return Add()
    named = frozenset(modules)
    return Add(*(tensor.bytes_ for tensor in tensors if MODULE_OF.get(tensor.name) in named and tensor.kept(strategy)))
