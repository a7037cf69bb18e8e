"""Engine room: items that say how many layers of every piece use the slow strategies.

Where memory is tight, an outline mixes the strategies on either side of a large step, and is far below what whole
layers cost. Splitting an item by the classes of its layers' strategies (see `strategy_classes`) takes that away: what
is left to mix within a class is worth little. There are many more such items, so only those are made that fit the
memory and, beside the quickest of the other groups, the target.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numba import njit
from numpy.typing import NDArray

from prism_cp.engine.chain import Chain
from prism_cp.engine.choices import ACTIVATION, INPUT_GRAD, TRANSIENT
from prism_cp.engine.items import ItemMaker
from prism_cp.engine.limits import Limits
from prism_cp.engine.strategy_classes import by_largest_step, split_chain
from prism_cp.engine.tables import IMPOSSIBLE, Row, Tables
from prism_cp.stage_problem import StageProblem

Int64 = NDArray[np.int64]

MOST_ITEMS = 300_000  # of all groups together; with more the tables are too slow to be worth it
ROWS_AT_ONCE = 16  # cuts added before items are looked at again


class Refinement:
    """Makes refined tables of one stage problem.

    Attributes
    ----------
    applies : bool
        Whether some kind has strategies that are kept apart.
    maker : ItemMaker
        Of the refined items.
    """

    def __init__(self, problem: StageProblem, chain: Chain) -> None:
        self.problem, self._coarse = problem, chain
        classes = by_largest_step(problem)
        self.applies = len(classes.kind) > problem.num_kinds
        self.chain, self._origin = split_chain(chain, classes)
        self.maker = ItemMaker(problem, self.chain, classes)

    def tables(self, tables: Tables, target: int, rows: Sequence[Row], limits: Limits) -> Tables | None:
        """Refined tables of the items that plans within the target may hold; None where there would be too many.

        Parameters
        ----------
        tables
            Outlined items with their memory; all that plans within the target may hold.
        rows
            Cuts to begin with, beside those that see most of each group's own work, along which items are settled.
        """
        made, left = [], MOST_ITEMS
        for g, items in enumerate(tables.items):
            found = self._split(tables, g, target, left)
            if found is None or limits.reached():
                return None
            source, choice = found
            left -= len(source)
            assert items.memory is not None
            budget = items.memory.budget[source].astype(np.int64)
            made.append(self.maker.bounds(items.group, choice, budget, items.head[source], items.reduce[source]))
        own = [tables.own_row(g) for g in range(len(tables.items))]
        refined = Tables(self.problem, self.chain, made)
        refined.add([tables.rows[x] for x in own])
        refined = refined.within(target)
        for g, items in enumerate(refined.items):
            refined.settle(g, np.arange(len(items.choice)), g)
            refined.resum(g)
        refined = refined.within(target)
        for first in range(0, len(rows), ROWS_AT_ONCE):
            refined.add(rows[first : first + ROWS_AT_ONCE])
            refined = refined.within(target)
        return refined

    def _split(self, tables: Tables, g: int, target: int, most: int) -> tuple[Int64, Int64] | None:
        """Source and choice of the refined items of group g; None when there are more than `most`."""
        items = tables.items[g]
        assert items.memory is not None
        x = tables.own_row(g)
        others = [h for h in range(len(tables.items)) if h != g]
        rest = sum(int(tables.worth[tables.start[h] : tables.start[h + 1], x].min(initial=IMPOSSIBLE)) for h in others)
        rest = min(rest, IMPOSSIBLE)  # several groups may have no item left
        room = int(tables.scales[x]) * target - int(tables.constants[x]) - rest
        slack = room - tables.plain_worth(g, np.arange(len(items.choice)), None, x, x + 1)[:, 0]
        points, memory = items.memory.points, items.memory
        weights = tables.coefficients.of_group(g, x, x + 1)[2][0, memory.rows.stage, 1]
        span, refined, slower, activation, transient = self._compositions(tables, g)
        source, choice = np.zeros(most + 1, np.int64), np.zeros((most + 1, len(items.group.pieces)), np.int64)
        count = _split_items(
            items.choice, span, refined, slower, activation, transient, points.live, points.alive, points.ends,
            memory.budget.astype(np.int64), weights, slack, source, choice,
        )  # fmt: skip
        return None if count > most else (source[:count].copy(), choice[:count].copy())

    def _compositions(self, tables: Tables, g: int) -> tuple[Int64, Int64, Int64, Int64, Int64]:
        """Refined compositions of every piece's compositions that some point has.

        Returns their span [pieces, compositions, 2], and of each of them its number in its piece, the least
        input-gradient time beyond that of the composition, the least activation memory and the least transient.
        """
        items = tables.items[g]
        span = np.zeros((len(items.group.pieces), max(len(piece) for piece in self._coarse.pieces), 2), np.int64)
        found: list[tuple[int, int, int, int]] = []
        for k, piece in enumerate(items.group.pieces):
            origin = self._origin[self.chain.pieces[piece]]
            for composition in np.unique(items.choice[:, k]).tolist():
                rows = []
                for number in np.flatnonzero(origin == self._coarse.pieces[piece][composition]).tolist():
                    values = self.maker.points(piece, int(self.chain.pieces[piece][number])).values
                    if len(values):
                        least = values[:, 0].min(axis=0)
                        rows.append((number, int(least[INPUT_GRAD]), int(least[ACTIVATION]), int(least[TRANSIENT])))
                fastest = min(row[1] for row in rows)
                span[k, composition] = len(found), len(found) + len(rows)
                found += [(number, time - fastest, *rest) for number, time, *rest in rows]
        return span, *np.array(found, np.int64).reshape(-1, 4).T.copy()


@njit(cache=True)
def _split_items(  # type: ignore[no-untyped-def]
    choice, span, refined, slower, activation, transient, live, alive, ends, budget, weights, slack, source, out
):
    """Refined items that fit with the least memory of every piece, and whose time is within the slack.

    Returns how many there are, or one more than there is room for.
    """
    items, pieces = choice.shape
    rows = live.shape[0]
    at, cost = np.zeros(pieces, np.int64), np.zeros(pieces + 1, np.int64)
    used, tall = np.zeros((pieces + 1, rows), np.int64), np.zeros((pieces + 1, rows), np.int64)
    rest = np.zeros((pieces + 1, rows), np.int64)
    count = 0
    for i in range(items):
        for k in range(pieces - 1, -1, -1):
            least = np.int64(1) << 50
            for n in range(span[k, choice[i, k], 0], span[k, choice[i, k], 1]):
                least = min(least, activation[n])
            for row in range(rows):
                rest[k, row] = rest[k + 1, row] + live[row, k] * least
        tall[0] = ends
        depth = 0
        at[0] = span[0, choice[i, 0], 0] - 1
        while depth >= 0:
            at[depth] += 1
            n = at[depth]
            if n >= span[depth, choice[i, depth], 1]:
                depth -= 1
                continue
            cost[depth + 1] = cost[depth] + weights[depth] * slower[n]
            if cost[depth + 1] > slack[i]:
                continue
            fits = True
            for row in range(rows):
                used[depth + 1, row] = used[depth, row] + live[row, depth] * activation[n]
                tall[depth + 1, row] = tall[depth, row]
                if alive[row, depth]:
                    tall[depth + 1, row] = max(tall[depth, row], transient[n])
                fits &= used[depth + 1, row] + rest[depth + 1, row] + tall[depth + 1, row] <= budget[i, row]
            if not fits:
                continue
            if depth < pieces - 1:
                depth += 1
                at[depth] = span[depth, choice[i, depth], 0] - 1
                continue
            if count == len(source) - 1:
                return len(source)
            source[count] = i
            for k in range(pieces):
                out[count, k] = refined[at[k]]
            count += 1
    return count
