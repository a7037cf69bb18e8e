"""Engine room: is there a plan within a target time? Walks the tree of items and learns critical paths on the way.

"No" is said only when the walk is exhausted in exact integers. A complete choice of items whose points cannot be told
apart from a plan by the cuts (merged points, or reduction hidden by a dominated multiset) is handed to the stage
model with its boundaries fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from prism_cp.engine.complete import Completer, Offer
from prism_cp.engine.items import ItemMaker
from prism_cp.engine.limits import Limits
from prism_cp.engine.point_sets import StrategyPaths
from prism_cp.engine.tables import Row, Tables, row_of
from prism_cp.engine.walk import EXHAUSTED, LEAF, walk
from prism_cp.pipeline import PathCut

Int64 = NDArray[np.int64]

NODES_PER_SLICE = 200_000


class Decision:
    """One walk over the items of some tables for a target that only ever falls.

    Attributes
    ----------
    learnt : list of PathCut
        Critical paths that were added to the tables.
    """

    def __init__(
        self, maker: ItemMaker, tables: Tables, known: dict[PathCut, None], paths: StrategyPaths, offer: Offer
    ) -> None:
        self.tables, self.known = tables, known
        self.learnt: list[PathCut] = []
        self.completer = Completer(maker, tables, known, paths, offer, self.learn, self.add_rows)
        chain, groups = tables.chain, len(tables.items)
        columns = tables.after.shape[2]
        self._prefix = np.zeros((groups + 1, columns), np.int64)
        self._state = np.zeros(groups + 1, np.int64)
        self._state[0] = chain.num_states - 1
        words = chain.starts[0].shape[1]
        self._run_mask = np.zeros((groups + 1, chain.num_runs, words), np.uint64)
        self._run_length = np.zeros((groups + 1, chain.num_runs), np.int64)
        self._order = np.tile(np.arange(columns, dtype=np.int64), (2, groups, 1))
        self._pointer = tables.start[:-1].astype(np.int64).copy()
        self._chosen = np.zeros(groups, np.int64)
        self._depth = 0
        self._masks = np.concatenate(chain.starts)
        first = np.append(0, np.cumsum([len(piece) for piece in chain.pieces]))
        self._sizes = np.concatenate([chain.sizes[piece] for piece in chain.pieces])
        self._mask_rows = np.concatenate(
            [items.choice + first[list(items.group.pieces)] for items in tables.items]
        ).astype(np.int64)

    def run(self, target: int, limits: Limits, best: Callable[[], int | None], first_only: bool = False) -> bool | None:
        """False: no plan within the target is left. True: one was offered (`first_only`). None: stopped, or undecided.

        Parameters
        ----------
        best
            The best pipeline time known; the target falls below it as the walk goes on.
        """
        tables, chain = self.tables, self.tables.chain
        if np.any(np.diff(tables.start) == 0):
            return False
        while True:
            known = best()
            if known is not None and known <= target:
                if first_only:
                    return True
                target = known - 1
            limit = tables.scales * target
            self._back_up(limit)
            state, self._depth, nodes = walk(
                limit, len(tables.rows), tables.worth, tables.start, tables.item_delta, tables.delta_start,
                tables.delta_item, tables.least, tables.down, tables.after, self._mask_rows, self._masks, self._sizes,
                chain.run_steps, chain.step_start, self._prefix, self._state, self._run_mask, self._run_length,
                self._order, self._pointer, self._chosen, self._depth, NODES_PER_SLICE,
            )  # fmt: skip
            limits.nodes += int(nodes)
            if state == EXHAUSTED:
                return None if self.completer.undecided else False
            if state == LEAF:
                self.completer.complete(self._chosen.tolist(), target, limits)
                self._depth = len(tables.items) - 1
            if limits.reached():
                return None

    # -- cuts ----------------------------------------------------------------------------------------------------------

    def learn(self, cut: PathCut) -> bool:
        """Add a path to the tables; whether it was new."""
        if cut in self.known:
            return False
        self.known[cut] = None
        self.learnt.append(cut)
        self.add_rows([row_of(cut, self.tables.problem.p2p)])
        return True

    def add_rows(self, rows: Sequence[Row]) -> None:
        """Append cuts to the tables and to the state of the walk."""
        tables = self.tables
        first = len(tables.rows)
        tables.add(rows)
        stop, columns = len(tables.rows), tables.after.shape[2]
        if columns > self._prefix.shape[1]:
            more = columns - self._prefix.shape[1]
            self._prefix = np.pad(self._prefix, [(0, 0), (0, more)])
            tail = np.arange(columns - more, columns, dtype=np.int64)
            self._order = np.concatenate([self._order, np.tile(tail, (*self._order.shape[:2], 1))], axis=2)
        fresh = np.arange(first, stop)
        for kind in range(2):
            for g in range(self._order.shape[1]):
                order = self._order[kind, g]
                self._order[kind, g] = np.concatenate([fresh, order[(order < first) | (order >= stop)]])
        for g in range(min(self._depth, len(tables.items))):
            self._prefix[g + 1, first:stop] = self._prefix[g, first:stop] + tables.worth[self._chosen[g], first:stop]

    def _back_up(self, limit: Int64) -> None:
        """Leave every choice that some cut has come to forbid."""
        tables, columns = self.tables, len(self.tables.rows)
        for g in range(self._depth + 1):
            after = tables.after[g, self._state[g], :columns]
            if np.any(self._prefix[g, :columns] + after > limit):
                self._depth = g - 1
                return
