"""Engine room: what an item's memory costs at least, with prices on all live vectors of its rank together.

An item says how many layers of every kind each piece of a rank holds. Under weights on input-gradient times the least
that its strategies cost is a knapsack with one row per live vector. With a non-negative price on every row each layer
takes its cheapest strategy by itself, whatever the item, so that thousands of items are bounded at once; the best
prices for one item are the duals of a small linear program. The largest transient of a rank lies in some bracket:
every bracket has its own prices, and the least of them counts. Only pieces that are alive in every row make a bracket.

Floating point; what is returned has a margin far above its errors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import highspy
import numpy as np
from numpy.typing import NDArray

from prism_cp.engine.knapsack import ItemPoints
from prism_cp.relaxation import lower_hull
from prism_cp.silent_highs import SilentHighs

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

MARGIN = 1e-9  # share of the sum of all terms' sizes that rounding errors may make up
BEYOND = 1e15  # price of what a bracket does not allow
SAMPLE = 8  # items of a group that have their best prices found under a path
EXCESS = 100.0  # price of a layer's activations on all live micro-batches beyond the room, in the dearest change


@dataclass(frozen=True)
class MemoryRows:
    """Memory of one rank, each of whose pieces has one stage.

    Attributes
    ----------
    live : float64 array [rows, pieces]
        Live micro-batches.
    ends : float64 array [rows]
        Largest transient of the live stages' ends.
    always : bool array [pieces]
        Alive in every row.
    activation, slower : float64 arrays [kinds, strategies]
        Activation of a layer; its input-gradient time beyond the fastest one. Missing strategies repeat the first one.
    bracket : int64 array [kinds, strategies]
        Bracket of the strategy's transient.
    lows : float64 array [brackets]
        Least transient of every bracket.
    stage : int64 array [pieces]
        Position of a piece's stage in the group.
    """

    live: Float64
    ends: Float64
    always: NDArray[np.bool_]
    activation: Float64
    slower: Float64
    bracket: Int64
    lows: Float64
    stage: Int64

    def allowed(self, bracket: int) -> NDArray[np.bool_]:
        """Strategies [pieces, kinds, strategies] that the largest transient being in a bracket leaves."""
        below = self.bracket <= bracket
        allowed: NDArray[np.bool_] = below[None] | ~self.always[:, None, None]
        return allowed


@dataclass(frozen=True)
class ItemMemory:
    """Layers and room of the items of a group.

    Attributes
    ----------
    rows : MemoryRows
    counts : float64 array [items, pieces, kinds]
        Layers.
    budget : float64 array [items, rows]
        Memory left for activations and the largest transient.
    points : ItemPoints
        What whole strategies of a piece cost.
    finder : PriceFinder
    """

    rows: MemoryRows
    counts: Float64
    budget: Float64
    points: ItemPoints
    finder: PriceFinder

    def take(self, which: NDArray[np.integer] | NDArray[np.bool_]) -> ItemMemory:
        """Some of the items."""
        return replace(self, counts=self.counts[which], budget=self.budget[which])


@dataclass(frozen=True)
class Prices:
    """Price vectors of one group; each belongs to a bracket.

    Attributes
    ----------
    bracket : int64 array [vectors]
    memory : float64 array [vectors, rows]
        Time per unit of memory, not negative.
    """

    bracket: Int64
    memory: Float64


def memory_costs(memory: ItemMemory, prices: Prices, weights: Float64) -> Float64:
    """Least weighted time [items] beyond the fastest strategies that the memory rows force.

    Parameters
    ----------
    weights : float64 array [pieces]
        Of the input-gradient times, not negative.
    """
    costs: Float64 = memory_costs_by_bracket(memory, prices, weights).min(axis=1)
    return costs


def memory_costs_by_bracket(memory: ItemMemory, prices: Prices, weights: Float64) -> Float64:
    """The same for every bracket [items, brackets]."""
    rows, items, brackets = memory.rows, len(memory.counts), len(memory.rows.lows)
    found = np.zeros((items, brackets))
    if not len(prices.bracket) or not items:
        return found
    flat = memory.counts.reshape(items, -1)
    per_piece = prices.memory @ rows.live  # [vectors, pieces]
    layer = (
        weights[None, :, None, None] * rows.slower[None, None]
        + per_piece[:, :, None, None] * rows.activation[None, None]
    )
    allowed = np.stack([rows.allowed(int(bracket)) for bracket in prices.bracket])
    cost = np.where(allowed, layer, BEYOND).min(axis=3).reshape(len(prices.bracket), -1)
    transient = np.maximum(rows.ends[None], rows.lows[prices.bracket][:, None])
    fixed = (prices.memory * transient).sum(axis=1)
    room = memory.budget @ prices.memory.T
    work = flat @ cost.T
    value = work - room + fixed - MARGIN * (work + np.abs(room) + fixed)
    for bracket in range(brackets):
        own = prices.bracket == bracket
        if own.any():
            found[:, bracket] = np.maximum(0.0, value[:, own].max(axis=1))
    found[memory.counts[:, rows.always].sum(axis=(1, 2)) == 0] = 0.0  # no layer makes a bracket there
    return found


class MemoryProgram:
    """The linear program of one group and bracket: strategies may be split.

    Memory beyond the room is allowed at a high price, so that items which do not fit have prices that say so.
    """

    def __init__(self, rows: MemoryRows, bracket: int) -> None:
        self.rows, self.bracket = rows, bracket
        allowed = rows.allowed(bracket)
        pieces, kinds = len(rows.stage), len(rows.activation)
        columns = []
        for piece in range(pieces):
            for kind in range(kinds):
                which = np.flatnonzero(allowed[piece, kind])
                if len(which):
                    kept = which[lower_hull(rows.slower[kind, which], rows.activation[kind, which])]
                    columns += [(piece, kind, int(q)) for q in kept]
        self.column = np.array(columns, np.int64).reshape(-1, 3)
        self.impossible = np.array([[not allowed[p, k].any() for k in range(kinds)] for p in range(pieces)])
        self.slower = rows.slower[self.column[:, 1], self.column[:, 2]]
        self.byte = float(max(1.0, rows.activation.max() * max(1.0, rows.live.max())))
        self._highs = SilentHighs()
        count, infinity = len(self.column), highspy.kHighsInf
        self._highs.addVars(count + 1, np.zeros(count + 1), np.full(count + 1, infinity))  # the last one: excess
        self._num_layers = pieces * kinds
        of = self.column[:, 0] * kinds + self.column[:, 1]
        for row in range(self._num_layers):
            members = np.flatnonzero(of == row).astype(np.int32)
            self._highs.addRow(0.0, 0.0, len(members), members, np.ones(len(members)))
        held = rows.live[:, self.column[:, 0]] * rows.activation[self.column[:, 1], self.column[:, 2]] / self.byte
        for row in held:
            members = np.flatnonzero(row).astype(np.int32)
            self._highs.addRow(
                -infinity, 0.0, len(members) + 1, np.append(members, np.int32(count)), np.append(row[members], -1.0)
            )

    def solve(self, counts: Float64, budget: Float64, weights: Float64) -> tuple[Float64, Float64] | None:
        """Prices [rows] and time [pieces] beyond the fastest strategies of one item; None where a kind has none.

        Parameters
        ----------
        counts : float64 array [pieces, kinds]
        budget : float64 array [rows]
        weights : float64 array [pieces]
        """
        rows = self.rows
        if np.any(counts[self.impossible] > 0):
            return None
        cost = weights[self.column[:, 0]] * self.slower
        unit = float(max(1e-9, cost.max(initial=0.0)))
        cost = np.append(cost, EXCESS * unit)
        room = (budget - np.maximum(rows.ends, rows.lows[self.bracket])) / self.byte
        highs, number, infinity = self._highs, len(self.column), highspy.kHighsInf
        lower = np.append(counts.reshape(-1), np.full(len(room), -infinity))
        highs.changeColsCost(number + 1, np.arange(number + 1, dtype=np.int32), cost / unit)
        highs.changeRowsBounds(
            len(lower), np.arange(len(lower), dtype=np.int32), lower, np.append(counts.reshape(-1), room)
        )
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = highs.getSolution()
        prices = np.maximum(0.0, -np.array(solution.row_dual)[self._num_layers :]) * unit / self.byte
        values = np.array(solution.col_value)[:number]
        slower = np.bincount(self.column[:, 0], values * self.slower, minlength=len(rows.stage)).astype(np.float64)
        return prices, slower


class PriceFinder:
    """Finds prices for items of one group, and remembers those of weights it has met."""

    def __init__(self, rows: MemoryRows) -> None:
        self.rows = rows
        self._programs: dict[int, MemoryProgram] = {}
        self._kept: dict[bytes, Prices] = {}

    def program(self, bracket: int) -> MemoryProgram:
        """The linear program of a bracket."""
        if bracket not in self._programs:
            self._programs[bracket] = MemoryProgram(self.rows, bracket)
        return self._programs[bracket]

    def settle(self, one: ItemMemory, prices: Prices, weights: Float64) -> tuple[list[tuple[int, Float64]], float]:
        """The best prices of one item beside those given, as (bracket, vector), and the cost that they prove."""
        reached = memory_costs_by_bracket(one, prices, weights)[0]
        found: list[tuple[int, Float64]] = []
        solved: set[int] = set()
        while (bracket := int(np.argmin(reached))) not in solved:
            solved.add(bracket)
            solution = self.program(bracket).solve(one.counts[0], one.budget[0], weights)
            if solution is None:
                reached[bracket] = np.inf
                continue
            found.append((bracket, solution[0]))
            own = Prices(np.array([bracket], np.int64), solution[0][None])
            reached[bracket] = max(reached[bracket], memory_costs_by_bracket(one, own, weights)[0, bracket])
        return found, float(reached.min())

    def usual(self, memory: ItemMemory, weights: Float64) -> Prices:
        """Prices that are the best ones for some of the items under the weights."""
        key = weights.tobytes()
        if key not in self._kept:
            prices = Prices(np.zeros(0, np.int64), np.zeros((0, len(self.rows.live))))
            for item in np.unique(np.linspace(0, len(memory.counts) - 1, SAMPLE).astype(np.int64)).tolist():
                for bracket, vector in self.settle(memory.take(np.array([item])), prices, weights)[0]:
                    prices = Prices(np.append(prices.bracket, bracket), np.vstack([prices.memory, vector]))
            self._kept[key] = prices
        return self._kept[key]
