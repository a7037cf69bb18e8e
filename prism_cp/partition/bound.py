"""Which stage boundaries does a target step time leave reachable? The least such target is a lower bound.

Every rank's share of the chain is an *item* (first layer, last layer) with the exact least time c that its memory
allows. Walking the ranks in order, a boundary is reachable when some item ends there and every path through that rank
is within the target: with `before` the cheapest time of all earlier ranks, `after` that of all later ones, m
micro-batches and w = min(m, p-1-i), the paths of 1F1B are (their proof is a walk along the event graph)

    before + m c;   before + after + m c - w f;   before + after + (m - w) c + w f;   before + 2 after + (m - w) c

and for GPipe before + after + m c. f does not depend on the strategy here; where it does, the side that keeps the
bound valid is taken. Gradient reduction after the rank's last backward, optimizer and gather before its first forward
enter as constants of the item.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from prism_cp.partition.fronts import build_fronts, cheapest
from prism_cp.pipeline import live_vectors
from prism_cp.stage_problem import Assignment, StageProblem, StrategyCosts

MAX_KINDS = 12
NOT_POSSIBLE = np.int64(1) << 61
SCALE = np.int64(1) << 28  # time and hideable part share one integer in the fronts; work stays below 2 ** 34
SCHEDULES = ("gpipe", "1f1b")


@dataclass(frozen=True)
class PartitionBound:
    """A proven lower bound on the pipeline time, and a plan if one was found on the way.

    `lower_bound` is None when no plan fits in memory at all (proved). `assignment` fits in memory; its pipeline time
    is whatever a simulation says, at least `lower_bound`.
    """

    lower_bound: int | None
    assignment: Assignment | None


@dataclass(frozen=True)
class _Arrays:
    """A stage problem as arrays, for the inner loops."""

    prefix: np.ndarray  # [kinds, L + 1]
    f_low: np.ndarray  # [ranks, kinds]
    f_high: np.ndarray
    static: np.ndarray  # [ranks, kinds]
    optimizer: np.ndarray
    head: np.ndarray
    reduce: np.ndarray
    hide: np.ndarray  # best case
    end: np.ndarray  # [ranks, (f, b + w, activation, static + fixed, optimizer, transient, head, reduce, hide)]
    rank: np.ndarray  # [ranks, (capacity, live, head, last bucket, min layers, max layers)]
    buffers: np.ndarray  # [ranks, 2 ** kinds]


def applicable(problem: StageProblem) -> bool:
    """Whether the walk over ranks describes this problem: one piece per rank, in order, few kinds."""
    return (
        problem.schedule in SCHEDULES
        and problem.num_pieces == problem.pp == len(problem.virtual_stages)
        and all(stage.rank == stage.piece == index for index, stage in enumerate(problem.virtual_stages))
        and problem.num_kinds <= MAX_KINDS
        and _most_work(problem) < 1 << 28
    )


def _most_work(problem: StageProblem) -> int:
    """Longest time that all layers together can take for one micro-batch; hideable parts are never longer."""
    return max(
        sum(max(max(s.forward + s.input_grad + s.weight_grad, s.hideable) for s in table[k].strategies) for k in problem.layers)
        for table in problem.tables
    )


def partition_bound(problem: StageProblem, upper_bound: int | None = None) -> PartitionBound:
    """Lower bound on the pipeline time of every plan of `problem`.

    Parameters
    ----------
    upper_bound : int, optional
        Only plans with pipeline time at most this matter: when none is left, `lower_bound` is ``upper_bound + 1`` or
        more and no plan is returned.

    Raises
    ------
    ValueError
        The problem is not `applicable`.
    """
    if not applicable(problem):
        raise ValueError(f"no partition bound for schedule {problem.schedule}, {problem.num_kinds} kinds")
    limit = NOT_POSSIBLE - 1 if upper_bound is None else np.int64(upper_bound)
    tables = item_tables(problem, int(limit), exact=False)
    arrays, items, cuts = tables.arrays, tables.items, _rank_cuts(problem)
    p, length = problem.pp, len(problem.layers)
    after = _suffix_costs(items, arrays, p, length)
    if after[0, 0] >= NOT_POSSIBLE:
        if upper_bound is None:
            return PartitionBound(None, None)
        # items beyond the limit were left out, so this proves only that nothing is within it
        return PartitionBound(int(limit) + 1, None)
    lat = np.int64(problem.p2p)
    parents = np.full((p + 1, length + 1), -1, np.int64)
    low, high = np.int64(0), limit
    if upper_bound is None:
        high = max(np.int64(1), after[0, 0])
        while not _reachable(high, items, after, arrays, cuts, lat, p, length, parents):
            low, high = high + 1, high * 2
    elif not _reachable(high, items, after, arrays, cuts, lat, p, length, parents):
        return PartitionBound(int(high) + 1, None)
    while low < high:
        middle = (low + high) // 2
        if _reachable(middle, items, after, arrays, cuts, lat, p, length, parents):
            high = middle
        else:
            low = middle + 1
    _reachable(high, items, after, arrays, cuts, lat, p, length, parents)
    return PartitionBound(int(high), walk_assignment(tables, walk_boundaries(parents, p, length)))


@dataclass(frozen=True)
class ItemTables:
    """Least time of every item, and what is needed to turn items back into strategy counts.

    `items[rank, start, stop]` is `NOT_POSSIBLE` where nothing fits or the time limit excludes it.
    """

    problem: StageProblem
    arrays: _Arrays
    items: np.ndarray
    exposed: np.ndarray  # least of (time - hideable part), same shape; equal to `items` unless exact
    fronts: dict[tuple[int, int], tuple[Any, int, np.ndarray]]


def item_tables(problem: StageProblem, limit: int, exact: bool) -> ItemTables:
    """Items of a problem, as far as their rank's work stays within `limit`.

    Parameters
    ----------
    exact : bool
        Distinguish every value of the largest transient, so that an item's time is attained by a plan; otherwise a few
        brackets, and the time is a lower bound.
    """
    arrays = _arrays(problem)
    levels = _transient_levels(problem, 2 if not exact else 1 << 30)
    p, length = problem.pp, len(problem.layers)
    items = np.full((p, length + 1, length + 1), NOT_POSSIBLE, np.int64)
    exposed = items.copy() if exact else items
    fronts = {}
    for table in sorted({stage.table for stage in problem.virtual_stages}):
        most = _most_layers(problem, table, arrays, limit)
        mask = np.array([stage.table == table for stage in problem.virtual_stages])
        for level, (transient, allowed) in enumerate(levels[table]):
            activation, cost, hideable = _strategy_arrays(problem, table)
            # of equally fast strategies the one that hides more gradient reduction
            fronts[table, level] = (build_fronts(activation, cost * SCALE - hideable, allowed, most), transient, most)
            _fill_items(items, arrays, mask, fronts[table, level][0], transient, most, p, length, True)
            if exact:
                least = build_fronts(activation, cost - hideable, allowed, most)
                _fill_items(exposed, arrays, mask, least, transient, most, p, length, False)
    return ItemTables(problem, arrays, items, exposed, fronts)


# -- tables ------------------------------------------------------------------------------------------------------------


def _strategy_arrays(problem: StageProblem, table: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Activation, time f + b + w, and its hideable part per (kind, strategy), padded."""
    kinds = problem.tables[table]
    width = max(len(kind.strategies) for kind in kinds)
    activation = np.zeros((len(kinds), width), np.int64)
    cost, hideable = np.zeros((len(kinds), width), np.int64), np.zeros((len(kinds), width), np.int64)
    for k, kind in enumerate(kinds):
        for q, strategy in enumerate(kind.strategies):
            activation[k, q] = strategy.activation
            cost[k, q] = strategy.forward + strategy.input_grad + strategy.weight_grad
            hideable[k, q] = strategy.hideable
    return activation, cost, hideable


