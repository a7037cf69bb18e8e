"""What the formulas say about one layout, or about many at once, before anything is rounded.

`LayoutCosts` is generic over its number type: float64 arrays with one entry per layout on the fast path, Fractions on
the exact path. Both come from the same sympy expressions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

Number = TypeVar("Number")


@dataclass(frozen=True)
class LayerCosts(Generic[Number]):
    """Costs per rank of one layer of one kind, or of an end (then with one strategy).

    The lists have one entry per strategy, in the order of `LayoutCosts.strategies` of that kind.
    """

    forward_s: list[Number]
    input_grad_s: list[Number]
    weight_grad_s: list[Number]
    activation_bytes: list[Number]
    transient_bytes: list[Number]
    deferred_bytes: Number  # per micro-batch between a split backward's input gradient and weight gradient
    weight_bytes: Number
    gradient_bytes: Number
    optimizer_bytes: Number
    optimizer_step_bytes: Number
    optimizer_s: Number  # update of this layer's shard
    param_gather_s: Number  # exposed part of the parameter all-gather
    grad_reduce_s: Number  # whole gradient reduction, hidden or not


@dataclass(frozen=True)
class LayoutCosts(Generic[Number]):
    """All unrounded costs that a stage problem is made of."""

    kinds: list[LayerCosts[Number]]  # in the order of Model.chain_kinds
    embedding: LayerCosts[Number]
    head: LayerCosts[Number]  # final norm, output projection, loss (with the logits of multi-token prediction)
    # (bytes, chain kind indices, on the embedding's stage, on the head's stage): paid once per rank that holds any
    buffers: list[tuple[Number, frozenset[int], bool, bool]]
    fixed_bytes: Number  # per rank: context, communicators, workspaces
    capacity_bytes: Number
    p2p_s: Number
    norm_s: Number  # gradient-norm all-reduce
    head_s: Number  # time before the first forward that no layer owns
    last_bucket_s: Number
    hide_share: Number  # share of one micro-batch's backward under which gradient reduction hides; 0: nothing hides
