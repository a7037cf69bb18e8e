"""Engine room: the best weighted sum of cuts for a partial choice of items.

Single cuts refute a partial choice late, because each of them may complete it in its own way. A weighted sum of cuts
must be exceeded by one completion. The weights with the greatest least completion are found by cutting planes: the
completion that is cheapest under the current weights, a shortest path through groups and layers left, becomes a row of
a small linear program over the weights. Its answer only proposes weights; rounded to integers they make a cut that
proves what its exact integer tables say, of this partial choice and of many others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np
from numba import njit
from numpy.typing import NDArray

from prism_cp.engine.aggregate import LARGEST_WEIGHT, LEAST_WEIGHT
from prism_cp.engine.tables import LARGEST_VALUE, Tables
from prism_cp.silent_highs import SilentHighs

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

LARGEST_SCALE = 1 << 18  # of cuts that are weighed; sums of sums would leave too few digits for the weights
TOTAL_SCALE = 1 << 26  # of a sum with other sums among its terms; `LARGEST_WEIGHT` of a sum of paths
MOST_ROUNDS = 150  # programs per partial choice
CLOSE = 2e-6  # relative gap at which the weights count as the best ones
NEW_WEIGHT = 0.6  # share of the program's answer in the weights tried next, the rest are the best weights so far
UNREACHABLE = 1e300


@dataclass(frozen=True)
class Weighing:
    """What was found for a partial choice.

    Attributes
    ----------
    bound : float
        Least weighted completion under the best weights, where a plan at the target time has 1; not exact.
    weights : float64 array [cuts]
        Sum 1, of cuts divided by their scales. Cuts with a large scale have none.
    completions : list of int64 arrays [groups]
        One item per group each, the partial choice's included.
    shares : float64 array [completions]
        Of the mixture that no weights tell from a plan.
    """

    bound: float
    weights: Float64
    completions: list[Int64]
    shares: Float64


def weigh_prefix(tables: Tables, prefix: Sequence[int], target: int, first: Float64 | None = None) -> Weighing | None:
    """Weights under which every completion of the first groups' items takes as long as possible.

    Ends early once they refute the target, or once no weights can. None: nothing completes the prefix.

    Parameters
    ----------
    prefix
        Items of the first groups, numbered over all groups.
    first
        Weights to begin with, of the first cuts.
    """
    columns = len(tables.rows)
    unit = tables.scales[:columns] * float(target)
    weighed = np.flatnonzero(tables.scales[:columns] <= LARGEST_SCALE)
    state = tables.chain.num_states - 1
    for g, item in enumerate(prefix):
        state = int(tables.down[tables.delta_start[g] + tables.item_delta[item], state])
    level = (tables.constants + tables.worth[list(prefix), :columns].sum(axis=0)) / unit
    weights = np.zeros(columns)
    if first is None or not first.any():
        rest = level + (tables.after[len(prefix), state, :columns] - tables.constants) / unit
        weights[int(weighed[np.argmax(rest[weighed])])] = 1.0
    else:
        weights[: len(first)] = first / first.sum()
    completions: list[Int64] = []
    best, best_weights = -np.inf, weights
    groups = len(tables.items)
    picked = np.zeros(groups, np.int64)
    picked[: len(prefix)] = prefix
    infinity = highspy.kHighsInf
    none = np.zeros(0, np.int32), np.zeros(0)
    every = np.arange(len(weighed) + 1, dtype=np.int32)
    highs = SilentHighs()
    for _ in weighed:
        highs.addCol(0.0, 0.0, infinity, 0, *none)
    highs.addCol(-1.0, -infinity, 10.0, 0, *none)
    highs.addRow(1.0, 1.0, len(weighed), every[:-1], np.ones(len(weighed)))
    for _ in range(MOST_ROUNDS):
        used = np.flatnonzero(weights > 0)
        value = cheapest_completion(
            len(prefix), state, used, weights[used] / unit[used], tables.worth, tables.start, tables.delta_start,
            tables.delta_item, tables.down, picked,
        )  # fmt: skip
        if value >= UNREACHABLE:
            return None
        completions.append(picked.copy())
        row = level + tables.worth[picked[len(prefix) :], :columns].sum(axis=0) / unit
        value = float(row @ weights)
        if value > best:
            best, best_weights = value, weights
        if best > 1.0:
            break
        highs.addRow(-infinity, 0.0, len(every), every, np.append(-row[weighed], 1.0))
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            break
        answer = np.array(highs.getSolution().col_value)
        if answer[-1] <= 1.0 or answer[-1] < best + CLOSE:
            break
        proposed = np.zeros(columns)
        proposed[weighed] = np.maximum(answer[:-1], 0.0)
        proposed /= proposed.sum()
        weights = NEW_WEIGHT * proposed + (1 - NEW_WEIGHT) * best_weights
        weights[weights < 1e-7] = 0.0
    shares = np.zeros(len(completions))
    if best <= 1.0:
        duals = -np.array(highs.getSolution().row_dual[1:])
        shares[: len(duals)] = np.maximum(duals, 0.0)
    return Weighing(best, best_weights, completions, shares)


def whole_multiples(tables: Tables, weights: Float64, longest: int) -> Int64 | None:
    """How often every cut is taken, in integers, for weights of cuts divided by their scales; None where too coarse.

    Parameters
    ----------
    longest
        No path is longer than this, time units.
    """
    scales = tables.scales[: len(weights)]
    largest = int(scales[weights > 0].max())
    total = LARGEST_WEIGHT if largest * LEAST_WEIGHT <= LARGEST_WEIGHT else TOTAL_SCALE
    total = min(total, LARGEST_VALUE // max(1, longest))
    if largest * LEAST_WEIGHT > total:
        return None
    whole: Int64 = np.rint(weights / scales * total).astype(np.int64)
    return whole if whole.any() else None


def mean_times(tables: Tables, weighing: Weighing) -> tuple[Int64, Int64, Int64]:
    """Times [virtual stages, 3], heads and tails of the mixture, rounded: where a path that is missing may be."""
    problem = tables.problem
    price = np.tensordot(weighing.weights, np.stack([row.times for row in tables.rows[: len(weighing.weights)]]), 1)
    times = np.zeros((len(problem.virtual_stages), 3))
    head = np.zeros(len(problem.ranks))
    tail = np.array([rank.last_bucket for rank in problem.ranks], np.int64)
    total = weighing.shares.sum()
    for picked, share in zip(weighing.completions, weighing.shares / total, strict=True):
        if share <= 0:
            continue
        for g, number in enumerate(picked.tolist()):
            items, item = tables.items[g], number - int(tables.start[g])
            stages, ranks = list(items.group.stages), list(items.group.ranks)
            span = slice(int(items.first[item]), int(items.first[item + 1]))
            point = int(np.argmin((items.extra[span] * price[stages]).sum(axis=(1, 2)))) + span.start
            times[stages] += share * (items.base[item] + items.extra[point])
            head[ranks] += share * items.head[item]
    return np.rint(times).astype(np.int64), np.rint(head).astype(np.int64), tail


@njit(cache=True)
def cheapest_completion(  # type: ignore[no-untyped-def]
    depth, state, used, weights, worth, start, delta_start, delta_item, down, picked
):
    """Least weighted worth of items for the groups from `depth` on, `state` being left; the items go to `picked`."""
    unreachable = 1e300
    groups = len(start) - 1
    states = down.shape[1]
    after = np.full((groups + 1, states), unreachable)
    after[groups, 0] = 0.0
    arg = np.zeros((groups, states), np.int64)
    cheapest = np.zeros(len(delta_item), np.int64)
    for g in range(groups - 1, depth - 1, -1):
        for delta in range(delta_start[g], delta_start[g + 1]):
            least, at = unreachable, np.int64(-1)
            for i in range(delta_item[delta], delta_item[delta + 1]):
                value = 0.0
                for n in range(len(used)):
                    value += weights[n] * worth[i, used[n]]
                if value < least:
                    least, at = value, i
            cheapest[delta] = at
            for s in range(states):
                rest = down[delta, s]
                if rest >= 0 and after[g + 1, rest] + least < after[g, s]:
                    after[g, s] = after[g + 1, rest] + least
                    arg[g, s] = delta
    s = state
    if after[depth, s] >= unreachable:
        return unreachable
    for g in range(depth, groups):
        delta = arg[g, s]
        picked[g] = cheapest[delta]
        s = down[delta, s]
    return after[depth, state]