def _transient_levels(problem: StageProblem, most_cuts: int) -> list[list[tuple[int, np.ndarray]]]:
    """Per table brackets of the largest transient: (least transient in it, strategies at most its top).

    A plan's largest transient lies in one bracket, so the minimum over brackets is a valid bound.
    """
    result = []
    for kinds in problem.tables:
        width = max(len(kind.strategies) for kind in kinds)
        values = sorted({strategy.transient for kind in kinds for strategy in kind.strategies})
        gaps = sorted(range(1, len(values)), key=lambda i: values[i] - values[i - 1], reverse=True)[:most_cuts]
        edges = [0, *sorted(gaps), len(values)]
        levels = []
        for start, stop in zip(edges, edges[1:], strict=False):
            allowed = np.zeros((len(kinds), width), np.bool_)
            for k, kind in enumerate(kinds):
                usable = [q for q, s in enumerate(kind.strategies) if s.transient <= values[stop - 1]]
                for q in usable:
                    allowed[k, q] = not any(_dominates(kind.strategies, other, q) for other in usable if other != q)
            levels.append((values[start], allowed))
        result.append(levels)
    return result


def _dominates(strategies: tuple[StrategyCosts, ...], one: int, other: int) -> bool:
    """Whether strategy `one` is never worse for an item than `other` (of equals, the first stays)."""

    def key(strategy: StrategyCosts) -> tuple[int, int, int, int]:
        return (
            strategy.activation,
            strategy.forward + strategy.input_grad + strategy.weight_grad,
            strategy.transient,
            -strategy.hideable,
        )

    a, b = key(strategies[one]), key(strategies[other])
    return all(x <= y for x, y in zip(a, b, strict=True)) and (a != b or one < other)


