"""Pipeline room: a second, deliberately plain simulator in pure Python, for checking the fast one and finished plans.

It shares no code with the fast simulator: no numbering of ops, no precomputed order, only dictionaries of what has
already ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

from prism_cp.pipeline.schedules import get_schedule
from prism_cp.pipeline.schedules.base import OpType, Orders, Schedule

# Plain integers: comparing enumeration members would take most of the time.
MAKES_FORWARD = frozenset((int(OpType.FORWARD), int(OpType.OVERLAPPED_FORWARD)))
WEIGHT_GRAD = int(OpType.WEIGHT_GRAD)
BLOCK_OPENS = int(OpType.OVERLAPPED_FORWARD)


def reference_pipeline_time(
    schedule: str | Schedule,
    pp: int,
    vpp: int,
    num_microbatches: int,
    forward: Sequence[int],
    input_grad: Sequence[int],
    weight_grad: Sequence[int],
    head: Sequence[int],
    tail: Sequence[int],
    p2p: int,
) -> int:
    """`simulate_reference` for a schedule and its sizes; parameters as for the fast simulator."""
    chosen = get_schedule(schedule)
    orders = chosen.orders(pp, vpp, num_microbatches)
    ranks = [rank for rank, _ in chosen.virtual_stages(pp, vpp)]
    return simulate_reference(
        orders, ranks, chosen.chains(pp, vpp), forward, input_grad, weight_grad, head, tail, p2p, chosen.overlap_factor
    )


def simulate_reference(
    orders: Orders,
    stage_ranks: Sequence[int],
    chains: Sequence[Sequence[int]],
    forward: Sequence[int],
    input_grad: Sequence[int],
    weight_grad: Sequence[int],
    head: Sequence[int],
    tail: Sequence[int],
    p2p: int,
    overlap_factor: Fraction = Fraction(1),
) -> int:
    """Pipeline time of explicit op orders.

    Parameters
    ----------
    orders : list of int arrays [ops, 3]
        Op type, virtual stage and micro-batch, per rank.
    stage_ranks : sequence of int
        Rank of every virtual stage.
    chains : sequence of sequences of int
        Virtual stages in the order a micro-batch passes them.
    forward, input_grad, weight_grad, head, tail, p2p
        Integer times, as for the fast simulator.
    overlap_factor : Fraction
        Of the schedule; an overlapped pair lasts that share of both ops together, or as long as the longer one.

    Raises
    ------
    ValueError
        The orders deadlock, an op is missing, or an overlapped pair would last no whole number of units.
    """
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    for chain in chains:
        for left, right in pairwise(chain):
            before[right], after[left] = left, right
    forward_end: dict[tuple[int, int], int] = {}
    backward_end: dict[tuple[int, int], int] = {}  # of whole backwards and of input gradients
    whole = [int(b) + int(w) for b, w in zip(input_grad, weight_grad, strict=True)]
    durations = [[int(time) for time in row] for row in (forward, whole, input_grad, weight_grad, forward, whole)]

    def ready(op_type: int, stage: int, microbatch: int) -> int | None:
        """When the op's data are there; None while they are not known."""
        own: int | None
        if op_type in MAKES_FORWARD:
            own, neighbours, ends = 0, before, forward_end
        elif op_type == WEIGHT_GRAD:
            return backward_end.get((stage, microbatch))
        else:
            own, neighbours, ends = forward_end.get((stage, microbatch)), after, backward_end
        neighbour = neighbours.get(stage)
        if own is None or neighbour is None:
            return own
        arrived = ends.get((neighbour, microbatch))
        if arrived is None:
            return None
        return max(own, arrived + (p2p if stage_ranks[neighbour] != stage_ranks[stage] else 0))

    queues = [order.tolist() for order in orders]
    position = [0] * len(queues)
    clock = [int(time) for time in head]

    def advance(rank: int) -> bool:
        """Execute the rank's next op, or report that its data are not there yet."""
        # An overlapped pair is one block: it waits for both and hands both results out when it ends.
        size = 2 if queues[rank][position[rank]][0] == BLOCK_OPENS else 1
        block = queues[rank][position[rank] : position[rank] + size]
        time, lengths = clock[rank], []
        for op_type, stage, microbatch in block:
            data = ready(op_type, stage, microbatch)
            if data is None:
                return False
            time = max(time, data)
            lengths.append(durations[op_type][stage])
        length = Fraction(lengths[0])
        if size == 2:
            length = max(*map(Fraction, lengths), overlap_factor * sum(lengths))
            if length.denominator != 1:
                raise ValueError(f"an overlapped pair would last {length} time units")
        clock[rank] = time + int(length)
        for op_type, stage, microbatch in block:
            if op_type in MAKES_FORWARD:
                forward_end[stage, microbatch] = clock[rank]
            elif op_type != WEIGHT_GRAD:
                backward_end[stage, microbatch] = clock[rank]
        position[rank] += size
        return True

    moved = True
    while moved:
        moved = False
        for rank, queue in enumerate(queues):
            while position[rank] < len(queue) and advance(rank):
                moved = True
    if any(position[rank] < len(queue) for rank, queue in enumerate(queues)):
        raise ValueError(f"the op orders deadlock; ranks stopped at ops {position}")
    return max(time + int(after_last) for time, after_last in zip(clock, tail, strict=True))
