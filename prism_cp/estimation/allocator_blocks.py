"""Allocator blocks: what PyTorch's caching allocator counts as allocated beyond the bytes that were asked for.

Blocks are cut out of segments: 20 MiB, for requests of 10 MiB and more the next multiple of 2 MiB. Where at most 1 MiB
would be left over, the block is not cut but given whole, and its rest counts as allocated for as long as the tensor
lives (c10/cuda/CUDACachingAllocator.cpp). Of interest for what stays: weights, gradients and optimizer state. Requests
of up to 1 MiB share segments of their own, which are cut at 512 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from prism_cp.estimation.configuration import Configuration
from prism_cp.estimation.flat_buffer import parameters_of_rank, pieces_of_share
from prism_cp.formulas.saved import ELEMENT_BYTES

MIB = 2**20
SMALL, LARGE = MIB, 10 * MIB  # requests up to the first are small, from the second on they get a segment of their own
SHARED_SEGMENT, SEGMENT_STEP = 20 * MIB, 2 * MIB
GRANULE = 512


@dataclass
class Segments:
    """Segments for large requests, filled one request after the other.

    Attributes
    ----------
    free
        Bytes of the pieces that are left to be given.
    """

    free: list[int] = field(default_factory=list)

    def rest(self, size: Fraction) -> int:
        """Bytes of the block for a request that the request does not need."""
        needed = -(-int(-(-size // 1)) // GRANULE) * GRANULE
        if needed <= SMALL:
            return 0
        fitting = [piece for piece in self.free if piece >= needed]
        if fitting:
            piece = min(fitting)
            self.free.remove(piece)
        else:
            piece = SHARED_SEGMENT if needed < LARGE else -(-needed // SEGMENT_STEP) * SEGMENT_STEP
        left = piece - needed
        if left <= SMALL:
            return left
        self.free.append(left)
        return 0


@dataclass(frozen=True)
class BlockRests:
    """Bytes of a rank's blocks that nobody asked for.

    Attributes
    ----------
    kept
        Of weights, gradients and master weights, which are there from the start.
    moments
        Of the optimizer's moments, which come with the first step.
    """

    kept: int
    moments: int


def block_rests(configuration: Configuration, rank: int) -> BlockRests:
    """Rests of the blocks of one pipeline rank's state.

    Gradients are one buffer for dense and one for expert parameters, and so are weights where the optimizer is sharded;
    else every weight is a tensor. Every parameter has its own master weight and moments, of its piece in the share of
    the last device that is asked for. ZeRO-3 is left out: its buffers are not of this kind.
    """
    layout, profile = configuration.layout, configuration.instance.profile
    if not configuration.whole_blocks or layout.zero > 1:
        return BlockRests(0, 0)
    dense, expert = parameters_of_rank(configuration, rank)
    buffers = [sum(sizes, Fraction(0)) for sizes in (dense, expert)]
    weights = buffers if layout.zero else [*dense, *expert]
    kept = _rests(ELEMENT_BYTES * size for size in weights) + _rests(profile.gradient_bytes * size for size in buffers)
    if configuration.optimizer_offload_fraction:
        return BlockRests(kept, 0)
    stage = layout.tp * layout.cp * layout.dp
    device = max((d % stage for d in configuration.measured_devices if d // stage == rank), default=stage - 1)
    held = pieces_of_share(configuration, rank, device) if layout.zero else [*dense, *expert]
    master = profile.optimizer_state_bytes - profile.optimizer_moment_bytes
    number = 2 if profile.optimizer == "adam" else 1
    each = Fraction(profile.optimizer_moment_bytes, number)
    moments = _rests(each * size for size in held for _ in range(number))
    return BlockRests(kept + _rests(master * size for size in held), moments)


def _rests(sizes: Iterable[Fraction]) -> int:
    """Rests of requests that are made one after the other from new segments."""
    segments = Segments()
    return sum(segments.rest(size) for size in sizes)