def _arrays(problem: StageProblem) -> _Arrays:
    p, kinds = problem.pp, problem.num_kinds
    shape = (p, kinds)
    arrays = {name: np.zeros(shape, np.int64) for name in ("lo", "hi", "static", "optimizer", "head", "reduce", "hide")}
    end = np.zeros((p, 9), np.int64)
    rank = np.zeros((p, 6), np.int64)
    buffers = np.zeros((p, 1 << kinds), np.int64)
    live = live_vectors(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)
    for i, stage in enumerate(problem.virtual_stages):
        for k, kind in enumerate(problem.tables[stage.table]):
            forward = [strategy.forward for strategy in kind.strategies]
            arrays["lo"][i, k], arrays["hi"][i, k] = min(forward), max(forward)
            arrays["static"][i, k], arrays["optimizer"][i, k] = kind.static, kind.optimizer_step
            arrays["head"][i, k], arrays["reduce"][i, k] = kind.head, kind.reduce
            arrays["hide"][i, k] = max(strategy.hideable for strategy in kind.strategies)
        e, r = stage.ends, problem.ranks[i]
        end[i] = (
            e.forward, e.input_grad + e.weight_grad, e.activation, e.static + r.fixed, e.optimizer_step, e.transient,
            e.head, e.reduce, e.hideable,
        )  # fmt: skip
        (vector,) = live[i]
        rank[i] = (
            r.capacity, vector[0], r.head, r.last_bucket, problem.min_layers[i], problem.max_layers[i],
        )  # fmt: skip
        for mask in range(1 << kinds):
            buffers[i, mask] = sum(
                buffer.memory
                for buffer in problem.buffers
                if i in buffer.virtual_stages or any(mask >> k & 1 for k in buffer.kinds)
            )
    return _Arrays(
        np.array(problem.prefix_counts, np.int64), arrays["lo"], arrays["hi"], arrays["static"], arrays["optimizer"],
        arrays["head"], arrays["reduce"], arrays["hide"], end, rank, buffers,
    )  # fmt: skip


