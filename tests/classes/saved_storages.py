"""What autograd keeps between a forward and a backward pass, one entry a storage."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def saved_storages(module: torch.nn.Module, forward: Callable[[], Any]) -> list[tuple[int, torch.dtype]]:
    """Bytes and element type of every storage that `forward` saves, parameters of `module` left out.

    Storages are measured after the forward: recomputation frees some of them again (``resize_(0)``).
    """
    own = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    # By storage object, not by address: a freed storage's address is used again. The tensors stay alive until the end.
    found: dict[int, torch.Tensor] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()._cdata
        if storage not in own:
            found.setdefault(storage, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    sizes = [(tensor.untyped_storage().nbytes(), tensor.dtype) for tensor in found.values()]
    del result
    return sizes


def saved_bytes(module: torch.nn.Module, forward: Callable[[], Any]) -> int:
    """All bytes of `saved_storages`."""
    return sum(size for size, _ in saved_storages(module, forward))
