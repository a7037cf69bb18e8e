"""Least time per micro-batch of given layers on one rank under its memory: a small exact knapsack.

For a number of layers of every kind, one strategy per layer is chosen so that activations of all live micro-batches and
the largest transient fit, and forward + backward time is least. Multiple-choice knapsack by Lagrangian bound and
depth-first search, in integers only (Kellerer, Pferschy, Pisinger 2004, "Knapsack Problems", chapter 11).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from prism_cp.stage_problem import StageProblem

Int64 = NDArray[np.int64]

NODE_LIMIT = 20_000  # beyond it the root bound stands in for the optimum
_SHIFT = 16  # the multiplier is a whole number of 2**-16
_LARGE = 1 << 60

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _compile(function: _Function) -> _Function:
    """numba's njit, cached on disk, with the function's own types for the type checker."""
    return cast(_Function, njit(cache=True)(function))


@_compile
def _root(
    counts: Int64, allowed: NDArray[np.bool_], work: Int64, memory: Int64, budget: int, largest: int
) -> tuple[int, int]:
    """Multiplier (in 2**-16) of nearly the best Lagrangian bound, and that bound (scaled by 2**16)."""
    low, high = 0, largest
    best_multiplier, best_bound = 0, -_LARGE
    while low <= high:
        middle = (low + high) // 2
        bound, used = -middle * budget, 0
        for kind in range(counts.shape[0]):
            if counts[kind] == 0:
                continue
            least, least_memory = _LARGE, 0
            for q in range(work.shape[1]):
                if allowed[kind, q]:
                    reduced = (work[kind, q] << _SHIFT) + middle * memory[kind, q]
                    if reduced < least or (reduced == least and memory[kind, q] < least_memory):
                        least, least_memory = reduced, memory[kind, q]
            bound += counts[kind] * least
            used += counts[kind] * least_memory
        if bound > best_bound:
            best_multiplier, best_bound = middle, bound
        if used <= budget:
            high = middle - 1
        else:
            low = middle + 1
    return best_multiplier, best_bound


@_compile
def _search(
    counts: Int64,
    allowed: NDArray[np.bool_],
    work: Int64,
    memory: Int64,
    budget: int,
    multiplier: int,
    best: int,
    node_limit: int,
    chosen: Int64,
) -> tuple[int, bool]:
    """Least work below `best`, or `best`; fills `chosen`. The flag is false when the node limit was met."""
    kinds, width = work.shape
    size = 0
    item_kind = np.empty(kinds * width, dtype=np.int64)
    item = np.empty(kinds * width, dtype=np.int64)
    reduced = np.empty(kinds * width, dtype=np.int64)
    for kind in range(kinds):
        if counts[kind] == 0:
            continue
        first = size
        for q in range(width):
            if not allowed[kind, q]:
                continue
            value = (work[kind, q] << _SHIFT) + multiplier * memory[kind, q]
            place = size  # insertion sort by reduced cost
            while place > first and reduced[place - 1] > value:
                item[place], reduced[place] = item[place - 1], reduced[place - 1]
                place -= 1
            item[place], reduced[place], item_kind[size] = q, value, kind
            size += 1
    if size == 0:
        return (0 if best > 0 else best), True
    # Least reduced cost and memory of what follows: of the same kind per layer, of later kinds in total.
    last = np.zeros(size, dtype=np.bool_)
    least_memory = np.zeros(size + 1, dtype=np.int64)
    later_cost = np.zeros(size, dtype=np.int64)
    later_memory = np.zeros(size, dtype=np.int64)
    cost_after, memory_after, kind_memory = 0, 0, 0
    for i in range(size - 1, -1, -1):
        kind = item_kind[i]
        last[i] = i == size - 1 or item_kind[i + 1] != kind
        own = memory[kind, item[i]]
        kind_memory = own if last[i] else min(own, kind_memory)
        least_memory[i] = kind_memory
        later_cost[i], later_memory[i] = cost_after, memory_after
        if i == 0 or item_kind[i - 1] != kind:
            cost_after += counts[kind] * reduced[i]
            memory_after += counts[kind] * kind_memory
    number = np.zeros(size, dtype=np.int64)
    left = np.zeros(size + 1, dtype=np.int64)
    cost = np.zeros(size + 1, dtype=np.int64)
    used = np.zeros(size + 1, dtype=np.int64)
    total = np.zeros(size + 1, dtype=np.int64)
    left[0] = counts[item_kind[0]]
    i, fresh, nodes = 0, True, 0
    while True:
        if fresh and i == size:
            best = total[i]  # strictly better, or it would have been pruned
            for kind in range(kinds):
                for q in range(width):
                    chosen[kind, q] = 0
            for j in range(size):
                chosen[item_kind[j], item[j]] = number[j]
            fresh = False
            i -= 1
            continue
        if fresh:
            number[i] = left[i]
        else:
            if i < 0:
                return best, True
            number[i] -= 1
            if last[i] or number[i] < 0:
                i -= 1
                continue
        nodes += 1
        if nodes > node_limit:
            return best, False
        kind, n, fresh = item_kind[i], number[i], False
        rest = left[i] - n
        next_cost = cost[i] + n * reduced[i]
        bound = next_cost + later_cost[i] - multiplier * budget
        if not last[i]:
            bound += rest * reduced[i + 1]
        if bound > (best - 1) << _SHIFT:
            i -= 1  # with fewer layers of this, the cheapest item left, the bound only grows
            continue
        next_used = used[i] + n * memory[kind, item[i]]
        if next_used + later_memory[i] + (0 if last[i] else rest * least_memory[i + 1]) > budget:
            continue
        cost[i + 1], used[i + 1], total[i + 1] = next_cost, next_used, total[i] + n * work[kind, item[i]]
        if i + 1 < size and not last[i]:
            left[i + 1] = rest
        elif i + 1 < size:
            left[i + 1] = counts[item_kind[i + 1]]
        elif total[i + 1] >= best:
            continue
        i, fresh = i + 1, True


@_compile
def over_levels(
    counts: Int64,
    exists: NDArray[np.bool_],
    work: Int64,
    activation: Int64,
    transient: Int64,
    levels: Int64,
    room: int,
    live: int,
    floor: int,
    most: int,
    chosen: Int64,
) -> tuple[int, bool]:
    """Least work over all levels the largest transient may have; see `LeastWork.__call__`.

    Returns (lower bound on the work, whether `chosen` was filled); most + 1 when nothing is within `most`.
    """
    # Plain loops on purpose: array expressions take seconds to compile.
    kinds, width = work.shape
    best, relaxed, found_any = most + 1, most + 1, False
    layers, heaviest = 1, 1
    for kind in range(kinds):
        layers += counts[kind]
        for q in range(width):
            heaviest = max(heaviest, activation[kind, q])
    found = np.zeros((kinds, width), dtype=np.int64)
    allowed = np.zeros((kinds, width), dtype=np.bool_)
    for index in range(-1, len(levels)):
        level = floor if index < 0 else levels[index]
        if index >= 0 and level <= floor:
            continue
        if room < level:
            break
        possible = True
        for kind in range(kinds):
            some = counts[kind] == 0
            for q in range(width):
                allowed[kind, q] = exists[kind, q] and transient[kind, q] <= level
                some = some or allowed[kind, q]
            possible = possible and some
        if not possible:
            continue
        budget = min((room - level) // live, heaviest * layers) if live > 0 else heaviest * layers
        largest = (1 << 59) // (heaviest * layers)
        multiplier, bound = _root(counts, allowed, work, activation, budget, largest)
        if bound > (best - 1) << _SHIFT:
            continue
        value, complete = _search(counts, allowed, work, activation, budget, multiplier, best, NODE_LIMIT, found)
        if not complete:
            relaxed = min(relaxed, max(0, -((-bound) >> _SHIFT)))
        if value < best:
            best, found_any = value, True
            for kind in range(kinds):
                for q in range(width):
                    chosen[kind, q] = found[kind, q]
    return min(best, relaxed), found_any


def fits_integers(problem: StageProblem) -> bool:
    """Whether all scaled sums of a stage problem stay within 64 bits."""
    rows = [s for table in problem.tables for kind in table for s in kind.strategies]
    work = max(s.forward + s.input_grad + s.weight_grad for s in rows)
    activation = max(s.activation for s in rows)
    return work * len(problem.layers) < 1 << (58 - _SHIFT) and activation * len(problem.layers) < 1 << 58


class LeastWork:
    """Least work for one table of costs.

    Parameters
    ----------
    work, activation, transient : int arrays [kinds, strategies]
        Time per micro-batch, memory per live micro-batch, memory while the layer's backward runs; rows of kinds with
        fewer strategies are filled up and masked by `exists`.
    exists : bool array [kinds, strategies]
    """

    def __init__(self, work: Int64, activation: Int64, transient: Int64, exists: NDArray[np.bool_]) -> None:
        self.work, self.activation, self.transient, self.exists = work, activation, transient, exists
        self.levels = np.unique(transient[exists])

    def fits_integers(self, num_layers: int) -> bool:
        """Whether all scaled sums stay within 64 bits."""
        scaled = int(self.work.max(initial=0)) * num_layers < 1 << (58 - _SHIFT)
        return scaled and int(self.activation.max(initial=0)) * num_layers < 1 << 58

    def __call__(
        self, counts: tuple[int, ...], room: int, live: int, floor: int, most: int
    ) -> tuple[int, Int64 | None] | None:
        """Least work of `counts[kind]` layers, and how many layers use each strategy.

        Parameters
        ----------
        room
            Memory for activations and transients.
        live
            Micro-batches whose activations are held at once.
        floor
            Transient memory that is needed anyway.
        most
            Only work up to this matters.

        Returns
        -------
        (lower bound on the work, counts per strategy) or None when nothing up to `most` fits. The bound is attained
        by the counts unless the search was cut short; then the counts may also be missing.
        """
        if most < 0 or room < floor:
            return None
        chosen = np.zeros_like(self.work)
        lower, found = over_levels(
            np.array(counts, dtype=np.int64),
            self.exists,
            self.work,
            self.activation,
            self.transient,
            self.levels,
            room,
            live,
            floor,
            most,
            chosen,
        )
        if lower > most:
            return None
        return lower, chosen if found else None
