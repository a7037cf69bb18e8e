"""Engine room: what every item is worth under every cut, and the least worth of all later groups.

A cut is a path of the event graph, or a non-negative integer combination of paths. It is a sum over groups, so every
item has an exact least value under it (over its points). `after[g, state, cut]` is the least value of groups g.. on the
layers that are left; a partial choice is of no use as soon as its value plus that exceeds a cut's limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from prism_cp.engine.chain import Chain, Group
from prism_cp.engine.item_types import Items
from prism_cp.engine.knapsack import IMPOSSIBLE_COST, MOST_NODES
from prism_cp.engine.outline import add_outline_worth
from prism_cp.engine.pricing import Prices, memory_costs
from prism_cp.engine.table_kernels import (
    after_kernel,
    before_kernel,
    least_kernel,
    points_kernel,
    useful_kernel,
    worth_kernel,
)
from prism_cp.pipeline import PathCut
from prism_cp.stage_problem import StageProblem

Int64 = NDArray[np.int64]

IMPOSSIBLE = 1 << 60
LARGEST_VALUE = 1 << 58  # of any cut of any plan, so that sums stay below `IMPOSSIBLE`
SETTLED_NODES = 40_000  # for an item of a complete choice
HOPELESS = 1 << 54  # worth of an item that fits no plan
FEW_PASSES = 2  # of a path through the pieces of a group, on average: then prices on its memory are not looked for
STEP = 256  # most columns kept free when the tables grow


@dataclass(frozen=True)
class Row:
    """Coefficients of a cut. Its value of a plan is at most `scale` times the pipeline time.

    Attributes
    ----------
    times : int64 array [virtual stages, 3]
        Of forward, input-gradient and weight-gradient times.
    head, tail : int64 arrays [ranks]
    constant : int
        Transfers, in time units.
    scale : int
    prices : tuple of (Prices or None), or empty
        On the memory of every group, where its items are bounded by them.
    """

    times: Int64
    head: Int64
    tail: Int64
    constant: int
    scale: int
    prices: tuple[Prices | None, ...] = ()


def row_of(cut: PathCut, p2p: int) -> Row:
    """A path as a row."""
    times = np.array([cut.forward, cut.input_grad, cut.weight_grad], np.int64).T
    return Row(times, np.array(cut.head, np.int64), np.array(cut.tail, np.int64), cut.p2p * p2p, cut.scale)


class Coefficients:
    """Cuts split by group, in the order the kernels take them.

    Attributes
    ----------
    rows : list of Row
    constants, scales : int64 arrays [rows]
    """

    def __init__(self, problem: StageProblem, groups: Sequence[Group]) -> None:
        self.rows: list[Row] = []
        self.constants, self.scales = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self._groups = groups
        self._rank_of = [np.array(group.rank_of, np.int64) for group in groups]
        self._bucket = [np.array([problem.ranks[r].last_bucket for r in group.ranks], np.int64) for group in groups]
        self._split: list[tuple[Int64, ...]] = [() for _ in groups]

    def copy(self) -> Coefficients:
        """A copy that grows on its own."""
        other = object.__new__(Coefficients)
        other.__dict__.update(self.__dict__, rows=list(self.rows), _split=list(self._split))
        return other

    def add(self, rows: Sequence[Row]) -> None:
        """Append cuts."""
        if not rows:
            return
        self.rows += rows
        times = np.stack([row.times for row in rows])
        heads, tails = np.stack([row.head for row in rows]), np.stack([row.tail for row in rows])
        for g, group in enumerate(self._groups):
            fresh = (times[:, list(group.stages)], heads[:, list(group.ranks)], tails[:, list(group.ranks)])
            old = self._split[g]
            joined = [np.concatenate(pair) for pair in zip(old, fresh, strict=True)] if old else fresh
            self._split[g] = tuple(np.ascontiguousarray(array) for array in joined)
        self.constants = np.append(self.constants, [row.constant for row in rows])
        self.scales = np.append(self.scales, [row.scale for row in rows])

    def of_group(self, g: int, first: int = 0, stop: int | None = None) -> tuple[Int64, ...]:
        """Rank of every stage, last buckets, and times, heads and tails of the cuts first..stop."""
        times, heads, tails = self._split[g]
        return self._rank_of[g], self._bucket[g], times[first:stop], heads[first:stop], tails[first:stop]


def point_worth(coefficients: Coefficients, g: int, items: Items, item: int, first: int = 0) -> Int64:
    """Worth [points, cuts] of every single point of an item of group g under the cuts from `first` on."""
    begin, end = int(items.first[item]), int(items.first[item + 1])
    out = np.empty((end - begin, len(coefficients.rows) - first), np.int64)
    points_kernel(
        items.base[item], items.extra[begin:end], items.credit[begin:end], items.most_hidden[item],
        items.head[item], items.reduce[item], *coefficients.of_group(g, first), out,
    )  # fmt: skip
    return out


class Tables:
    """Values and suffix tables of the items of all groups, which stand one group after another.

    Attributes
    ----------
    start : int64 array [groups + 1]
        First item of every group.
    item_delta : int64 array [items]
        Which of its group's distinct totals of layers an item takes; items are sorted by it.
    delta_start : int64 array [groups + 1]
    delta_item : int64 array [deltas + 1]
        First item of every delta.
    down : int32 array [deltas, states]
        State after the layers of a delta are taken; -1 where too few are left.
    worth : int64 array [items, columns]
    least : int64 array [deltas, columns]
        Least worth over the items that take the same layers.
    after : int64 array [groups + 1, states, columns]
    coefficients : Coefficients
        The cuts, one per used column.
    priced : bool
        Whether prices on all memory rows together bound the items, where these have memory rows.
    """

    def __init__(self, problem: StageProblem, chain: Chain, items: Sequence[Items], priced: bool = False) -> None:
        self.problem, self.chain, self.priced = problem, chain, priced
        self.items = [_by_delta(chain, each) for each in items]
        self.start = np.append(0, np.cumsum([len(each.choice) for each in self.items]))
        numbers, downs, firsts = [], [], []
        for g, each in enumerate(self.items):
            distinct, first, number = np.unique(
                chain.state(_totals(chain, each)), return_index=True, return_inverse=True
            )
            numbers.append(number.reshape(-1))
            downs.append(chain.steps_down(_totals(chain, each)[first]).T.reshape(len(distinct), chain.num_states))
            firsts.append(first + self.start[g])
        self.item_delta = np.concatenate(numbers).astype(np.int64)
        self.delta_start = np.append(0, np.cumsum([len(down) for down in downs]))
        self.delta_item = np.append(np.concatenate(firsts), self.start[-1]).astype(np.int64)
        self.down = np.ascontiguousarray(np.concatenate(downs))
        self.coefficients = Coefficients(problem, chain.groups)
        self._varies: dict[int, Int64] = {}
        self.worth = np.zeros((int(self.start[-1]), 0), np.int64)
        self.least = np.zeros((len(self.down), 0), np.int64)
        self.after = np.zeros((len(self.items) + 1, chain.num_states, 0), np.int64)

    @property
    def rows(self) -> list[Row]:
        """The cuts, one per used column."""
        return self.coefficients.rows

    @property
    def constants(self) -> Int64:
        """Of every cut."""
        return self.coefficients.constants

    @property
    def scales(self) -> Int64:
        """Of every cut."""
        return self.coefficients.scales

    def add(self, rows: Sequence[Row]) -> None:
        """Append cuts."""
        first = len(self.rows)
        self.coefficients.add(rows)
        stop = len(self.rows)
        if stop > self.after.shape[2]:
            columns = stop + min(stop, STEP)
            self.worth, self.least, self.after = (
                np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, columns - array.shape[-1])])
                for array in (self.worth, self.least, self.after)
            )
        for g in range(len(self.items)):
            self.worth[self.start[g] : self.start[g + 1], first:stop] = self._group_worth(g, first, stop)
        self._sum_up(first, stop)

    def _group_worth(
        self, g: int, first: int, stop: int, cuts: Coefficients | None = None, span: slice = slice(None)
    ) -> Int64:
        """Least worth [items, cuts] of a group's items under the cuts first..stop, of these tables or of others."""
        items = self.items[g]
        choice = items.choice[span]
        out = np.zeros((len(choice), stop - first), np.int64)
        if stop > first:
            given = (cuts or self.coefficients).of_group(g, first, stop)
            worth_kernel(
                items.first[:-1][span], items.first[1:][span], items.base[span], items.extra, items.credit,
                items.most_hidden[span], items.head[span], items.reduce[span], *given, self._varying(g), out,
            )  # fmt: skip
            if items.outline is not None and items.full_rows is not None and items.excess is not None:
                full, excess = items.full_rows[span], items.excess[span]
                saving = np.zeros_like(out)
                add_outline_worth(choice, full, excess, *items.outline.arrays, given[2], saving)
                self._raise_by_prices(g, items, span, (cuts or self.coefficients).rows[first:stop], saving)
                out += saving
        return out

    def _raise_by_prices(self, g: int, items: Items, span: slice, rows: Sequence[Row], saving: Int64) -> None:
        """Raise what saving memory costs [items, rows] where rows have prices."""
        if items.memory is None:
            return
        stages = np.array(items.group.stages)[items.memory.rows.stage]
        for x, row in enumerate(rows):
            weights = row.times[stages, 1].astype(np.float64)
            prices = row.prices[g] if row.prices else None
            if (
                self.priced
                and not row.prices
                and weights.sum() > FEW_PASSES * row.scale * len(weights)
                and len(items.choice)
            ):
                prices = items.memory.finder.usual(items.memory, weights)
            if prices is not None and len(prices.bracket):
                memory = items.memory if span == slice(None) else items.memory.take(np.arange(len(items.choice))[span])
                costs = memory_costs(memory, prices, weights)
                saving[:, x] = np.maximum(saving[:, x], np.floor(costs).astype(np.int64))

    def settle(self, g: int, which: NDArray[np.integer], x: int, most_nodes: int = MOST_NODES) -> None:
        """Raise the worth of some items of a group under cut x to what whole strategies cost; `resum` it afterwards.

        Parameters
        ----------
        which : int array
            Items, numbered within the group, whose `memory` is known.
        """
        rows = self.start[g] + which
        worth = self._settled_worth(g, which, self.coefficients, x, most_nodes)
        self.worth[rows, x] = np.maximum(self.worth[rows, x], worth)

    def settled_worth(self, g: int, item: int, row: Row) -> int:
        """Worth of one item of a group, numbered within it, under one more cut and with whole strategies."""
        one = Coefficients(self.problem, self.chain.groups)
        one.add([row])
        return int(self._settled_worth(g, np.array([item]), one, 0, SETTLED_NODES)[0])

    def _settled_worth(self, g: int, which: NDArray[np.integer], cuts: Coefficients, x: int, most_nodes: int) -> Int64:
        items = self.items[g]
        assert items.memory is not None
        weights = cuts.of_group(g, x, x + 1)[2][0, items.memory.rows.stage, 1].copy()
        costs = items.memory.points.least_costs(
            items.choice[which], items.memory.budget[which].astype(np.int64), weights, most_nodes
        )
        plain = self.plain_worth(g, which, cuts, x, x + 1)[:, 0]
        return np.where(costs >= IMPOSSIBLE_COST, HOPELESS, plain + costs)

    def plain_worth(
        self,
        g: int,
        which: NDArray[np.integer],
        cuts: Coefficients | None = None,
        first: int = 0,
        stop: int | None = None,
    ) -> Int64:
        """Worth [items, cuts] of some items of a group by their points alone."""
        items = self.items[g]
        given = (cuts or self.coefficients).of_group(g, first, stop)
        plain = np.zeros((len(which), len(given[2])), np.int64)
        worth_kernel(
            items.first[:-1][which], items.first[1:][which], items.base[which], items.extra, items.credit,
            items.most_hidden[which], items.head[which], items.reduce[which], *given, self._varying(g), plain,
        )  # fmt: skip
        return plain

    def resum(self, x: int) -> None:
        """Sum up a cut anew whose worth has changed."""
        self._sum_up(x, x + 1)

    def _varying(self, g: int) -> Int64:
        """Which of the flattened times [stages, 3] differ between points of an item of group g."""
        if g not in self._varies:
            self._varies[g] = np.flatnonzero(self.items[g].extra.any(axis=0).reshape(-1))
        return self._varies[g]

    def price(self, row: Row, prefix: Sequence[int] = ()) -> Int64:
        """Least worth [items] under one more cut, which is not added; of the first groups only that of `prefix`."""
        result = np.zeros(int(self.start[-1]), np.int64)
        for g in range(len(self.items)):
            begin, end = int(self.start[g]), int(self.start[g + 1])
            span = slice(0, end - begin)
            if g < len(prefix):
                span = slice(prefix[g] - begin, prefix[g] - begin + 1)
            result[begin + span.start : begin + span.stop] = self.price_of_group(row, g, span)
        return result

    def price_of_group(self, row: Row, g: int, span: slice) -> Int64:
        """The same for some items of one group."""
        one = Coefficients(self.problem, self.chain.groups)
        one.add([row])
        return self._group_worth(g, 0, 1, one, span)[:, 0]

    def point_worth(self, g: int, item: int, first: int = 0) -> Int64:
        """Worth [points, cuts] of every single point of a group's item under the cuts from `first` on."""
        return point_worth(self.coefficients, g, self.items[g], item, first)

    def _sum_up(self, first: int, stop: int) -> None:
        """Least worth by delta and suffix tables of the columns first..stop."""
        if stop == first:
            return
        least_kernel(self.delta_item, self.worth, self.least, first, stop)
        self.after[-1, :, first:stop] = IMPOSSIBLE
        self.after[-1, 0, first:stop] = self.constants[first:stop]
        for g in range(len(self.items) - 1, -1, -1):
            low, high = self.delta_start[g], self.delta_start[g + 1]
            after_kernel(self.down[low:high], self.least[low:high], self.after[g + 1], self.after[g], first, stop)

    def useful(self, limits: Int64) -> NDArray[np.bool_]:
        """Items [items] that some choice of the other groups could complete, cut by cut, within the limits."""
        columns = len(self.rows)
        before = np.full_like(self.after, IMPOSSIBLE)
        before[0, -1, :columns] = 0
        for g in range(len(self.items)):
            low, high = self.delta_start[g], self.delta_start[g + 1]
            before_kernel(self.down[low:high], self.least[low:high], before[g], before[g + 1], columns)
        mask = np.zeros(len(self.worth), np.bool_)
        for g in range(len(self.items)):
            low, high = self.start[g], self.start[g + 1]
            useful_kernel(
                self.item_delta[low:high], self.down[self.delta_start[g] : self.delta_start[g + 1]],
                self.worth[low:high], before[g], self.after[g + 1], limits, columns, mask[low:high],
            )  # fmt: skip
        return mask

    def own_row(self, g: int) -> int:
        """The cut that sees most of the input gradients of a group."""
        stages = list(self.items[g].group.stages)
        return max(range(len(self.rows)), key=lambda x: self.rows[x].times[stages, 1].sum() / self.scales[x])

    def within(self, target: int) -> Tables:
        """Tables of the items that some plan within a target time may hold, as far as a few passes tell."""
        tables = self
        while True:
            mask = tables.useful(tables.scales * target)
            if mask.all():
                return tables
            before = len(mask)
            tables = tables.keep(mask)
            if mask.sum() > 0.9 * before or not mask.any():
                return tables

    def refute(self, target: int) -> bool:
        """Whether some group has no item left once all that no cut allows within the target are gone."""
        return self.narrowed(target) is None

    def narrowed(self, target: int) -> Tables | None:
        """Tables of the items left once all that no cut allows within the target are gone; None if a group has none."""
        tables = self
        while True:
            mask = tables.useful(tables.scales * target)
            if not all(mask[start:stop].any() for start, stop in pairwise(tables.start)):
                return None
            if mask.all():
                return tables
            tables = tables.keep(mask)

    def keep(self, mask: NDArray[np.bool_]) -> Tables:
        """Tables of some of the items only, with the same cuts."""
        parts = [mask[self.start[g] : self.start[g + 1]] for g in range(len(self.items))]
        smaller = Tables(
            self.problem, self.chain, [each.select(part) for each, part in zip(self.items, parts, strict=True)],
            self.priced,
        )  # fmt: skip
        smaller.coefficients = self.coefficients.copy()
        columns = self.after.shape[2]
        smaller.worth = np.ascontiguousarray(self.worth[mask])
        smaller.least = np.zeros((len(smaller.down), columns), np.int64)
        smaller.after = np.zeros((*self.after.shape[:2], columns), np.int64)
        smaller._sum_up(0, len(smaller.rows))
        return smaller


def _totals(chain: Chain, items: Items) -> Int64:
    total = np.zeros((len(items.choice), chain.digits.shape[1]), np.int64)
    for k, piece in enumerate(items.group.pieces):
        total += chain.digits[chain.pieces[piece][items.choice[:, k]]]
    return total


def _by_delta(chain: Chain, items: Items) -> Items:
    """The items sorted by the layers they take."""
    order = np.argsort(chain.state(_totals(chain, items)), kind="stable")
    return items.take(order)
