"""Engine room: how the chain falls apart: compositions of pieces, groups of ranks, runs of pieces.

Only how many layers of each kind a piece holds matters for times and memory: its *composition*. Ranks that execute the
same pieces (the mirrored ranks of DualPipe) form one *group* and are decided together; everywhere else a group is one
rank. Groups are decided from both ends of the pipeline inwards. Neighbouring pieces that are already decided form a
*run*, of which the search knows the set of possible first layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism_cp.stage_problem import StageProblem

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]

# What deciding a piece does to the runs: see `Chain.run_steps`.
NEW_RUN, EXTENDS_RIGHT, EXTENDS_LEFT, JOINS = 0, 1, 2, 3
# More vectors of layers left than this are not told apart; the search then counts layers of all kinds together.
MOST_STATES = 2_000


@dataclass(frozen=True)
class Group:
    """Ranks that execute the same pieces.

    Attributes
    ----------
    ranks, pieces : tuple of int
        In ascending order.
    stages : tuple of int
        Virtual stages of the group, in forward order.
    piece_of, rank_of : tuple of int, one per virtual stage
        Positions in `pieces` and `ranks`.
    """

    ranks: tuple[int, ...]
    pieces: tuple[int, ...]
    stages: tuple[int, ...]
    piece_of: tuple[int, ...]
    rank_of: tuple[int, ...]


@dataclass(frozen=True)
class Chain:
    """Compositions and runs of a stage problem.

    Attributes
    ----------
    vectors : int64 array [compositions, kinds]
        Layers of each kind.
    sizes : int64 array [compositions]
    pieces : list of int64 arrays
        Compositions that every piece can have.
    starts : list of uint64 arrays [compositions of the piece, words]
        Bit s: a piece with that composition can begin at layer s.
    groups : tuple of Group
    digits : int64 array [compositions, digits]
        What a composition takes from the state. States count layers left of each kind in mixed radix, or of all kinds
        together when there are too many.
    radix : tuple of int
        Base of every digit of a state.
    run_steps : int64 array [steps, 4]
        (what happens, position of the piece in its group, run, other run); `step_start[g]` is the first of group g.
    num_runs : int
    numbers : int64 array [length + 1, length + 1]
        Composition of the layers start..stop; -1 where no piece can have it.
    local : int64 array [pieces, compositions]
        Position of a composition in a piece's list, -1 where it is not in it.
    parts : int64 array [compositions, classes]
        Layers of each class of strategies: of each kind, unless some are kept apart (see `strategy_classes`).
    """

    vectors: Int64
    sizes: Int64
    pieces: list[Int64]
    starts: list[UInt64]
    groups: tuple[Group, ...]
    digits: Int64
    radix: tuple[int, ...]
    run_steps: Int64
    step_start: Int64
    num_runs: int
    numbers: Int64
    local: Int64
    parts: Int64

    @property
    def num_states(self) -> int:
        """Number of vectors of layers left."""
        return int(np.prod(self.radix))

    def state(self, digits: Int64) -> Int64:
        """Mixed-radix number of vectors of layers [..., digits]."""
        total = np.zeros(digits.shape[:-1], np.int64)
        for position, base in enumerate(self.radix):
            total = total * base + digits[..., position]
        return total

    def steps_down(self, totals: Int64) -> NDArray[np.int32]:
        """State after `totals` [deltas, digits] were taken: int32 [states, deltas], -1 where too few are left."""
        left = np.stack(np.unravel_index(np.arange(self.num_states), self.radix), axis=-1)
        rest = left[:, None, :] - totals[None, :, :]
        result: NDArray[np.int32] = np.where((rest >= 0).all(axis=2), self.state(rest), -1).astype(np.int32)
        return result


def make_groups(problem: StageProblem) -> tuple[Group, ...]:
    """Ranks joined by common pieces, in the order in which the search decides them."""
    owner = list(range(len(problem.ranks)))

    def root(rank: int) -> int:
        while owner[rank] != rank:
            rank = owner[rank]
        return rank

    first_on: dict[int, int] = {}
    for stage in problem.virtual_stages:
        one, other = root(first_on.setdefault(stage.piece, stage.rank)), root(stage.rank)
        owner[max(one, other)] = min(one, other)
    groups = []
    for top in sorted({root(rank) for rank in range(len(problem.ranks))}):
        ranks = tuple(rank for rank in range(len(problem.ranks)) if root(rank) == top)
        stages = tuple(i for i, stage in enumerate(problem.virtual_stages) if stage.rank in ranks)
        pieces = tuple(sorted({problem.virtual_stages[i].piece for i in stages}))
        groups.append(
            Group(
                ranks,
                pieces,
                stages,
                tuple(pieces.index(problem.virtual_stages[i].piece) for i in stages),
                tuple(ranks.index(problem.virtual_stages[i].rank) for i in stages),
            )
        )
    # From both ends of the pipeline inwards: the first and last ranks' shares decide most of what a path through the
    # whole pipeline costs, so cuts tell much earlier than in rank order (often a hundredfold fewer nodes).
    inwards = [i for pair in zip(range(len(groups)), reversed(range(len(groups))), strict=True) for i in pair]
    return tuple(groups[i] for i in dict.fromkeys(inwards))


def make_chain(problem: StageProblem) -> Chain | None:
    """Compositions, groups and runs of a problem; None when no boundaries respect the least and most layers."""
    length = len(problem.layers)
    prefix = np.array(problem.prefix_counts, np.int64).T  # [position, kind]
    vectors: dict[tuple[int, ...], int] = {}
    numbers = np.full((length + 1, length + 1), -1, np.int64)
    low, high = _reachable(problem)
    pieces, starts = [], []
    words = length // 64 + 1
    for piece in range(problem.num_pieces):
        masks: dict[int, list[int]] = {}
        for start in range(low[piece], high[piece] + 1):
            first = max(start + problem.min_layers[piece], low[piece + 1])
            last = min(start + problem.max_layers[piece], high[piece + 1])
            for stop in range(first, last + 1):
                if numbers[start, stop] < 0:
                    vector = tuple((prefix[stop] - prefix[start]).tolist())
                    numbers[start, stop] = vectors.setdefault(vector, len(vectors))
                mask = masks.setdefault(int(numbers[start, stop]), [0] * words)
                mask[start // 64] |= 1 << start % 64
        if not masks:
            return None
        pieces.append(np.array(sorted(masks), np.int64))
        starts.append(np.array([masks[number] for number in sorted(masks)], np.uint64))
    table = np.array(sorted(vectors, key=vectors.__getitem__), np.int64).reshape(len(vectors), problem.num_kinds)
    sizes = table.sum(axis=1)
    radix = tuple(int(n) + 1 for n in prefix[length])
    digits = table
    if np.prod(np.array(radix, np.float64)) > MOST_STATES:
        radix, digits = (length + 1,), sizes[:, None]
    groups = make_groups(problem)
    steps, step_start, num_runs = _run_steps(groups)
    local = np.full((problem.num_pieces, len(table)), -1, np.int64)
    for piece, compositions in enumerate(pieces):
        local[piece, compositions] = np.arange(len(compositions))
    return Chain(
        table, sizes, pieces, starts, groups, digits, radix, steps, step_start, num_runs, numbers, local, parts=table
    )


def _reachable(problem: StageProblem) -> tuple[list[int], list[int]]:
    """Least and greatest position of every boundary; empty ranges when no partition exists."""
    length, pieces = len(problem.layers), problem.num_pieces
    low, high = [0] * (pieces + 1), [0] * (pieces + 1)
    for piece in range(pieces):
        low[piece + 1] = low[piece] + problem.min_layers[piece]
        high[piece + 1] = min(length, high[piece] + problem.max_layers[piece])
    low[pieces], high[pieces] = max(low[pieces], length), min(high[pieces], length)
    for piece in range(pieces - 1, -1, -1):
        low[piece] = max(low[piece], low[piece + 1] - problem.max_layers[piece])
        high[piece] = min(high[piece], high[piece + 1] - problem.min_layers[piece])
    return low, high


def _run_steps(groups: Sequence[Group]) -> tuple[Int64, Int64, int]:
    run_of: dict[int, int] = {}
    steps, start = [], [0]
    num_runs = 0
    for group in groups:
        for position, piece in enumerate(group.pieces):
            left, right = run_of.get(piece - 1, -1), run_of.get(piece + 1, -1)
            if left < 0 and right < 0:
                run, what, other = num_runs, NEW_RUN, -1
                num_runs += 1
            elif right < 0:
                run, what, other = left, EXTENDS_RIGHT, -1
            elif left < 0:
                run, what, other = right, EXTENDS_LEFT, -1
            else:
                run, what, other = left, JOINS, right
                run_of.update({p: left for p, r in run_of.items() if r == right})
            run_of[piece] = run
            steps.append((what, position, run, other))
        start.append(len(steps))
    return np.array(steps, np.int64), np.array(start, np.int64), num_runs
