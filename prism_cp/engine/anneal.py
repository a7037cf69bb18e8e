"""Engine room: plans by annealing over the boundaries, every group with the fastest strategies its memory allows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from prism_cp.engine.tables import Tables
from prism_cp.pipeline.kernels import longest_path_length, set_durations
from prism_cp.pipeline.program import get_program
from prism_cp.stage_problem import StageProblem

Int64 = NDArray[np.int64]

MOST_STARTS = 48
MOST_KEPT = 64  # boundaries remembered on the way, for their critical paths
HOTTEST, COOLEST = 0.01, 0.00005  # allowed worsening at the start and at the end, relative
# Compiled code has NumPy's legacy generator only; it is seeded at the start of every run.


@dataclass(frozen=True)
class Lookup:
    """From boundaries to items and their times, as arrays for the inner loop."""

    keys: Int64  # sorted within every group
    item: Int64  # of every key
    times: Int64  # [items, stages of a group, 3], least work
    head: Int64  # [items, ranks of a group]
    tail: Int64


class Annealer:
    """Looks for good boundaries among the items of some tables."""

    def __init__(self, tables: Tables) -> None:
        self.tables, problem, chain = tables, tables.problem, tables.chain
        self._program = get_program(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)
        groups = chain.groups
        self._pieces = np.array([group.pieces for group in groups], np.int64)
        self._stages = np.array([group.stages for group in groups], np.int64)
        self._ranks = np.array([group.ranks for group in groups], np.int64)
        self._base = np.int64(max(len(piece) for piece in chain.pieces))
        keys, numbers, times, heads, tails = [], [], [], [], []
        for g, items in enumerate(tables.items):
            key = np.zeros(len(items.choice), np.int64)
            for k in range(items.choice.shape[1]):
                key = key * self._base + items.choice[:, k]
            order = np.argsort(key, kind="stable")
            keys.append(key[order])
            numbers.append(order + tables.start[g])
            times.append(items.base + items.extra[items.best])
            heads.append(items.head)
            hidden = np.zeros_like(items.head)
            for s, r in enumerate(items.group.rank_of):
                hidden[:, r] += items.credit[items.best, s]
            bucket = np.array([problem.ranks[r].last_bucket for r in items.group.ranks])
            tails.append(np.maximum(bucket, items.reduce - hidden))
        self._lookup = Lookup(
            np.concatenate(keys), np.concatenate(numbers), np.concatenate(times), np.concatenate(heads),
            np.concatenate(tails),
        )  # fmt: skip

    def items_of(self, bounds: Int64) -> Int64 | None:
        """One item per group, or None when some group cannot hold its layers within the limit."""
        chosen = np.empty(len(self._pieces), np.int64)
        missing = _find(
            bounds, self.tables.chain.numbers, self.tables.chain.local, self._pieces, self._base, self.tables.start,
            self._lookup.keys, self._lookup.item, chosen,
        )  # fmt: skip
        return None if missing else chosen

    def run(self, bounds: Int64, trials: int, seed: int) -> tuple[Int64, int, int]:
        """Boundaries [kept, pieces + 1], best first, how many are complete plans, and the best pipeline time."""
        program, lookup, chain = self._program, self._lookup, self.tables.chain
        kept = np.zeros((MOST_KEPT, len(bounds)), np.int64)
        columns = len(self.tables.rows)
        count, best = _anneal(
            bounds.copy(), trials, seed, chain.numbers, chain.local, self._pieces, self._stages, self._ranks,
            self._base, self.tables.start, lookup.keys, lookup.item, lookup.times, lookup.head, lookup.tail,
            self.tables.worth, columns, self.tables.constants, self.tables.scales, *program.links, program.rank,
            program.num_stages, np.int64(self.tables.problem.p2p), kept,
        )  # fmt: skip
        return kept, int(count), int(best)

    def neighbours(self, bounds: Int64, count: int, seed: int) -> list[list[int]]:
        """Items of distinct boundaries a few shifts of blocks of boundaries away."""
        generator = np.random.default_rng(seed)
        found: dict[tuple[int, ...], None] = {}
        inner = len(bounds) - 2
        for _ in range(count):
            near = bounds.copy()
            for _ in range(1 + int(generator.integers(4))):
                first, last = np.sort(1 + generator.integers(inner, size=2))
                near[first : last + 1] += 1 if generator.random() < 0.5 else -1
            chosen = self.items_of(near) if np.all(np.diff(near) >= 0) else None
            if chosen is not None:
                found[tuple(chosen.tolist())] = None
        return [list(chosen) for chosen in found]


def row_starts(problem: StageProblem, shares: int) -> list[Int64]:
    """Boundaries to begin with: even within every pp neighbouring pieces, with different shares of the chain.

    Which share of the layers the first, second, … chunk of the ranks should hold is a matter of all boundaries at
    once, which single moves do not find.
    """
    length, pieces = len(problem.layers), problem.num_pieces
    rows = max(1, pieces // problem.pp)
    patterns: set[tuple[int, ...]] = set()
    for parts in itertools.product(range(1, shares + 1), repeat=rows):
        divisor = np.gcd.reduce(parts)
        patterns.add(tuple(int(part // divisor) for part in parts))
    even = (1,) * rows
    starts: dict[tuple[int, ...], None] = {}
    for pattern in sorted(patterns, key=lambda parts: (max(parts) / min(parts), parts != even, parts)):
        weights = np.repeat(pattern, -(-pieces // rows))[:pieces]
        edges = np.append(0, np.cumsum(weights)) * length // int(weights.sum())
        starts.setdefault(tuple(int(edge) for edge in edges))
        if len(starts) >= MOST_STARTS:
            break
    return [np.array(start, np.int64) for start in starts]


@njit(cache=True)
def _find(bounds, numbers, local, pieces, base, start, keys, item, chosen):  # type: ignore[no-untyped-def]
    """Item of every group; returns how many groups have none."""
    missing = 0
    for g in range(pieces.shape[0]):
        key = np.int64(0)
        known = True
        for k in range(pieces.shape[1]):
            piece = pieces[g, k]
            number = numbers[bounds[piece], bounds[piece + 1]]
            position = local[piece, number] if number >= 0 else np.int64(-1)
            known &= position >= 0
            key = key * base + position
        chosen[g] = -1
        if known:
            low, high = start[g], start[g + 1]
            while low < high:
                middle = (low + high) // 2
                if keys[middle] < key:
                    low = middle + 1
                else:
                    high = middle
            if low < start[g + 1] and keys[low] == key:
                chosen[g] = item[low]
        missing += chosen[g] < 0
    return missing


@njit(cache=True)
def _move(bounds, proposal):  # type: ignore[no-untyped-def]
    """Shift one boundary, or a block of neighbouring ones, by one layer; whether the result is a partition."""
    inner = len(bounds) - 2
    proposal[:] = bounds
    first = 1 + np.random.randint(inner)  # noqa: NPY002
    last = first
    if np.random.random() < 0.6:  # noqa: NPY002
        last = 1 + np.random.randint(inner)  # noqa: NPY002
        first, last = min(first, last), max(first, last)
    by = 1 if np.random.random() < 0.5 else -1  # noqa: NPY002
    for b in range(first, last + 1):
        proposal[b] += by
    return proposal[first - 1] <= proposal[first] and proposal[last] <= proposal[last + 1]


@njit(cache=True)
def _anneal(  # type: ignore[no-untyped-def]
    bounds, trials, seed, numbers, local, pieces, stages, ranks, base, start, keys, item, times, head, tail, worth,
    columns, constants, scales, code, data, crosses, has_blocks, opening, numerator, denominator, block, block_crosses,
    rank, num_stages, p2p, kept,
):  # fmt: skip
    np.random.seed(seed)  # noqa: NPY002
    groups = pieces.shape[0]
    chosen, current = np.empty(groups, np.int64), np.empty(groups, np.int64)
    proposal = bounds.copy()
    durations = np.zeros(6 * num_stages, np.int64)
    heads, tails = np.zeros(ranks.size, np.int64), np.zeros(ranks.size, np.int64)
    end = np.empty(len(code), np.int64)
    impossible = np.int64(1) << 60
    best = cost = impossible
    missing = _find(bounds, numbers, local, pieces, base, start, keys, item, current)
    count = 0
    allowed = 0.0
    for trial in range(-1, trials):
        lacking = missing
        chosen[:] = current
        if trial >= 0:
            if not _move(bounds, proposal):
                continue
            lacking = _find(proposal, numbers, local, pieces, base, start, keys, item, chosen)
            if lacking > missing:
                continue
            allowed = HOTTEST * (COOLEST / HOTTEST) ** (trial / trials)
        if lacking:
            bounds[:] = proposal
            current[:] = chosen
            missing = lacking
            continue
        if cost < impossible:  # the cuts tell most hopeless moves without a simulation
            most = cost + cost * allowed
            hopeless = False
            for x in range(columns):
                value = constants[x]
                for g in range(groups):
                    value += worth[chosen[g], x]
                if value > most * scales[x]:
                    hopeless = True
                    break
            if hopeless:
                continue
        for g in range(groups):
            i = chosen[g]
            for s in range(stages.shape[1]):
                stage = stages[g, s]
                f, b, w = times[i, s, 0], times[i, s, 1], times[i, s, 2]
                set_durations(durations, num_stages, stage, f, b, w)
            for r in range(ranks.shape[1]):
                heads[ranks[g, r]] = head[i, r]
                tails[ranks[g, r]] = tail[i, r]
        value = longest_path_length(
            code,
            data,
            crosses,
            has_blocks,
            opening,
            numerator,
            denominator,
            block,
            block_crosses,
            rank,
            durations,
            heads,
            tails,
            p2p,
            end,
        )
        if cost == impossible or value <= cost + cost * allowed * np.random.random():  # noqa: NPY002
            cost = value
            missing = 0
            bounds[:] = proposal
            current[:] = chosen
            if value < best:
                best = value
                count = min(count + 1, len(kept))
                for k in range(count - 1, 0, -1):
                    kept[k] = kept[k - 1]
                kept[0] = proposal
    return count, best
