"""Items: what a rank pays for every piece it may hold, first as a relaxation, exactly where it matters.

An item is (rank, first layer, end of its layers). Its time is forward + backward of one micro-batch with the fastest
strategies that the rank's memory allows. The relaxation lets layers mix strategies in fractions and takes the least
transient of the kinds held; `make_exact` replaces it by the knapsack's optimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from prism_cp.layouts.bounds import BRACKETS, bracket_hulls, least_cost
from prism_cp.partition.least_work import over_levels
from prism_cp.pipeline import live_vectors
from prism_cp.stage_problem import StageProblem

Int64 = NDArray[np.int64]
NOT_POSSIBLE = 1 << 61
LARGEST_WORK = np.int64(1) << 42  # above any rank's work, see `fits_integers`; small enough to be scaled
SLACK = 1e-9  # covers the floating-point error of the relaxation


@dataclass(frozen=True)
class RankArrays:
    """A stage problem as arrays; `end` and `rank` have one row per rank.

    `end` columns: forward, backward, activation, static + fixed, optimizer step, transient, head, reduce, hideable.
    `rank` columns: capacity, live micro-batches, head, last bucket, least layers, most layers.
    """

    prefix: Int64  # [kinds, length + 1]
    forward_least: Int64  # [ranks, kinds]
    forward_most: Int64
    static: Int64
    optimizer: Int64
    head: Int64
    reduce: Int64
    hide_most: Int64
    end: Int64
    rank: Int64
    buffers: Int64  # [ranks, 2 ** kinds]: shared buffers by the set of kinds held


@dataclass(frozen=True)
class StrategyArrays:
    """One table of costs, [kinds, strategies], padded; `exists` masks the padding."""

    work: Int64
    exposed: Int64  # work minus its hideable part
    activation: Int64
    transient: Int64
    exists: NDArray[np.bool_]
    levels: Int64  # distinct transients


class ItemTables:
    """Items of a stage problem.

    Parameters
    ----------
    problem : StageProblem
    limit : int
        Items whose rank alone would take longer are left out.

    Attributes
    ----------
    items : int64[ranks, length + 1, length + 1]
        Lower bound on the item's time; `NOT_POSSIBLE` where nothing fits (or is within the limit).
    exposed : int64, same shape
        Lower bound on the time minus the part that gradient reduction can hide under.
    exact : bool, same shape
        Where `items` is attained by the strategies in `plans`.
    """

    def __init__(self, problem: StageProblem, limit: int) -> None:
        self.problem, self.limit = problem, limit
        self.arrays = rank_arrays(problem)
        self.tables = [strategy_arrays(problem, table) for table in range(len(problem.tables))]
        p, length = problem.pp, len(problem.layers)
        self.items = np.full((p, length + 1, length + 1), NOT_POSSIBLE, np.int64)
        self.exposed = self.items.copy()
        self.exact = np.zeros(self.items.shape, np.bool_)
        self.plans: dict[tuple[int, int, int], tuple[tuple[int, ...], ...]] = {}
        a = self.arrays
        for index, table in enumerate(self.tables):
            mask = np.array([stage.table == index for stage in problem.virtual_stages])
            _relaxed_items(
                self.items, self.exposed, mask, a.prefix, a.static, a.optimizer, a.hide_most, a.end, a.rank, a.buffers,
                *_hulls(table), problem.num_microbatches, limit,
            )  # fmt: skip

    def make_exact(self, mask: NDArray[np.bool_]) -> int:
        """Solve the knapsack of every possible item under `mask` that is not exact yet; returns how many changed."""
        wanted = np.argwhere(mask & ~self.exact & (self.items < NOT_POSSIBLE))
        changed = 0
        a, problem = self.arrays, self.problem
        for index, table in enumerate(self.tables):
            own = np.array([stage.table == index for stage in problem.virtual_stages])
            chosen = np.ascontiguousarray(wanted[own[wanted[:, 0]]])
            if not len(chosen):
                continue
            values = np.full((len(chosen), 2), NOT_POSSIBLE, np.int64)
            counts = np.zeros((len(chosen), *table.work.shape), np.int64)
            _exact_items(
                chosen, values, counts, a.prefix, a.static, a.optimizer, a.end, a.rank, a.buffers, table.exists,
                table.work, table.exposed, table.activation, table.transient, table.levels,
                problem.num_microbatches, self.limit,
            )  # fmt: skip
            changed += self._store(index, chosen, values, counts)
        return changed

    def _store(self, table: int, chosen: Int64, values: Int64, counts: Int64) -> int:
        """Keep exact values, and the strategies of those that are possible."""
        r, start, stop = chosen.T
        changed = int((self.items[r, start, stop] != values[:, 0]).sum())
        self.items[r, start, stop], self.exposed[r, start, stop] = values[:, 0], values[:, 1]
        self.exact[r, start, stop] = True
        widths = [len(kind.strategies) for kind in self.problem.tables[table]]
        for row, key in enumerate(map(tuple, chosen.tolist())):
            if values[row, 0] < NOT_POSSIBLE and counts[row].sum() == key[2] - key[1]:
                self.plans[key] = tuple(tuple(int(n) for n in counts[row, k, :width]) for k, width in enumerate(widths))
        return changed


def rank_arrays(problem: StageProblem) -> RankArrays:
    """Arrays of a stage problem with one piece per rank."""
    p, kinds = problem.pp, problem.num_kinds
    names = ("forward_least", "forward_most", "static", "optimizer", "head", "reduce", "hide_most")
    arrays = {name: np.zeros((p, kinds), np.int64) for name in names}
    end, rank = np.zeros((p, 9), np.int64), np.zeros((p, 6), np.int64)
    buffers = np.zeros((p, 1 << kinds), np.int64)
    live = live_vectors(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)
    for i, stage in enumerate(problem.virtual_stages):
        for k, kind in enumerate(problem.tables[stage.table]):
            forward = [strategy.forward for strategy in kind.strategies]
            arrays["forward_least"][i, k], arrays["forward_most"][i, k] = min(forward), max(forward)
            arrays["static"][i, k], arrays["optimizer"][i, k] = kind.static, kind.optimizer_step
            arrays["head"][i, k], arrays["reduce"][i, k] = kind.head, kind.reduce
            arrays["hide_most"][i, k] = max(strategy.hideable for strategy in kind.strategies)
        e, r = stage.ends, problem.ranks[i]
        end[i] = (
            e.forward, e.input_grad + e.weight_grad, e.activation, e.static + r.fixed, e.optimizer_step, e.transient,
            e.head, e.reduce, e.hideable,
        )  # fmt: skip
        (vector,) = live[i]
        rank[i] = (r.capacity, vector[0], r.head, r.last_bucket, problem.min_layers[i], problem.max_layers[i])
        for held in range(1 << kinds):
            buffers[i, held] = sum(
                buffer.memory
                for buffer in problem.buffers
                if i in buffer.virtual_stages or any(held >> k & 1 for k in buffer.kinds)
            )
    return RankArrays(np.array(problem.prefix_counts, np.int64), **arrays, end=end, rank=rank, buffers=buffers)


def strategy_arrays(problem: StageProblem, table: int) -> StrategyArrays:
    """One table of costs as arrays, without strategies that are never better than another one."""
    kinds = problem.tables[table]
    width = max(len(kind.strategies) for kind in kinds)
    rows = np.zeros((4, len(kinds), width), np.int64)
    exists = np.zeros((len(kinds), width), np.bool_)
    for k, kind in enumerate(kinds):
        for q, s in enumerate(kind.strategies):
            work = s.forward + s.input_grad + s.weight_grad
            rows[:, k, q] = (work, work - s.hideable, s.activation, s.transient)
        keys = rows[:, k, : len(kind.strategies)]
        for q in range(len(kind.strategies)):
            dominated = (keys <= keys[:, q : q + 1]).all(axis=0)
            equal = (keys == keys[:, q : q + 1]).all(axis=0)
            exists[k, q] = not (dominated & ~equal).any() and not equal[:q].any()
    return StrategyArrays(rows[0], rows[1], rows[2], rows[3], exists, np.unique(rows[3][exists]))


def _hulls(table: StrategyArrays) -> tuple[Any, ...]:
    """(number of brackets, their least transients, hulls of activation and work, their sizes); see `bracket_hulls`."""
    kinds, width = table.work.shape
    lows, tops = np.zeros(BRACKETS), np.zeros(BRACKETS)
    hull_a, hull_c = np.zeros((BRACKETS, kinds, width)), np.zeros((BRACKETS, kinds, width))
    size = np.zeros((BRACKETS, kinds), np.int64)
    transient = np.where(table.exists, table.transient, -1).astype(np.float64)
    number = bracket_hulls(
        transient, table.activation.astype(np.float64), table.work.astype(np.float64), lows, tops, hull_a, hull_c, size
    )
    return number, lows, hull_a, hull_c, size


# -- inner loops -------------------------------------------------------------------------------------------------------


@njit(cache=True)
def _room(i, counts, static, optimizer, end, rank, buffers):  # type: ignore[no-untyped-def]
    """Memory that rank `i` has for activations and transients of its layers; negative: does not fit."""
    held, step, present = end[i, 3], end[i, 4], 0
    for k in range(len(counts)):
        held += counts[k] * static[i, k]
        step += counts[k] * optimizer[i, k]
        if counts[k]:
            present |= 1 << k
    held += buffers[i, present]
    if held + step > rank[i, 0]:
        return np.int64(-1)
    return rank[i, 0] - held - rank[i, 1] * end[i, 2]


@njit(cache=True)
def _relaxed_items(  # type: ignore[no-untyped-def]
    items, exposed, mask, prefix, static, optimizer, hide, end, rank, buffers, number, lows, hull_a, hull_c, size,
    micro_batches, limit,
):  # fmt: skip
    """Fill relaxed items of the ranks under `mask`."""
    kinds = prefix.shape[0]
    p, length = items.shape[0], items.shape[1] - 1
    counts = np.zeros(kinds, np.int64)
    layers = np.zeros(kinds)  # the same as floats: one compiled version of `least_cost` serves all callers
    for i in range(p):
        if not mask[i]:
            continue
        for start in range(length + 1):
            if i == 0 and start > 0:
                break
            for stop in range(start + rank[i, 4], min(length, start + rank[i, 5]) + 1):
                if i == p - 1 and stop < length:
                    continue
                hidden = 0
                for k in range(kinds):
                    counts[k] = prefix[k, stop] - prefix[k, start]
                    layers[k] = counts[k]
                    hidden += counts[k] * hide[i, k]
                room = _room(i, counts, static, optimizer, end, rank, buffers)
                if room < end[i, 5]:
                    break  # more layers only take more memory
                cost = least_cost(
                    layers, number, lows, hull_a, hull_c, size, float(room), float(end[i, 5]), rank[i, 1], 0.0
                )
                if cost < 0:
                    break
                time = np.int64(np.ceil(cost * (1 - SLACK))) + end[i, 0] + end[i, 1]
                if time * micro_batches > limit:
                    break
                items[i, start, stop] = time
                exposed[i, start, stop] = time - hidden


@njit(cache=True)
def _exact_items(  # type: ignore[no-untyped-def]
    chosen, values, plans, prefix, static, optimizer, end, rank, buffers, exists, work, exposed, activation, transient,
    levels, micro_batches, limit,
):  # fmt: skip
    """Exact (time, exposed) and strategy counts of the chosen items; values stay as given where nothing fits."""
    kinds, width = work.shape
    counts = np.zeros(kinds, np.int64)
    other = np.zeros((kinds, width), np.int64)
    for row in range(len(chosen)):
        i, start, stop = chosen[row]
        for k in range(kinds):
            counts[k] = prefix[k, stop] - prefix[k, start]
        room = _room(i, counts, static, optimizer, end, rank, buffers)
        most = min(limit // micro_batches - end[i, 0] - end[i, 1], LARGEST_WORK)
        if room < end[i, 5] or most < 0:
            continue
        live, floor = rank[i, 1], end[i, 5]
        time, found = over_levels(
            counts, exists, work, activation, transient, levels, room, live, floor, most, plans[row]
        )
        if time > most or not found:
            if time <= most:  # cut short: a bound without a plan; keep the bound, leave the plan empty
                values[row, 0], values[row, 1] = time + end[i, 0] + end[i, 1], 0
            continue
        least, _ = over_levels(counts, exists, exposed, activation, transient, levels, room, live, floor, most, other)
        total = 0
        for k in range(kinds):
            for q in range(width):
                total += other[k, q] * work[k, q]
        if total == time:  # as fast, and hides most
            for k in range(kinds):
                for q in range(width):
                    plans[row, k, q] = other[k, q]
        values[row, 0] = time + end[i, 0] + end[i, 1]
        values[row, 1] = least + end[i, 0] + end[i, 1]
