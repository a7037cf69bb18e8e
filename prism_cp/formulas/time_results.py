"""What the time formulas say about layouts: seconds, generic over float64 arrays and exact numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np

Number = TypeVar("Number")


@dataclass(frozen=True)
class LayerTimes(Generic[Number]):
    """Seconds of one chain item of a kind (``mtp``: all depths), or of an end; lists have one entry per strategy."""

    forward_s: list[Number]
    input_grad_s: list[Number]  # recomputation and its communication included
    weight_grad_s: list[Number]
    optimizer_s: Number
    param_gather_s: Number  # exposed part
    grad_reduce_s: Number  # whole


@dataclass(frozen=True)
class LayoutTimes(Generic[Number]):
    """All times of one layout (or of an array of layouts), in seconds."""

    kinds: list[LayerTimes[Number]]  # in the order of Model.chain_kinds
    embedding: LayerTimes[Number]
    head: LayerTimes[Number]
    p2p_s: Number
    norm_s: Number
    head_s: Number
    last_bucket_s: Number
    hide_share: Number


def concatenated(blocks: list[LayoutTimes[Any]]) -> LayoutTimes[Any]:
    """Blocks of layouts, one after the other."""

    def layer(rows: list[LayerTimes[Any]]) -> LayerTimes[Any]:
        def joined(field: str) -> Any:
            values = [getattr(row, field) for row in rows]
            if not isinstance(values[0], list):
                return np.concatenate(values)
            if all(value is values[0][0] for value in values[0]):  # one array for all strategies
                return [np.concatenate([value[0] for value in values])] * len(values[0])
            return [np.concatenate(list(column)) for column in zip(*values, strict=True)]

        return LayerTimes(**{field: joined(field) for field in LayerTimes.__dataclass_fields__})

    step = ("p2p_s", "norm_s", "head_s", "last_bucket_s", "hide_share")
    return LayoutTimes(
        kinds=[layer(list(rows)) for rows in zip(*(block.kinds for block in blocks), strict=True)],
        embedding=layer([block.embedding for block in blocks]),
        head=layer([block.head for block in blocks]),
        **{name: np.concatenate([getattr(block, name) for block in blocks]) for name in step},
    )
