"""Engine room: the best strategies once every group has its item, that is, once the boundaries are fixed.

Paths that only tell strategies apart are kept beside the tables: they would slow the walk down and refute little there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from prism_cp.cp.objective import longest_possible
from prism_cp.cp.solve import solve_stage_problem
from prism_cp.engine.aggregate import LARGEST_WEIGHT, weighted_sum
from prism_cp.engine.items import ItemMaker
from prism_cp.engine.leaf import assignment, boundaries, critical_path, simulate_points
from prism_cp.engine.limits import Limits, SearchStopped
from prism_cp.engine.point_sets import PointSets, StrategyPaths
from prism_cp.engine.tables import Row, Tables, point_worth, row_of
from prism_cp.engine.walk import EXHAUSTED, NODE_LIMIT
from prism_cp.pipeline import PathCut
from prism_cp.stage_problem import Assignment

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

MOST_SETS = 3_000  # sets of points looked at per complete choice before it is handed on
MOST_SEPARATIONS = 12  # paths learnt from mixtures per set
MOST_NODES = 100_000  # combinations of a set's points looked at before the set is split
FIRST_TRIALS = 20_000  # strategy combinations looked at per item of a complete choice of outlined items
MORE_TRIALS, MORE_POINTS = 5_000_000, 1_000_000  # the same, and points before they are merged, where that is too few
HAND_ON_LIMIT = 2.0  # deterministic time of the stage model for such a choice
MOST_PATHS = 100  # paths learnt from combinations per set

Offer = Callable[[Assignment], int]  # takes note of a plan that fits, returns its pipeline time


class Completer:
    """Decides complete choices of items of some tables.

    Attributes
    ----------
    undecided : bool
        Whether some choice could not be decided.
    open_bound : int
        No plan of such choices takes less time.
    hand_on_limit : float or None
        Deterministic time of the stage model per choice whose items are not outlined.
    """

    def __init__(
        self,
        maker: ItemMaker,
        tables: Tables,
        known: dict[PathCut, None],
        paths: StrategyPaths,
        offer: Offer,
        learn: Callable[[PathCut], bool],
        add_rows: Callable[[Sequence[Row]], None],
    ) -> None:
        self.maker, self.tables, self.known, self.paths = maker, tables, known, paths
        self.offer, self.learn, self.add_rows = offer, learn, add_rows
        self.longest = longest_possible(tables.problem)
        self.undecided = False
        self.open_bound = self.longest + 1
        self.hand_on_limit: float | None = None
        self._kept: dict[tuple[int, int], tuple[Int64 | None, Int64 | None]] = {}

    def complete(
        self,
        chosen: Sequence[int],
        target: int,
        limits: Limits,
        most_sets: int | None = None,
        refined_hand_on: float = HAND_ON_LIMIT,
    ) -> bool:
        """Find the best plan within the target of one item per group, or leave it undecided; whether it is decided.

        Parameters
        ----------
        most_sets
            Give up after that many sets of points; by default the stage model has the last word then.
        refined_hand_on
            Its deterministic time where the items are outlined.
        """
        tables = self.tables
        if any(items.outline is not None for items in tables.items):
            return self._refine(chosen, target, limits, most_sets, refined_hand_on)
        groups = range(len(tables.items))
        local = [number - int(tables.start[g]) for g, number in enumerate(chosen)]
        points = [int(tables.items[g].best[local[g]]) for g in groups]
        value, path = simulate_points(tables, chosen, points)
        decided = True
        if value <= target:
            real = self._plan(chosen, points)
            decided = real is not None and real <= target
            if real is not None and decided:
                target = real - 1
        if decided:
            self.learn(path)
            if not self._passes(chosen, target) or self._refuted_by_paths(local, target):
                return True
            decided = self._search(chosen, local, target, limits, most_sets or MOST_SETS)
        return decided or (most_sets is None and self._hand_on(chosen, target, limits))

    def _refine(
        self, chosen: Sequence[int], target: int, limits: Limits, most_sets: int | None, hand_on: float
    ) -> bool:
        """Decide a complete choice of outlined items: their points are made now, as few as the target leaves.

        Where merged points do not decide it, all points are made, before the stage model is asked.
        """
        try:
            tables = self._exact_tables(chosen, target, limits, FIRST_TRIALS)
            if tables is None:
                return True
            if most_sets is None and any(items.vague.any() for items in tables.items):
                if self._complete_exact(tables, target, limits, MOST_SETS, hand_on):
                    return True
                tables = self._exact_tables(chosen, target, limits, MORE_TRIALS, MORE_POINTS)
                if tables is None:
                    return True
        except SearchStopped:
            self.undecided, self.open_bound = True, 0
            return False
        return self._complete_exact(tables, target, limits, most_sets, hand_on)

    def _exact_tables(
        self, chosen: Sequence[int], target: int, limits: Limits, most_trials: int, most_points: int | None = None
    ) -> Tables | None:
        """Tables of the items chosen with their points; None where no strategies are within the target."""
        tables = self.tables
        plain = [x for x, row in enumerate(tables.rows) if row.scale <= LARGEST_WEIGHT]
        made = []
        for g, number in enumerate(chosen):
            items = tables.items[g]
            local = number - int(tables.start[g])
            limit = self._work_limit(chosen, g, target)
            one = items.choice[local : local + 1]
            exact = self.maker.make(items.group, limit, one, limits, most_trials, most_points)
            if not len(exact.choice):
                return None
            made.append(exact)
        exact_tables = Tables(tables.problem, tables.chain, made)
        exact_tables.add([tables.rows[x] for x in plain])
        worth = exact_tables.worth[:, : len(plain)].sum(axis=0) + exact_tables.constants
        return None if np.any(worth > exact_tables.scales * target) else exact_tables

    def _complete_exact(
        self, exact_tables: Tables, target: int, limits: Limits, most_sets: int | None, hand_on: float
    ) -> bool:
        """Decide the only choice from tables of one item per group; whether it is decided."""
        known = dict.fromkeys(self.known)

        def learn(path: PathCut) -> bool:
            if path in known:
                return False
            known[path] = None
            exact_tables.add([row_of(path, exact_tables.problem.p2p)])
            self.learn(path)
            return True

        inner = Completer(self.maker, exact_tables, known, self.paths, self.offer, learn, self.add_rows)
        inner.hand_on_limit = hand_on
        decided = inner.complete(range(len(exact_tables.items)), target, limits, most_sets)
        self.undecided |= inner.undecided
        self.open_bound = min(self.open_bound, inner.open_bound)
        return decided

    def _work_limit(self, chosen: Sequence[int], g: int, target: int) -> int:
        """Most work of the ranks of group g beside the other groups' items chosen, from cuts that count it."""
        tables = self.tables
        group = tables.items[g].group
        executed = self.maker.executed[list(group.stages)]
        limit = target
        for x, row in enumerate(tables.rows):
            own = row.times[list(group.stages)]
            if row.scale == 1 and len(group.ranks) == 1 and np.all(own >= executed[:, None]):
                rank = group.ranks[0]
                if row.head[rank] >= 1 and row.tail[rank] >= 1:
                    others = sum(int(tables.worth[n, x]) for h, n in enumerate(chosen) if h != g)
                    limit = min(limit, target - row.constant - others)
        return limit

    def _search(self, chosen: Sequence[int], local: list[int], target: int, limits: Limits, most: int) -> bool:
        """Branch and bound over sets of points, at most `most` of them; whether the choice is decided."""
        tables = self.tables
        points = PointSets(tables, local, [self._block(g, item) for g, item in enumerate(local)], self.paths, target)
        stack = [points.everything()]
        for count in range(most):
            if not stack:
                return True
            if limits.reached():
                return False
            alive = stack.pop()
            narrowed: list[Int64] | None = alive
            for _ in range(MOST_SEPARATIONS):
                narrowed, sums, mean = points.weigh(alive, target, self.longest)
                if narrowed is None:
                    if count == 0 and sums is not None:
                        self.add_rows([weighted_sum(points.rows, sums)])
                    break
                alive = narrowed
                if mean is None or not self._note(points, critical_path(tables.problem, *points.mixed(alive, mean))[1]):
                    break
            if narrowed is None:
                continue
            target, verdict = self._enumerate(chosen, points, alive, target)
            if verdict is None:
                return False
            if not verdict:
                stack += points.split(alive)
        return not stack

    def _enumerate(
        self, chosen: Sequence[int], points: PointSets, alive: list[Int64], target: int
    ) -> tuple[int, bool | None]:
        """Walk over the combinations of some points, if they are few; returns the target, lower where plans were found.

        The verdict is True when nothing within the target is left, False when there are too many combinations, None
        when a combination cannot be decided.
        """
        for _ in range(MOST_PATHS):
            state, picked = points.next_combination(alive, target, MOST_NODES)
            if state == EXHAUSTED:
                return target, True
            if state == NODE_LIMIT:
                return target, False
            value, path = simulate_points(self.tables, chosen, picked)
            if value <= target:
                real = self._plan(chosen, picked)
                if real is None or real > target:
                    return target, None
                target = real - 1
            new = self._note(points, path)
            if not new and value > target and not points.forbids(picked, target):
                return target, None  # passed only because another multiset hides more reduction
        return target, False

    def _note(self, points: PointSets, path: PathCut) -> bool:
        """Make a path known; whether it was new."""
        if path in self.known or path in self.paths.known:
            return False
        row = row_of(path, self.tables.problem.p2p)
        self.paths.add(path, row)
        points.add(row)
        return True

    def _block(self, g: int, item: int) -> Int64:
        """Worth [points, cuts and strategy paths] of an item's points; what was computed before is kept."""
        tables, pool = self.tables, self.paths.coefficients
        columns, more = len(tables.rows), len(pool.rows)
        first, second = self._kept.get((g, item), (None, None))
        if first is None:
            first = tables.point_worth(g, item)
        elif first.shape[1] < columns:
            first = np.hstack([first, tables.point_worth(g, item, first.shape[1])])
        if more and second is None:
            second = point_worth(pool, g, tables.items[g], item)
        elif second is not None and second.shape[1] < more:
            second = np.hstack([second, point_worth(pool, g, tables.items[g], item, second.shape[1])])
        self._kept[g, item] = first, second
        return first if second is None else np.hstack([first, second])

    def _passes(self, chosen: Sequence[int], target: int) -> bool:
        """Whether no cut refutes the choice."""
        tables = self.tables
        value = tables.worth[list(chosen), : len(tables.rows)].sum(axis=0) + tables.constants
        return not np.any(value > tables.scales * target)

    def _refuted_by_paths(self, local: list[int], target: int) -> bool:
        """Whether a strategy path refutes the choice whatever the strategies; if so it joins the tables."""
        columns = len(self.tables.rows)
        value = np.append(self.tables.constants, self.paths.coefficients.constants)
        limits = self.paths.coefficients.scales * target
        for g, item in enumerate(local):
            value += self._block(g, item).min(axis=0)
        excess = value[columns:] - limits
        refuting = np.flatnonzero(excess > 0)
        if not len(refuting):
            return False
        self.learn(list(self.paths.known)[int(refuting[np.argmax(excess[refuting])])])
        return True

    def _plan(self, chosen: Sequence[int], points: Sequence[int]) -> int | None:
        """Offer the plan of these points; its pipeline time, None where a point stands for several multisets."""
        plan = assignment(self.maker, self.tables, chosen, points)
        return None if plan is None else self.offer(plan)

    def _hand_on(self, chosen: Sequence[int], target: int, limits: Limits) -> bool:
        """Let the stage model decide a choice whose boundaries are fixed; whether it did."""
        bounds = boundaries(self.tables, chosen)
        sizes = tuple(stop - start for start, stop in pairwise(bounds))
        fixed = self.tables.problem.replace(min_layers=sizes, max_layers=sizes)
        solution = solve_stage_problem(
            fixed,
            upper_bound=target,
            cuts=[*self.known, *self.paths.known],
            time_limit_s=limits.remaining_s(),
            deterministic_limit=self.hand_on_limit,
            stop=limits.stop,
        )
        if solution.assignment is not None:
            self.offer(solution.assignment)
        if solution.status in ("optimal", "no_better", "infeasible"):
            return True
        self.undecided = True
        self.open_bound = min(self.open_bound, solution.bound)
        return False