def _most_layers(problem: StageProblem, table: int, arrays: _Arrays, limit: int) -> np.ndarray:
    """Most layers of each kind that any rank of this table can hold, by memory and by the time limit."""
    most = np.zeros(problem.num_kinds, np.int64)
    for i, stage in enumerate(problem.virtual_stages):
        if stage.table != table:
            continue
        room = int(arrays.rank[i, 0] - arrays.end[i, 3])
        for k, kind in enumerate(problem.tables[table]):
            n = min(int(arrays.prefix[k, -1]), int(arrays.rank[i, 5]))
            least = min(strategy.activation for strategy in kind.strategies) * int(arrays.rank[i, 1]) + kind.static
            if least:
                n = min(n, max(0, room // least))
            time = min(s.forward + s.input_grad + s.weight_grad for s in kind.strategies)
            if time:
                n = min(n, limit // (time * problem.num_microbatches))
            most[k] = max(most[k], n)
    return most


def _rank_cuts(problem: StageProblem) -> np.ndarray:
    """Rows [rank, cut, (c, f, after, p2p)]: coefficient of the item's time, of its forward, of `after`, of p2p.

    `before` always has coefficient 1. Unused rows are zero, which is a valid (trivial) bound.
    """
    p, m = problem.pp, problem.num_microbatches
    rows = np.zeros((p, 4, 4), np.int64)
    for i in range(p):
        w, inner = min(m, p - 1 - i), 2 * i
        if problem.schedule == "gpipe":
            rows[i, 0] = (m, 0, 1, 2 * (p - 1))
            continue
        rows[i, 0] = (m, 0, 0, inner)
        rows[i, 1] = (m, -w, 1, 2 * (p - 1))
        if m > w:
            rows[i, 2] = (m - w, w, 1, 2 * (p - 1))
        if m - w >= 2:
            rows[i, 3] = (m - w, 0, 2, inner + 4 * (p - 1 - i))
    return np.concatenate([rows, np.full((p, 1, 4), m, np.int64)], axis=1)


# -- inner loops -------------------------------------------------------------------------------------------------------


def _fill_items(items, arrays, mask, front, transient, most, p, length, scaled):  # type: ignore[no-untyped-def]
    _fill_items_loop(
        items, arrays.prefix, arrays.static, arrays.optimizer, arrays.end, arrays.rank, arrays.buffers, mask,
        front[0], front[1], front[4], np.int64(transient), most, p, length, SCALE if scaled else np.int64(1),
    )  # fmt: skip


@njit(cache=True)  # type: ignore[untyped-decorator]
def _activation_budget(i, counts, static, optimizer, end, rank, buffers, transient):  # type: ignore[no-untyped-def]
    """Activation memory per live micro-batch that rank `i` has left for its layers; negative: does not fit."""
    kinds = len(counts)
    held = end[i, 3]
    step = end[i, 4]
    present = 0
    for k in range(kinds):
        held += counts[k] * static[i, k]
        step += counts[k] * optimizer[i, k]
        if counts[k]:
            present |= 1 << k
    held += buffers[i, present]
    if held + step > rank[i, 0]:
        return np.int64(-1)
    if present:
        room = rank[i, 0] - held - max(transient, end[i, 5])
    else:
        room = rank[i, 0] - held - end[i, 5]
    if room < 0:
        return np.int64(-1)
    return room // rank[i, 1] - end[i, 2]


@njit(cache=True)  # type: ignore[untyped-decorator]
def _fill_items_loop(  # type: ignore[no-untyped-def]
    items, prefix, static, optimizer, end, rank, buffers, mask, points_a, points_c, lengths, transient, most, p, length,
    scale,
):
    kinds = prefix.shape[0]
    counts = np.zeros(kinds, np.int64)
    pick = np.zeros(kinds, np.int64)
    for i in range(p):
        if not mask[i]:
            continue
        for start in range(length + 1):
            if i == 0 and start > 0:
                break
            for stop in range(start, length + 1):
                if i == p - 1 and stop < length:
                    continue
                if stop - start < rank[i, 4]:
                    continue
                if stop - start > rank[i, 5]:
                    break
                too_many = False
                for k in range(kinds):
                    counts[k] = prefix[k, stop] - prefix[k, start]
                    too_many |= counts[k] > most[k]
                if too_many:
                    break
                budget = _activation_budget(i, counts, static, optimizer, end, rank, buffers, transient)
                if budget < 0:
                    break  # more layers only take more memory
                cost = cheapest(points_a, points_c, lengths, counts, budget, pick)
                if cost >= 0:
                    cost = (cost + scale - 1) // scale + end[i, 0] + end[i, 1]
                    items[i, start, stop] = min(items[i, start, stop], cost)


def _suffix_costs(items, arrays, p, length):  # type: ignore[no-untyped-def]
    return _suffix_costs_loop(items, p, length)


@njit(cache=True)  # type: ignore[untyped-decorator]
def _suffix_costs_loop(items, p, length):  # type: ignore[no-untyped-def]
    """``after[i, x]``: least total time of ranks i.. on the layers from x on."""
    impossible = np.int64(1) << 61
    after = np.full((p + 1, length + 1), impossible, np.int64)
    after[p, length] = 0
    for i in range(p - 1, -1, -1):
        for start in range(length + 1):
            best = impossible
            for stop in range(start, length + 1):
                if items[i, start, stop] < impossible and after[i + 1, stop] < impossible:
                    best = min(best, items[i, start, stop] + after[i + 1, stop])
            after[i, start] = best
    return after


def _reachable(target, items, after, arrays, cuts, lat, p, length, parents):  # type: ignore[no-untyped-def]
    return _reachable_loop(
        np.int64(target), items, after, arrays.prefix, arrays.f_low, arrays.f_high, arrays.head, arrays.reduce,
        arrays.hide, arrays.end, arrays.rank, cuts, lat, p, length, parents,
    )  # fmt: skip


@njit(cache=True)  # type: ignore[untyped-decorator]
def _reachable_loop(  # type: ignore[no-untyped-def]
    target, items, after, prefix, f_low, f_high, head, reduce, hide, end, rank, cuts, lat, p, length, parents
):
    """Whether some boundaries keep every path within `target`; `parents` receives one such walk."""
    impossible = np.int64(1) << 61
    kinds = prefix.shape[0]
    before = np.full(length + 1, impossible, np.int64)
    before[0] = 0
    forward_before = np.zeros(length + 1, np.int64)  # least forward time of earlier ranks, the same for every walk
    parents[:] = -1
    for i in range(p):
        following = np.full(length + 1, impossible, np.int64)
        forward_following = np.zeros(length + 1, np.int64)
        for start in range(length + 1):
            if before[start] >= impossible:
                continue
            for stop in range(start, length + 1):
                c = items[i, start, stop]
                if c >= impossible or after[i + 1, stop] >= impossible:
                    continue
                f_least = end[i, 0]
                f_most = end[i, 0]
                start_time = rank[i, 2] + end[i, 6]
                exposed = end[i, 7] - end[i, 8]
                for k in range(kinds):
                    n = prefix[k, stop] - prefix[k, start]
                    f_least += n * f_low[i, k]
                    f_most += n * f_high[i, k]
                    start_time += n * head[i, k]
                    exposed += n * (reduce[i, k] - hide[i, k])
                tail = max(rank[i, 3], exposed)
                reach = before[start]
                if i == 0:
                    reach = start_time + tail
                rest = after[i + 1, stop]
                m = cuts[i, 4, 0]
                fits = start_time + m * c + tail <= target
                fits &= forward_before[start] + i * lat + m * c + tail <= target
                for cut in range(4):
                    f = f_least if cuts[i, cut, 1] > 0 else f_most
                    value = reach + cuts[i, cut, 0] * c + cuts[i, cut, 1] * f + cuts[i, cut, 2] * rest
                    fits &= value + cuts[i, cut, 3] * lat <= target
                if fits and reach + c < following[stop]:
                    following[stop] = reach + c
                    forward_following[stop] = forward_before[start] + f_least
                    parents[i + 1, stop] = start
                elif fits:
                    forward_following[stop] = min(forward_following[stop], forward_before[start] + f_least)
        before, forward_before = following, forward_following
    return before[length] < impossible


# -- plans -------------------------------------------------------------------------------------------------------------


def walk_boundaries(parents: np.ndarray, p: int, length: int) -> tuple[int, ...]:
    """The boundaries of the walk that `_reachable` left in `parents`."""
    bounds = [length]
    for i in range(p, 0, -1):
        bounds.append(int(parents[i, bounds[-1]]))
    return tuple(reversed(bounds))


def walk_assignment(tables: ItemTables, bounds: Sequence[int]) -> Assignment | None:
    """Boundaries with every rank's cheapest strategies, or None when a thinned or relaxed front stands in the way."""
    problem = tables.problem
    counts = []
    for i, stage in enumerate(problem.virtual_stages):
        item = _item_counts(problem, tables.arrays, tables.fronts, i, stage.table, bounds[i], bounds[i + 1])
        if item is None:
            return None
        counts.append(item)
    return Assignment(tuple(bounds), tuple(counts))


def _item_counts(problem, arrays, fronts, i, table, start, stop):  # type: ignore[no-untyped-def]
    """Strategy counts of rank `i`'s cheapest item that really fits (transients as they are)."""
    layers = np.ascontiguousarray(arrays.prefix[:, stop] - arrays.prefix[:, start])
    kinds = problem.tables[table]
    best = None
    every_top = {s.transient for kind in kinds for s in kind.strategies}
    for (owner, _), (front, _transient, most) in fronts.items():
        if owner != table or np.any(layers > most):
            continue
        tops = sorted({t for t in every_top if t >= _transient})
        for transient in tops:
            budget = _activation_budget(
                i, layers, arrays.static, arrays.optimizer, arrays.end, arrays.rank, arrays.buffers, np.int64(transient)
            )
            if budget < 0:
                continue
            pick = np.zeros(len(layers), np.int64)
            cost = cheapest(front[0], front[1], front[4], layers, budget, pick)
            if cost < 0 or np.any(pick < 0) or (best is not None and cost >= best[0]):
                continue
            rows = _backtrack(front, kinds, layers, pick)
            if rows is not None and _largest_transient(kinds, rows) <= transient:
                best = (cost, rows)
    return None if best is None else best[1]


def _largest_transient(kinds, rows):  # type: ignore[no-untyped-def]
    used = [s.transient for kind, row in zip(kinds, rows, strict=True) for s, n in zip(kind.strategies, row) if n]
    return max(used, default=0)


def _backtrack(front, kinds, layers, pick):  # type: ignore[no-untyped-def]
    parent, chosen = front[2], front[3]
    rows = []
    for k, kind in enumerate(kinds):
        row = [0] * len(kind.strategies)
        n, point = int(layers[k]), int(pick[k])
        while n:
            strategy = int(chosen[k, n, point])
            if strategy < 0:
                return None
            row[strategy] += 1
            point = int(parent[k, n, point])
            n -= 1
        rows.append(tuple(row))
    return tuple(rows)

