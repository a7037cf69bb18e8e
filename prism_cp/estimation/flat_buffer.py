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
    layout = configuration.layout
    stage = layout.tp * layout.cp * layout.dp
    shares: dict[tuple[int, ...], int] = {}  # devices of equal shares are looked at once
    for device in list(devices) or range(stage):
        shares.setdefault(tuple(device // inner % number for inner, number in _groups(configuration)), device)
    held = (max(pieces_of_share(configuration, rank, device), default=Fraction(0)) for device in shares.values())
    return max(held, default=Fraction(0))


def pieces_of_share(configuration: Configuration, rank: int, device: int) -> list[Fraction]:
    """Elements of every parameter's piece in the share of one device of a pipeline rank, the last parameter first.

    Parameters
    ----------
    device
        Number within the pipeline rank, tensor-parallel ranks next to each other.
    """
    profile = configuration.instance.profile
    bucket = profile.bucket_parameters if profile.overlap_grad_reduce and rank == 0 else None
    found: list[Fraction] = []
    for sizes, (inner, shares) in zip(parameters_of_rank(configuration, rank), _groups(configuration), strict=True):
        for part in _buckets(sizes, bucket):
            found += _pieces(part, device // inner % shares, shares)
    return found


def _groups(configuration: Configuration) -> tuple[tuple[int, int], tuple[int, int]]:
    """Of dense and of expert parameters: how many neighbouring devices hold different ones, and into how many shares
    the optimizer cuts them."""
    layout, parts = configuration.layout, configuration.instance.profile.optimizer_instances
    dense, expert = (layout.dp * layout.cp, layout.edp) if layout.zero else (1, 1)
    return (layout.tp, max(1, dense // parts)), (layout.ep * layout.etp, max(1, expert // parts))


def parameters_of_rank(configuration: Configuration, rank: int) -> tuple[list[Fraction], list[Fraction]]:
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


def _pieces(sizes: Sequence[Fraction], share: int, shares: int) -> list[Fraction]:
    """Pieces of the parameters of a bucket in one of its equal shares."""
    length = sum(sizes, Fraction(0)) / shares
    first, last = share * length, (share + 1) * length
    pieces, start = [], Fraction(0)
    for size in sizes:
        piece = min(last, start + size) - max(first, start)
        if piece > 0:
            pieces.append(piece)
        start += size
    return pieces
