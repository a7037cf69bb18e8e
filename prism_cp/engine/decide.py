"""Engine room: is there a plan within a target time? Walks the tree of items and learns critical paths on the way.

"No" is said only when the walk is exhausted in exact integers. A complete choice of items whose points cannot be told
apart from a plan by the cuts (merged points, or reduction hidden by a dominated multiset) is handed to the stage
model with its boundaries fixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from prism_cp.cp.objective import longest_possible
from prism_cp.engine.complete import HAND_ON_LIMIT, Completer, Offer
from prism_cp.engine.complete_program import CompleteProgram
from prism_cp.engine.items import ItemMaker
from prism_cp.engine.leaf import path_of_mixture
from prism_cp.engine.limits import Limits
from prism_cp.engine.mixture import PATH_SCALE, Weigher, Weighing
from prism_cp.engine.point_sets import StrategyPaths
from prism_cp.engine.price_pool import PricePool
from prism_cp.engine.tables import Row, Tables, row_of
from prism_cp.engine.walk import EXHAUSTED, LEAF, NODE_LIMIT, walk
from prism_cp.pipeline import PathCut

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

NODES_PER_SLICE = 2_000_000  # after that many the partial choice that is being looked into is weighed
FEW_ITEMS = 4_000  # all of them are settled along every weighted sum
SETTLED_CUTS, MOST_SHARE = 40, 0.04  # cuts a complete choice is settled along, and how far from the target they end
SEPARATIONS = 4  # paths learnt from mixtures per length of a partial choice


class Decision:
    """One walk over the items of some tables for a target that only ever falls.

    Parameters
    ----------
    known
        Paths that the tables hold.

    Attributes
    ----------
    known : dict of PathCut
        The same, and those learnt.
    learnt : list of PathCut
        Critical paths that were added to the tables.
    bound : int
        Proven for all plans, when the walk was exhausted but some choices are undecided.
    sums : list of Row
        Weighted sums that refuted partial choices; they were added to the tables too.
    """

    def __init__(
        self,
        maker: ItemMaker,
        tables: Tables,
        known: Iterable[PathCut],
        paths: StrategyPaths,
        offer: Offer,
        pool: PricePool | None = None,
    ) -> None:
        self.tables, self.known = tables, dict.fromkeys(known)
        self.learnt: list[PathCut] = []
        self.sums: list[Row] = []
        self.bound = 0
        self._weights: Float64 | None = None
        self._priced = tables.priced
        self._can_settle = all(items.memory is not None for items in tables.items)
        self._program: CompleteProgram | None = None
        self._settled: set[tuple[int, int]] = set()  # (item, cut)
        self._refuted = 1  # length of the partial choice that was refuted last
        self._weigher = Weigher(tables, longest_possible(tables.problem), pool=pool)
        self._outlined = any(items.outline is not None for items in tables.items)
        self.completer = Completer(maker, tables, self.known, paths, offer, self.learn, self.add_rows)
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

    def run(
        self,
        target: int,
        limits: Limits,
        best: Callable[[], int | None],
        first_only: bool = False,
        most_nodes: int | None = None,
        refined_hand_on: float = HAND_ON_LIMIT,
    ) -> bool | None:
        """False: no plan within the target is left. True: one was offered (`first_only`). None: stopped, or undecided.

        Parameters
        ----------
        best
            The best pipeline time known; the target falls below it as the walk goes on.
        most_nodes
            Stop after that many, rather than to weigh partial choices.
        refined_hand_on
            Deterministic time of the stage model per complete choice of outlined items.
        """
        tables, chain = self.tables, self.tables.chain
        if np.any(np.diff(tables.start) == 0):
            return False
        self._weigher.limits = limits
        while True:
            known = best()
            if known is not None and known <= target:
                if first_only:
                    return True
                target = known - 1
            limit, slice_nodes = tables.scales * target, NODES_PER_SLICE if most_nodes is None else most_nodes
            self._back_up(limit)
            state, self._depth, nodes = walk(
                limit, len(tables.rows), tables.worth, tables.start, tables.item_delta, tables.delta_start,
                tables.delta_item, tables.least, tables.down, tables.after, self._mask_rows, self._masks, self._sizes,
                chain.run_steps, chain.step_start, self._prefix, self._state, self._run_mask, self._run_length,
                self._order, self._pointer, self._chosen, self._depth, slice_nodes,
            )  # fmt: skip
            limits.nodes += int(nodes)
            if most_nodes is not None:
                most_nodes = max(0, most_nodes - int(nodes))
                if state == NODE_LIMIT:
                    return None
            if state == NODE_LIMIT:
                self._weigh(target, limits)
            if state == EXHAUSTED:
                if not self.completer.undecided:
                    return False
                self.bound = min(target + 1, self.completer.open_bound)
                return None
            if state == LEAF:
                refuted = self._outlined and not self._priced and self._weigh_leaf(target, limits)
                refuted = refuted or (self._can_settle and self._settle_leaf(target))
                if self._outlined and limits.reached():
                    return None
                if not refuted:
                    self.completer.complete(self._chosen.tolist(), target, limits, refined_hand_on=refined_hand_on)
                self._depth = len(tables.items) - 1
            if limits.reached():
                return None

    def _weigh(self, target: int, limits: Limits) -> None:
        """Refute the partial choice that is being looked into, as short as possible, by a weighted sum of cuts."""
        for length in range(max(1, self._refuted - 1), self._depth + 1):
            weighing = self._weighing(length, target)
            if weighing is not None and weighing.refuted:
                self._take(weighing, length)
                return
            if limits.reached():
                return
        self._refuted = self._depth

    def _settle_all(self, x: int) -> None:
        """Settle every item along a cut."""
        tables = self.tables
        for g, items in enumerate(tables.items):
            if items.memory is not None:
                tables.settle(g, np.arange(len(items.choice)), x)
        tables.resum(x)
        for g in range(min(self._depth, len(tables.items))):
            self._prefix[g + 1, x] = self._prefix[g, x] + tables.worth[self._chosen[g], x]

    def _settle_leaf(self, target: int) -> bool:
        """Settle the items of a complete choice along the cuts that come closest to refuting it; whether one does."""
        tables, columns = self.tables, len(self.tables.rows)
        limits = tables.scales * target
        value = tables.worth[self._chosen, :columns].sum(axis=0) + tables.constants
        share = (limits - value) / limits
        for x in np.argsort(share, kind="stable")[:SETTLED_CUTS].tolist():
            if share[x] > MOST_SHARE:
                break
            if self._settle_cut(x, target):
                return True
        return self._settle_sums(target)

    def _settle_cut(self, x: int, target: int) -> bool:
        """Settle the items of a complete choice along one cut; whether that refutes the choice."""
        tables = self.tables
        before = tables.worth[self._chosen, x].copy()
        for g, number in enumerate(self._chosen.tolist()):
            if tables.items[g].memory is not None and (number, x) not in self._settled:
                self._settled.add((number, x))
                tables.settle(g, np.array([number - int(tables.start[g])]), x)
        if not np.any(tables.worth[self._chosen, x] > before):
            return False
        tables.resum(x)
        for g in range(len(tables.items)):
            self._prefix[g + 1, x] = self._prefix[g, x] + tables.worth[self._chosen[g], x]
        return bool(tables.worth[self._chosen, x].sum() + tables.constants[x] > tables.scales[x] * target)

    def _settle_sums(self, target: int) -> bool:
        """Refute a complete choice by weighted sums under which its items are settled; whether one did."""
        tables, problem = self.tables, self.tables.problem
        if self._program is None:
            self._program = CompleteProgram(tables, float(target))
        for _ in range(SEPARATIONS):
            times = np.zeros((len(problem.virtual_stages), 3), np.int64)
            base = tables.constants.astype(np.float64)
            for g, number in enumerate(self._chosen.tolist()):
                items, local = tables.items[g], np.array([number - int(tables.start[g])])
                times[list(items.group.stages)] = items.base[local[0]]
                base += tables.plain_worth(g, local)[0]
            found = self._program.weigh(self._chosen.tolist(), base, PATH_SCALE)
            if found is None:
                return False
            weights, slower = self._weigher.of_paths(found[0]), found[1]
            row = self._weigher.sum_of(weights)
            if row is None:
                return False
            settled = row.constant
            for g, number in enumerate(self._chosen.tolist()):
                settled += tables.settled_worth(g, number - int(tables.start[g]), row)
            if settled > row.scale * target:
                self._take(Weighing(True, row, weights, None), len(tables.items))
                return True
            times[:, 1] += np.rint(slower).astype(np.int64)
            path = path_of_mixture(problem, times)[1]
            if not self.learn(path):
                return False
            if self._settle_cut(len(tables.rows) - 1, target):
                return True
        return False

    def _weigh_leaf(self, target: int, limits: Limits) -> bool:
        """Refute a complete choice, and then shorter ones by bisection; whether it was refuted."""
        low, high = 0, len(self.tables.items)
        refuting = self._weighing(high, target)
        if refuting is None or not refuting.refuted:
            return refuting is None
        self._weights = refuting.weights
        while high - low > 1 and not limits.reached():
            middle = (low + high) // 2
            weighing = self._weighing(middle, target)
            if weighing is not None and weighing.refuted:
                refuting, high = weighing, middle
            else:
                low = middle
        self._take(refuting, high)
        return True

    def _take(self, weighing: Weighing, length: int) -> None:
        """Add the sum that refutes the first `length` items."""
        self._weights, self._refuted = weighing.weights, length
        assert weighing.row is not None
        self.sums.append(weighing.row)
        self.add_rows(self.sums[-1:])
        if self._priced and int(self.tables.start[-1]) <= FEW_ITEMS:
            self._settle_all(len(self.tables.rows) - 1)

    def _weighing(self, length: int, target: int) -> Weighing | None:
        """The best weights for the first items chosen, among the paths known and those that mixtures have missed."""
        prefix = self._chosen[:length].tolist()
        for _ in range(SEPARATIONS):
            weighing = self._weigher.weigh(prefix, target, self._weights, strongest=self._priced)
            if weighing is None or weighing.refuted or weighing.mixture is None:
                return weighing
            value, path = path_of_mixture(self.tables.problem, weighing.mixture)
            if value <= target or not self.learn(path):
                return weighing
        return self._weigher.weigh(prefix, target, self._weights, strongest=self._priced)

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
