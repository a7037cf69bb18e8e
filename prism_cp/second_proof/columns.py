"""Second proof room: everything a component can hold within its memory and within what paths leave it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism_cp.second_proof.component_costs import ComponentCosts
from prism_cp.second_proof.components import Component
from prism_cp.second_proof.fronts import ACTIVATION, HIDEABLE, TRANSIENT, Front, Fronts, pareto_minimal
from prism_cp.second_proof.paths import Paths
from prism_cp.second_proof.points_kernel import fitting_points, priced_least
from prism_cp.second_proof.totals import NEVER
from prism_cp.stage_problem import EndCosts, KindCosts, StageProblem, StrategyCosts

Int64 = NDArray[np.int64]

MOST_ITEMS = 30_000
PRICED_TOGETHER = 500  # items
MOST_SHARES = 40_000_000  # columns of all components times paths
MOST_POINTS = 400_000  # of one item, before those that another one beats are dropped
MOST_COLUMNS = 60_000  # of one component
PRICES = 8  # on the memory of each row
MOST_SCALE_BITS, LARGEST_BITS = 20, 57  # of scaled prices, and of their products


class TooManyColumnsError(Exception):
    """There are more columns than are worth enumerating."""


@dataclass(frozen=True)
class Items:
    """What the pieces of a component can hold, strategies left open.

    Attributes
    ----------
    content : int64 array [items, pieces]
        Row of each piece's contents.
    layers : int64 array [items, kinds]
        Of all pieces together.
    """

    content: Int64
    layers: Int64

    def take(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> Items:
        """Some of the items."""
        return Items(self.content[which], self.layers[which])


@dataclass(frozen=True)
class Columns:
    """Whole choices of a component: an item, and strategies for the layers of each of its pieces.

    Attributes
    ----------
    content : int64 array [columns, pieces]
    counts : int16 array [columns, pieces, strategies of all kinds]
    layers : int64 array [columns, kinds]
    times : int64 array [columns, virtual stages of the component, 3]
    head, tail : int64 arrays [columns, ranks of the component]
    """

    content: Int64
    counts: NDArray[np.int16]
    layers: Int64
    times: Int64
    head: Int64
    tail: Int64

    def take(self, which: NDArray[np.intp] | NDArray[np.bool_]) -> Columns:
        """Some of the columns."""
        return Columns(
            self.content[which], self.counts[which], self.layers[which], self.times[which], self.head[which],
            self.tail[which],
        )  # fmt: skip


class ColumnMaker:
    """Makes items and columns of one component.

    Parameters
    ----------
    exact_tails
        Whether columns differ in how much of the gradient reduction they hide. If not, every item hides as much as the
        strategies of its layers can: then a column is only a lower bound of what its strategies take.
    """

    def __init__(
        self,
        problem: StageProblem,
        component: Component,
        contents: Sequence[Int64],
        fronts: Fronts,
        exact_tails: bool,
    ) -> None:
        self.problem, self.component, self.fronts, self.exact_tails = problem, component, fronts, exact_tails
        self.costs = ComponentCosts(problem, component, contents)
        self.contents = self.costs.contents
        self._tables = [
            tuple(dict.fromkeys(problem.virtual_stages[i].table for i in stages)) for stages in component.stages
        ]

    def _times(self, k: int, front: Front) -> Int64:
        """Times [points, virtual stages of the k-th piece, 3], ends included."""
        costs, tables = front.costs, self._tables[k]
        stages = [self.problem.virtual_stages[i] for i in self.component.stages[k]]
        ends = np.array([_times(stage.ends) for stage in stages], np.int64)
        return costs[:, [tables.index(s.table) for s in stages], :3] + ends

    def items(self, paths: Paths, room: Int64) -> Items:
        """Everything whose quickest strategies, without regard to memory, leave every path within its room."""
        share = self.fixed_share(paths)
        found = np.zeros((1, 0), np.int64)
        for k in range(len(self.contents)):
            quickest = self._quickest(paths, k)
            parts = [(np.zeros((0, k + 1), np.int64), share[:0])]
            count = 0
            for each, own in zip(found, share, strict=True):
                total = own + quickest
                fresh = np.flatnonzero(np.all(total <= room, axis=1))
                parts.append((np.column_stack((np.repeat(each[None], len(fresh), axis=0), fresh)), total[fresh]))
                count += len(fresh)
                if count > MOST_ITEMS:
                    raise TooManyColumnsError(f"rank {self.component.ranks[0]} has more than {MOST_ITEMS} items")
            found, share = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        layers = np.zeros((len(found), self.problem.num_kinds), np.int64)
        for k, held in enumerate(self.contents):
            layers += held[found[:, k]]
        return Items(found, layers)

    def fixed_share(self, paths: Paths) -> Int64:
        """What a component takes of every path [1, paths] whatever it holds."""
        ranks = list(self.component.ranks)
        head = np.array([self.problem.ranks[rank].head for rank in ranks], np.int64)
        for i in self.component.all_stages:
            stage = self.problem.virtual_stages[i]
            head[ranks.index(stage.rank)] += stage.ends.head
        tail = np.array([self.problem.ranks[rank].last_bucket for rank in ranks], np.int64)
        times = np.zeros((1, len(self.component.all_stages), 3), np.int64)
        return paths.values(self.component, times, head[None], tail[None])

    def quickest(self, paths: Paths, items: Items) -> Int64:
        """What items take of every path at least [items, paths]."""
        share = np.repeat(self.fixed_share(paths), len(items.layers), axis=0)
        for k in range(len(self.contents)):
            share += self._quickest(paths, k)[items.content[:, k]]
        return share

    def _quickest(self, paths: Paths, k: int) -> Int64:
        """Least that each content of a piece adds to every path [contents, paths], whatever the memory."""
        stages = list(self.component.stages[k])
        own = paths.times[:, stages]
        ends = np.array([_times(self.problem.virtual_stages[i].ends) for i in stages], np.int64)
        layer = np.zeros((self.problem.num_kinds, len(paths.cuts)), np.int64)
        for kind in range(self.problem.num_kinds):
            costs = [self.costs.kinds(i)[kind] for i in stages]
            choices = np.array([[_times(s) for s in each.strategies] for each in costs], np.int64)
            layer[kind] = np.einsum("xst,sct->cx", own, choices).min(axis=0)
            for i, each in zip(stages, costs, strict=True):
                layer[kind] += paths.head[:, self.problem.virtual_stages[i].rank] * each.head
        result: Int64 = self.contents[k] @ layer + np.einsum("xst,st->x", own, ends)
        return result

    def priced(self, paths: Paths, items: Items) -> Int64:
        """What items take of every path at least [items, paths], with a price on the memory of one row after another.

        Whatever the price, ``path + price * (memory - room)`` of strategies that fit is not above the path.
        """
        scale, price = self._prices(paths)
        distinct = [np.unique(each, return_inverse=True) for each in items.content.T]
        pieces = [self._pieces_priced(paths, k, contents, price, scale) for k, (contents, _) in enumerate(distinct)]
        shares = [np.zeros((0, len(paths.cuts)), np.int64)]
        for start in range(0, len(items.layers), PRICED_TOGETHER):
            part = slice(start, start + PRICED_TOGETHER)
            which = [number[part] for _, number in distinct]
            shares.append(self._share_priced(paths, items.content[part], pieces, which, price, scale))
        return np.concatenate(shares)

    def _share_priced(
        self,
        paths: Paths,
        contents: Int64,
        pieces: Sequence[tuple[Int64, Int64]],
        which: Sequence[NDArray[np.intp]],
        price: Int64,
        scale: int,
    ) -> Int64:
        """The same for some items: `which` of the priced contents each piece holds."""
        share = np.zeros((len(contents), len(paths.cuts)), np.int64)
        base, room = np.zeros_like(share), np.zeros((len(contents), len(self.costs.rows)), np.int64)
        for number, content in enumerate(contents):
            left = self.costs.memory_room(content)
            if left is None:
                share[number] = NEVER
                continue
            head, _ = self.costs.heads(content)
            none = np.zeros((1, len(self.component.all_stages), 3), np.int64)
            base[number] = paths.values(self.component, none, head[None], self.costs.least_tail()[None])[0]
            room[number] = left
        fixed = sum((ends[which[k]] for k, (_, ends) in enumerate(pieces)), base)
        for m in range(len(self.costs.rows)):
            total = sum((each[which[k], m] for k, (each, _) in enumerate(pieces)), np.int64(0))
            total = total - price[m] * room[:, m, None, None]
            saved = -(-total.max(axis=2) // scale)
            share = np.maximum(share, np.where(share >= NEVER, NEVER, fixed + np.maximum(saved, 0)))
        return share

    def _prices(self, paths: Paths) -> tuple[int, Int64]:
        """A scale, and scaled prices [rows, paths, prices] of memory: what strategies ask for a unit on the whole path.

        The scale and the highest price keep every sum of them within 64 bits.
        """
        kinds = [kind for tables in self._tables for table in tables for kind in self.problem.tables[table]]
        strategies = [strategy for kind in kinds for strategy in kind.strategies]
        layers = len(self.problem.layers)
        longest = int(paths.times[:, list(self.component.all_stages)].sum(axis=(1, 2)).max())
        longest *= max(layers * max(_times(s)) for s in strategies)
        scale = 1 << max(0, min(MOST_SCALE_BITS, LARGEST_BITS - longest.bit_length()))
        activation = layers * max(s.activation for s in strategies)
        slopes = [0.0]
        for table in {table for tables in self._tables for table in tables}:
            for kind in self.problem.tables[table]:
                slopes += _slopes(kind)
        slopes = sorted({float(np.quantile(slopes, q)) for q in np.linspace(0, 1, PRICES)})
        result = np.zeros((len(self.costs.rows), len(paths.cuts), len(slopes)), np.int64)
        for m, (rank, counts) in enumerate(self.costs.rows):
            alive = sum(whole for whole, _ in counts.values())
            passes = paths.times[:, list(counts), 1].sum(axis=1) / max(1, alive)
            ends = [self.problem.virtual_stages[i].ends for i in counts]
            largest = max(alive, 1) * (activation + max(end.activation for end in ends))
            largest += (
                self.problem.ranks[rank].capacity
                + max(s.transient for s in strategies)
                + max(end.transient for end in ends)
            )
            highest = (1 << LARGEST_BITS) // max(1, largest)
            result[m] = np.minimum(np.rint(passes[:, None] * np.array(slopes) * scale), highest)
        return scale, result

    def _pieces_priced(self, paths: Paths, k: int, contents: Int64, price: Int64, scale: int) -> tuple[Int64, Int64]:
        """Of each content the least priced share [contents, rows, paths, prices], and a fixed one [contents, paths].

        A transient comes at least once in a row; the first piece pays for it.
        """
        own = paths.times[:, list(self.component.stages[k])].reshape(len(paths.cuts), -1)
        least = np.zeros((len(contents), *price.shape), np.int64)
        fixed = np.zeros((len(contents), len(paths.cuts)), np.int64)
        for number, content in enumerate(contents):
            held = tuple(self.contents[k][content].tolist())
            front = self.fronts.front(self._tables[k], held, False)
            times = self._times(k, front).reshape(len(front.counts), -1)
            key = times - times.min(axis=0)
            varying = np.flatnonzero(key.any(axis=0))
            fixed[number] = own @ times.min(axis=0)
            alive, transient = self._memory(k, front)
            for m in range(len(self.costs.rows)):
                least[number, m] = priced_least(
                    np.ascontiguousarray(key[:, varying]), np.ascontiguousarray(own[:, varying]),
                    alive[:, m] + (transient[:, m] if k == 0 else 0), price[m], scale,
                )  # fmt: skip
        return least, fixed

    def columns(self, paths: Paths, items: Items, budget: Int64, deadline: float | None = None) -> Columns:
        """All columns of some items that fit and keep the budgets [items, paths]; of equal contents the undominated.

        Raises
        ------
        TooManyColumnsError
        TimeoutError
            The deadline, as `time.perf_counter` counts, has passed.
        """
        made = []
        count = 0
        for number in range(len(items.layers)):
            if deadline is not None and time.perf_counter() > deadline:
                raise TimeoutError
            columns = self._of_item(paths, items.content[number], items.layers[number], budget[number])
            if columns is not None:
                made.append(columns)
                count += len(columns.layers)
            if count > MOST_COLUMNS:
                raise TooManyColumnsError(f"rank {self.component.ranks[0]} has more than {MOST_COLUMNS} columns")
        if not made:
            made = [self._none()]
        return Columns(*(np.concatenate([getattr(each, name) for each in made]) for name in Columns.__annotations__))

    def _none(self) -> Columns:
        pieces, stages, ranks = (len(x) for x in (self.contents, self.component.all_stages, self.component.ranks))
        flat, rank = np.zeros((0, pieces), np.int64), np.zeros((0, ranks), np.int64)
        counts = np.zeros((0, pieces, self.fronts.num_strategies), np.int16)
        layers, times = np.zeros((0, self.problem.num_kinds), np.int64), np.zeros((0, stages, 3), np.int64)
        return Columns(flat, counts, layers, times, rank, rank)

    def _of_item(self, paths: Paths, content: Int64, layers: Int64, budget: Int64) -> Columns | None:
        room = self.costs.memory_room(content)
        if room is None:
            return None
        head, reduce = self.costs.heads(content)
        unhidden = reduce - self.costs.least_tail()
        hiding = self.exact_tails and bool(np.any(self.costs.hidden(content, min) < unhidden))
        held = [tuple(self.contents[k][c].tolist()) for k, c in enumerate(content)]
        fronts = [self.fronts.front(self._tables[k], each, hiding) for k, each in enumerate(held)]
        times = [self._times(k, front) for k, front in enumerate(fronts)]
        least = np.concatenate([each.min(axis=0) for each in times])
        always = budget - paths.values(self.component, least[None], head[None], self.costs.least_tail()[None])[0]
        if np.any(always < 0):
            return None
        keys = [(each - each.min(axis=0)).reshape(len(each), -1) for each in times]
        hide = [self._hide(k, front) for k, front in enumerate(fronts)]
        if hiding:
            keys = [np.hstack((key, each.max(axis=0) - each)) for key, each in zip(keys, hide, strict=True)]
        order = [np.lexsort(key.T[::-1]) for key in keys]
        width = max(key.shape[1] for key in keys)
        coefficients = np.zeros((len(keys), len(paths.cuts), width), np.int64)
        for k, stages in enumerate(self.component.stages):
            own = paths.times[:, list(stages)].reshape(len(paths.cuts), -1)
            coefficients[k, :, : own.shape[1]] = own
        keys = [np.pad(each, [(0, 0), (0, width - each.shape[1])]) for each in keys]
        key = np.concatenate([each[o] for each, o in zip(keys, order, strict=True)])
        varying = np.flatnonzero(key.any(axis=0))
        first = np.append(0, np.cumsum([len(each) for each in order]))
        used = [self._memory(k, front) for k, front in enumerate(fronts)]
        out = np.zeros((MOST_POINTS, len(keys)), np.int64)
        count = fitting_points(
            first, np.ascontiguousarray(key[:, varying]), np.ascontiguousarray(coefficients[:, :, varying]),
            np.concatenate([m[o] for (m, _), o in zip(used, order, strict=True)]),
            np.concatenate([t[o] for (_, t), o in zip(used, order, strict=True)]), room, always, out,
        )  # fmt: skip
        if count > MOST_POINTS:
            raise TooManyColumnsError(f"rank {self.component.ranks[0]} has an item with more than {MOST_POINTS} points")
        if not count:
            return None
        point = np.column_stack([o[out[:count, k] - first[k]] for k, o in enumerate(order)])
        chosen = np.concatenate([times[k][point[:, k]] for k in range(len(times))], axis=1)
        hidden = self.costs.hidden(content, max)[None]
        if hiding:
            hidden = self.costs.ends_hide() + sum(each[point[:, k]] for k, each in enumerate(hide))
        tail = np.repeat(np.maximum(self.costs.least_tail(), reduce - hidden), count // len(hidden), axis=0)
        kept = np.sort(pareto_minimal(np.hstack((chosen.reshape(count, -1), tail))))
        point, chosen, tail = point[kept], chosen[kept], tail[kept]
        rows = len(point)
        counts = np.stack([front.counts[point[:, k]] for k, front in enumerate(fronts)], axis=1).astype(np.int16)
        return Columns(
            np.repeat(content[None], rows, axis=0), counts, np.repeat(layers[None], rows, axis=0), chosen,
            np.repeat(head[None], rows, axis=0), tail,
        )  # fmt: skip

    def _hide(self, k: int, front: Front) -> Int64:
        """What a piece's points hide [points, ranks]."""
        ranks, tables = list(self.component.ranks), self._tables[k]
        result = np.zeros((len(front.counts), len(ranks)), np.int64)
        for i in self.component.stages[k]:
            stage = self.problem.virtual_stages[i]
            result[:, ranks.index(stage.rank)] += front.costs[:, tables.index(stage.table), HIDEABLE]
        return result

    def _memory(self, k: int, front: Front) -> tuple[Int64, Int64]:
        """What a piece's points keep alive [points, rows], and their transients."""
        tables = self._tables[k]
        alive = np.zeros((len(front.counts), len(self.costs.rows)), np.int64)
        transient = np.zeros_like(alive)
        for i in self.component.stages[k]:
            stage = self.problem.virtual_stages[i]
            costs = front.costs[:, tables.index(stage.table)]
            for m, (rank, counts) in enumerate(self.costs.rows):
                if rank == stage.rank:
                    whole, waiting = counts[i]
                    alive[:, m] += whole * costs[:, ACTIVATION]
                    if whole + waiting:
                        largest = np.maximum(costs[:, TRANSIENT], stage.ends.transient)
                        transient[:, m] = np.maximum(transient[:, m], largest)
        return alive, transient


def _times(costs: EndCosts | StrategyCosts) -> tuple[int, int, int]:
    return costs.forward, costs.input_grad, costs.weight_grad


def _slopes(kind: KindCosts) -> list[float]:
    """Time for memory along the convex front of a kind's strategies."""
    points = sorted((s.forward + s.input_grad + s.weight_grad, s.activation) for s in kind.strategies)
    slopes: list[float] = []
    work, memory = points[0]
    while True:
        steeper = [((more - work) / (memory - less), less, more) for more, less in points if less < memory]
        if not steeper:
            return slopes
        slope, memory, work = min(steeper)
        slopes.append(max(0.0, slope))
