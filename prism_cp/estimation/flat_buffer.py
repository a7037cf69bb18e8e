"""Flat gradient buffers: which piece of which parameter falls into a device's share of the distributed optimizer.

Megatron-LM lays a rank's parameters out in one buffer, last parameter first, and cuts it into equal shares
(megatron/core/distributed/param_and_grad_buffer.py). An optimizer that makes a temporary per parameter needs the
largest piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from prism_cp.estimation.configuration import Configuration
from prism_cp.formulas.evaluate import exact_function
from prism_cp.formulas.parameters import part_weights
from prism_cp.integer_tables import LAYOUT_SYMBOLS, symbol_values
from prism_cp.pipeline import get_schedule


def largest_piece(configuration: Configuration, rank: int, devices: Sequence[int]) -> Fraction:
    """Elements of the largest piece of one parameter in the shares of some devices of a pipeline rank.

    Parameters
    ----------
    devices
        Numbers within the pipeline rank, tensor-parallel ranks next to each other; empty: all.
    """
    layout, profile = configuration.layout, configuration.instance.profile
    stage = layout.tp * layout.cp * layout.dp
    chosen = list(devices) or list(range(stage))
    dense, expert = _parameters(configuration, rank)
    bucket = profile.bucket_parameters if profile.overlap_grad_reduce and rank == 0 else None
    largest = Fraction(0)
    for sizes, inner, shares in (
        (dense, layout.tp, layout.dp * layout.cp),
        (expert, layout.ep * layout.etp, layout.edp),
    ):
        if layout.zero == 0:
            shares = 1
        for share in {device // inner % shares for device in chosen}:
            for start in _buckets(sizes, bucket):
                largest = max(largest, _piece(start, share, shares))
    return largest


def _parameters(configuration: Configuration, rank: int) -> tuple[list[Fraction], list[Fraction]]:
    """Sizes of the dense and of the expert parameters on a pipeline rank, in the model's order."""
    instance, layout = configuration.instance, configuration.layout
    schedule = get_schedule(layout.schedule)
    pieces = schedule.num_pieces(layout.pp, layout.vpp)
    bounds, chain = configuration.assignment.boundaries, instance.model.chain
    values = symbol_values(layout)
    arguments = [values[symbol.name] for symbol in LAYOUT_SYMBOLS]
    dense: list[Fraction] = []
    expert: list[Fraction] = []
    for owner, piece in schedule.virtual_stages(layout.pp, layout.vpp):
        if owner != rank:
            continue
        parts = ["embedding"] if piece == 0 else []
        parts += chain[bounds[piece] : bounds[piece + 1]]
        parts += ["head"] if piece == pieces - 1 else []
        for part in parts:
            weights = part_weights(part, instance)
            counts = exact_function([weight.local_count for weight in weights], LAYOUT_SYMBOLS)(*arguments)
            for weight, count in zip(weights, counts, strict=True):
                if weight.sharding != "expert":
                    dense.append(Fraction(count))
                    continue
                tensors = 1 if instance.profile.experts_in_one_tensor else int(weight.copies) // layout.ep
                expert += [Fraction(count) / tensors] * tensors
    return dense, expert


def _buckets(sizes: Sequence[Fraction], least: int | None) -> list[list[Fraction]]:
    """Parameters of every bucket, last parameter first; a bucket is closed when it holds `least` elements."""
    buckets: list[list[Fraction]] = [[]]
    for size in reversed(sizes):
        buckets[-1].append(size)
        if least is not None and sum(buckets[-1]) >= least:
            buckets.append([])
    return [bucket for bucket in buckets if bucket]


def _piece(sizes: Sequence[Fraction], share: int, shares: int) -> Fraction:
    """Largest piece of one parameter in one of the equal shares of a bucket."""
    length = sum(sizes, Fraction(0)) / shares
    first, last = share * length, (share + 1) * length
    largest, start = Fraction(0), Fraction(0)
    for size in sizes:
        largest = max(largest, min(last, start + size) - max(first, start))
        start += size
    return largest
