"""Engine room: the best weighted sum of paths for a partial choice of items.

Single paths refute a partial choice late, because each of them may complete it in its own way. A weighted sum of paths
must be exceeded by one completion. The weights with the greatest least completion are found by cutting planes: the
completion that is cheapest under the current weights, a shortest path through groups and layers left, becomes a row of
a small linear program over the weights. Its answer only proposes weights; rounded to integers they make a cut that
proves what its exact integer tables say, of this partial choice and of many others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import highspy
import numpy as np
from numba import njit
from numpy.typing import NDArray

from prism_cp.engine.aggregate import LARGEST_WEIGHT, LEAST_WEIGHT, weighted_sum
from prism_cp.engine.limits import Limits
from prism_cp.engine.outline import outline_point
from prism_cp.engine.price_pool import PricePool
from prism_cp.engine.tables import LARGEST_VALUE, Row, Tables
from prism_cp.silent_highs import SilentHighs

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

PATH_SCALE = 64  # of paths at most; sums of them would leave too few digits for the weights
MOST_ROUNDS = 60  # programs per partial choice
STRONG = 0.01  # relative excess over the target that is strong enough
STALLED = 1e-9  # change of the program's answer that is none
CLOSE = 2e-6  # relative gap at which the weights count as the best ones
NEW_WEIGHT = 0.6  # share of the program's answer in the weights tried next, the rest are the best weights so far
MOST_SETTLED = 40  # items per group that get prices of their own under one weighted sum
UNREACHABLE = 1 << 61


@dataclass(frozen=True)
class Weighing:
    """What was found for a partial choice.

    Attributes
    ----------
    refuted : bool
        No completion stays within the target: `row` says so in integers.
    row : Row or None
        The sum under the best weights; None where the weights would be too coarse.
    weights : float64 array [cuts]
        Sum 1, of paths divided by their scales.
    mixture : float64 array [virtual stages, 3] or None
        Times of a mixture of completions that no weights tell from a plan within the target.
    """

    refuted: bool
    row: Row | None
    weights: Float64
    mixture: Float64 | None


class Weigher:
    """Weighs the paths of some tables, which may grow."""

    def __init__(
        self, tables: Tables, longest: int, limits: Limits | None = None, pool: PricePool | None = None
    ) -> None:
        self.tables, self.limits, self._longest = tables, limits, longest
        self._seen = 0
        self._plain: list[int] = []  # cuts that are paths
        stages, ranks = len(tables.problem.virtual_stages), len(tables.problem.ranks)
        self._times, self._heads, self._tails = np.zeros((0, stages * 3)), np.zeros((0, ranks)), np.zeros((0, ranks))
        self.pool = PricePool([items.memory if tables.priced else None for items in tables.items], pool)

    def weigh(
        self,
        prefix: Sequence[int],
        target: int,
        first: Float64 | None = None,
        to_the_end: bool = False,
        strongest: bool = False,
    ) -> Weighing | None:
        """Weights under which every completion of the first groups' items takes as long as possible.

        Ends early once they refute the target, once no weights can, or at a limit. None: nothing completes the prefix.

        Parameters
        ----------
        prefix
            Items of the first groups, numbered over all groups.
        first
            Weights to begin with, of the first cuts.
        to_the_end
            Look for the best weights even where the target cannot be refuted.
        strongest
            Go on after the target is refuted, until it is by far: such sums refute more of other choices.
        """
        tables = self.tables
        self._extend()
        plain = np.array(self._plain)
        unit = tables.scales[plain] * float(target)
        state = tables.chain.num_states - 1
        for g, item in enumerate(prefix):
            state = int(tables.down[tables.delta_start[g] + tables.item_delta[item], state])
        weights = np.zeros(len(plain))
        if first is None or not first.any():
            worth = tables.worth[list(prefix)][:, plain].sum(axis=0) + tables.after[len(prefix), state, plain]
            weights[int(np.argmax(worth / unit))] = 1.0
        else:
            weights[: len(first)] = first / first.sum()
        picked = np.zeros(len(tables.items), np.int64)
        picked[: len(prefix)] = prefix
        found: list[Float64] = []
        best, best_weights, best_row = -np.inf, weights, None
        highs = SilentHighs()
        infinity, none = highspy.kHighsInf, (np.zeros(0, np.int32), np.zeros(0))
        every = np.arange(len(plain) + 1, dtype=np.int32)
        for _ in plain:
            highs.addCol(0.0, 0.0, infinity, 0, *none)
        highs.addCol(-1.0, -infinity, 10.0, 0, *none)
        highs.addRow(1.0, 1.0, len(plain), every[:-1], np.ones(len(plain)))
        answer, stalled = np.zeros(len(plain) + 1), 0
        for _ in range(MOST_ROUNDS):
            row = self.sum_of(weights)
            if row is None or (self.limits is not None and self.limits.reached()):
                break
            row, price, value = self._cheapest(row, prefix, state, picked)
            if value >= UNREACHABLE:
                return None
            value += int(price[list(prefix)].sum()) + row.constant
            if value > best * row.scale * target or best_row is None:
                best, best_weights, best_row = value / (row.scale * target), weights, row
            if value > row.scale * target and (not strongest or value > row.scale * target * (1 + STRONG)):
                return Weighing(True, row, weights, None)
            times, level = self._completion(picked, row, plain, unit)
            found.append(times)
            highs.addRow(-infinity, 0.0, len(every), every, np.append(-level, 1.0))
            highs.run()
            if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
                break
            before, answer = answer[-1], np.array(highs.getSolution().col_value)
            stalled = stalled + 1 if abs(before - answer[-1]) < STALLED else 0
            if (answer[-1] <= 1.0 and not to_the_end) or answer[-1] < best + CLOSE or stalled > 2:
                if best > 1.0:
                    break
                shares = np.maximum(-np.array(highs.getSolution().row_dual[1:]), 0.0)
                mixture = np.tensordot(shares / max(float(shares.sum()), 1e-9), np.stack(found), 1)
                return Weighing(False, best_row, best_weights, mixture.reshape(-1, 3))
            proposed = np.maximum(answer[:-1], 0.0)
            weights = NEW_WEIGHT * proposed / proposed.sum() + (1 - NEW_WEIGHT) * best_weights
            weights[weights < 1e-6] = 0.0
        return Weighing(best > 1.0, best_row, best_weights, None)

    def _cheapest(self, row: Row, prefix: Sequence[int], state: int, picked: Int64) -> tuple[Row, Int64, int]:
        """The row with prices on memory, prices of all items under it, and the value of its cheapest completion.

        `picked` receives the items. Those bounded by prices on memory get the best prices of their own, until the
        completion that is cheapest then consists of such items.
        """
        tables = self.tables
        row = replace(row, prices=self.pool.prices(row.scale))
        price = tables.price(row, prefix)
        settled: set[int] = set()
        while True:
            value = cheapest_completion(
                len(prefix), state, price, tables.start, tables.delta_start, tables.delta_item, tables.down, picked
            )
            if value >= UNREACHABLE:
                return row, price, int(value)
            fresh = [g for g in range(len(picked)) if int(picked[g]) not in settled and self.pool.applies(g)]
            if not fresh or len(settled) > MOST_SETTLED * len(picked) or (self.limits and self.limits.reached()):
                return row, price, int(value)
            settled.update(int(number) for number in picked)
            better = [g for g in fresh if self.pool.settle(g, self._local(g, picked), self._weights(g, row), row.scale)]
            if not better:
                return row, price, int(value)
            row = replace(row, prices=self.pool.prices(row.scale))
            for g in better:
                begin, end = int(tables.start[g]), int(tables.start[g + 1])
                span = self._local(g, picked)
                if g < len(prefix):
                    price[begin + span] = tables.price_of_group(row, g, slice(span, span + 1))[0]
                else:
                    price[begin:end] = tables.price_of_group(row, g, slice(0, end - begin))

    def _local(self, g: int, picked: Int64) -> int:
        """Number of the picked item within its group."""
        return int(picked[g] - self.tables.start[g])

    def _weights(self, g: int, row: Row) -> Float64:
        """Weights [pieces] of the input-gradient times of a group whose pieces have one stage each."""
        items = self.tables.items[g]
        assert items.memory is not None
        weights: Float64 = row.times[np.array(items.group.stages)[items.memory.rows.stage], 1].astype(np.float64)
        return weights

    def _extend(self) -> None:
        """Take in what the tables have gained."""
        fresh = [x for x in range(self._seen, len(self.tables.rows)) if self.tables.scales[x] <= PATH_SCALE]
        self._seen = len(self.tables.rows)
        if not fresh:
            return
        rows = [self.tables.rows[x] for x in fresh]
        self._plain += fresh
        self._times = np.vstack([self._times, [row.times.reshape(-1) for row in rows]])
        self._heads = np.vstack([self._heads, [row.head for row in rows]])
        self._tails = np.vstack([self._tails, [row.tail for row in rows]])

    def of_paths(self, weights: Float64) -> Float64:
        """Of weights [cuts] those of paths, as `weigh` takes and gives them."""
        self._extend()
        return weights[self._plain]

    def sum_of(self, weights: Float64) -> Row | None:
        """The sum of the paths under weights as `weigh` gives them; None where integers would be too coarse."""
        scales = self.tables.scales[self._plain]
        total = min(LARGEST_WEIGHT, LARGEST_VALUE // max(1, self._longest))
        if total < LEAST_WEIGHT:
            return None
        used = np.flatnonzero(weights > 0)
        whole = np.rint(weights[used] / scales[used] * total).astype(np.int64)
        return weighted_sum([self.tables.rows[self._plain[x]] for x in used], whole) if whole.any() else None

    def _completion(self, picked: Int64, row: Row, plain: Int64, unit: Float64) -> tuple[Float64, Float64]:
        """Times [virtual stages * 3] of the cheapest points of some items, and what every path says of them."""
        problem = self.tables.problem
        times = np.zeros((len(problem.virtual_stages), 3))
        for g, number in enumerate(picked.tolist()):
            items, item = self.tables.items[g], number - int(self.tables.start[g])
            stages = list(items.group.stages)
            begin, end = int(items.first[item]), int(items.first[item + 1])
            times[stages] = items.base[item]
            if items.memory is not None and self.pool.applies(g):
                slower = self.pool.slower(g, item, self._weights(g, row), row.scale)
                times[np.array(stages)[items.memory.rows.stage], 1] += slower
            elif items.outline is not None and items.full_rows is not None and items.excess is not None:
                extra = np.zeros(items.choice.shape[1])
                full, excess = items.full_rows[item], items.excess[item]
                outline_point(items.choice[item], full, excess, *items.outline.arrays, row.times[stages], extra)
                times[np.array(stages)[items.outline.stage], 1] += extra
            elif end - begin > 1:
                more = items.extra[begin:end]
                times[stages] += more[int(np.argmin((more * row.times[stages]).sum(axis=(1, 2))))]
        head, tail = np.zeros(len(problem.ranks)), np.zeros(len(problem.ranks))
        for g, number in enumerate(picked.tolist()):
            items, item = self.tables.items[g], number - int(self.tables.start[g])
            for r, rank in enumerate(items.group.ranks):
                head[rank] = items.head[item, r]
                hidden = sum(int(items.most_hidden[item, s]) for s, o in enumerate(items.group.rank_of) if o == r)
                tail[rank] = max(problem.ranks[rank].last_bucket, int(items.reduce[item, r]) - hidden)
        flat = times.reshape(-1)
        level = self._times @ flat + self._heads @ head + self._tails @ tail + self.tables.constants[plain]
        return flat, level / unit


@njit(cache=True)
def cheapest_completion(  # type: ignore[no-untyped-def]
    depth, state, price, start, delta_start, delta_item, down, picked
):
    """Least price of items for the groups from `depth` on, `state` being left; the items go to `picked`."""
    unreachable = np.int64(1) << 61
    groups = len(start) - 1
    states = down.shape[1]
    after = np.full((groups + 1, states), unreachable)
    after[groups, 0] = 0
    arg = np.zeros((groups, states), np.int64)
    cheapest = np.zeros(len(delta_item), np.int64)
    for g in range(groups - 1, depth - 1, -1):
        for delta in range(delta_start[g], delta_start[g + 1]):
            at = delta_item[delta]
            for i in range(delta_item[delta], delta_item[delta + 1]):
                if price[i] < price[at]:
                    at = i
            cheapest[delta] = at
            for s in range(states):
                rest = down[delta, s]
                if rest >= 0 and after[g + 1, rest] < unreachable and after[g + 1, rest] + price[at] < after[g, s]:
                    after[g, s] = after[g + 1, rest] + price[at]
                    arg[g, s] = delta
    if after[depth, state] >= unreachable:
        return unreachable
    s = state
    for g in range(depth, groups):
        delta = arg[g, s]
        picked[g] = cheapest[delta]
        s = down[delta, s]
    return after[depth, state]
