"""Engine room: the stage problem of any schedule, solved to proven optimality by walks over items.

Every path of the event graph is a sum over ranks, so with integer tables of what each rank's possible share of the
chain is worth along each path, and the least worth of the later ranks, a depth-first walk over the ranks refutes a
target time quickly. Plans come from annealing over the boundaries; targets approach the best plan in levels; complete
choices are simulated, and their critical paths become new cuts.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from prism_cp.cp.exact import evaluate, is_feasible, static_cuts
from prism_cp.cp.objective import longest_possible
from prism_cp.engine.anneal import Annealer, row_starts
from prism_cp.engine.chain import make_chain, make_groups
from prism_cp.engine.complete import HAND_ON_LIMIT
from prism_cp.engine.decide import Decision
from prism_cp.engine.items import ItemMaker
from prism_cp.engine.leaf import assignment, boundaries, critical_path, simulate_points
from prism_cp.engine.limits import Limits, SearchStopped
from prism_cp.engine.mixture import Weigher
from prism_cp.engine.point_sets import StrategyPaths
from prism_cp.engine.price_pool import PricePool
from prism_cp.engine.relaxed_start import RelaxedStart, relaxed_start
from prism_cp.engine.tables import LARGEST_VALUE, Tables, row_of
from prism_cp.engine.whole_plans import PlanAnnealer
from prism_cp.pipeline import PathCut, get_schedule
from prism_cp.pipeline.program import get_program
from prism_cp.stage_problem import Assignment, StageProblem

Int64 = NDArray[np.int64]
EngineStatus = Literal["optimal", "no_better", "infeasible", "feasible", "unknown"]

LIMIT_STEPS = (1.02, 1.06, 1.12, 1.2, 1.35, 1.6, 2.0, 3.0)  # first limits, relative to perfectly balanced work
LEVELS = (0.03, 0.007)  # gaps proved one after another
MOST_PLAN_TRIALS, PLAN_OPS, PLAN_RUNS = 400_000, 400_000_000, 2  # of the annealing over whole plans
PLAN_PRICE = 0.4  # of memory, in shares of what the relaxation says it is worth
TIGHT = 0.3  # share of what is open that prices must close at once for memory to count as tight
BISECTION = 2_000  # steps of the bound that items alone give, as a share of the time
ROOT_SEPARATIONS = 4  # paths learnt from mixtures before the first level
SHARES_OF_GAP = (0.3, 0.6, 0.85)  # the same for outlined items, as shares of what is open
FIRST_PLAN_NODES = 2_000_000
TRIALS = 60_000  # of the annealing, fewer for small problems
COARSE_ROUNDS = 2
MOST_UNSKETCHED = 2  # pieces of a group; with more, plans are looked for before all items are made
SHARES, SHORT, LONG_RUNS = 5, 20, 3  # starts: shares of rows, length of their first runs, how many go on
POLISH_SETS = 12
NEIGHBOURS = 300  # boundaries near the best ones whose longest paths are cuts from the start
POLISHED = 6  # boundaries whose strategies are searched after annealing


@dataclass(frozen=True)
class EngineResult:
    """What is known about a stage problem.

    Attributes
    ----------
    lower_bound
        Proven: every plan takes at least this long (time units), or, where an upper bound was given, every plan
        within it does.
    status
        ``optimal``: `pipeline_time` equals the bound; ``no_better``: no plan is within the upper bound;
        ``infeasible``: no plan exists; ``feasible`` and ``unknown``: stopped with and without a plan.
    nodes
        Items and totals looked at.
    cuts
        Paths learnt; valid for every problem of the same schedule, pp, vpp and number of micro-batches.
    """

    lower_bound: int
    assignment: Assignment | None
    pipeline_time: int | None
    status: EngineStatus
    nodes: int
    cuts: tuple[PathCut, ...]


def applicable(problem: StageProblem) -> bool:
    """Whether all groups of ranks hold equally many pieces, which the tables need, and no time can overflow."""
    groups = make_groups(problem)
    alike = len({(len(group.pieces), len(group.stages), len(group.ranks)) for group in groups}) == 1
    scale = get_schedule(problem.schedule).overlap_factor.denominator
    return alike and scale * longest_possible(problem) < LARGEST_VALUE


def solve_with_engine(
    problem: StageProblem,
    lower_bound: int = 0,
    upper_bound: int | None = None,
    *,
    hint: Assignment | None = None,
    cuts: Sequence[PathCut] = (),
    deadline: float | None = None,
    node_limit: int | None = None,
    stop: threading.Event | None = None,
    seed: int = 0,
) -> EngineResult:
    """Find the plan with the smallest exact pipeline time, with proof.

    Parameters
    ----------
    problem
        Integer tables of one layout, under any schedule.
    lower_bound
        Proven elsewhere, time units.
    upper_bound
        Only plans with a pipeline time up to this matter.
    hint
        A plan to start from.
    cuts
        Paths known from earlier solves with the same schedule, pp, vpp and number of micro-batches.
    deadline
        As `time.monotonic` counts.
    node_limit
        Most nodes of all walks together.
    stop
        Once set, the search ends with what is known.
    seed
        Of the annealing. The same seed gives the same result unless a deadline or `stop` cuts in.

    Raises
    ------
    ValueError
        The problem is not `applicable`.
    """
    return _Engine(problem, lower_bound, upper_bound, cuts, Limits(deadline, node_limit, stop), seed).solve(hint)


class _Engine:
    """State of one solve."""

    def __init__(
        self,
        problem: StageProblem,
        lower_bound: int,
        upper_bound: int | None,
        cuts: Sequence[PathCut],
        limits: Limits,
        seed: int,
    ) -> None:
        if not applicable(problem):
            raise ValueError(f"ranks of {problem.schedule} hold different numbers of pieces, or times overflow")
        self.problem, self.limits, self.seed = problem, limits, seed
        self.longest = longest_possible(problem)
        self.limit = self.longest if upper_bound is None else min(upper_bound, self.longest)
        self.given_limit = upper_bound
        self.low = lower_bound
        self.best: Assignment | None = None
        self.best_time: int | None = None
        self.given = list(dict.fromkeys(cuts))
        self.known = dict.fromkeys([*static_cuts(problem), *cuts])
        self.num_static = len(self.known) - len(self.given)
        self.learnt: list[PathCut] = []
        self.paths: StrategyPaths | None = None
        self.pool: PricePool | None = None
        self.relaxed: RelaxedStart | None = None
        self.sizes = (problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)
        chain = make_chain(problem)
        self.chain = chain
        if chain is not None:
            self.maker = ItemMaker(problem, chain)

    # -- plans and bounds ----------------------------------------------------------------------------------------------

    def offer(self, plan: Assignment) -> int:
        """Take note of a plan; returns its pipeline time."""
        simulation = evaluate(self.problem, plan)
        value = simulation.pipeline_time
        if value <= self.limit and (self.best_time is None or value < self.best_time):
            if not is_feasible(self.problem, plan):
                raise AssertionError("the engine made a plan that does not fit")
            self.best, self.best_time = plan, value
        return value

    def cap(self) -> int:
        """Largest pipeline time that still matters."""
        return self.limit if self.best_time is None else self.best_time - 1

    def solve(self, hint: Assignment | None) -> EngineResult:
        """Plans first, then levels, then the last word."""
        if self.chain is None:
            return self._result(exhausted=True)
        if hint is not None and is_feasible(self.problem, hint):
            self.offer(hint)
        try:
            if self.best is None:
                self._first_plans()
            self._sketch_plans()
            tables = self._first_tables()
        except SearchStopped:
            tables = None
        if tables is None:
            return self._result(exhausted=self.low > self.cap())
        return self._result(exhausted=self._close(tables))

    def _result(self, exhausted: bool) -> EngineResult:
        """The answer; with `exhausted` nothing is left within the cap."""
        cuts = (*self.given, *self.learnt)
        status: EngineStatus
        if exhausted and self.best_time is not None:
            return EngineResult(self.best_time, self.best, self.best_time, "optimal", self.limits.nodes, cuts)
        if exhausted:
            status = "infeasible" if self.limit >= self.longest else "no_better"
            return EngineResult(self.limit + 1, None, None, status, self.limits.nodes, cuts)
        low = self.low if self.best_time is None else min(self.low, self.best_time)
        if self.best_time is not None and low == self.best_time:
            status = "optimal"
        else:
            status = "unknown" if self.best is None else "feasible"
        return EngineResult(low, self.best, self.best_time, status, self.limits.nodes, cuts)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _make_tables(self, limit: int) -> Tables | None:
        """Tables of everything useful within the limit; None when some group can hold nothing."""
        assert self.chain is not None
        rows = [row_of(cut, self.problem.p2p) for cut in self.known]
        groups = self.chain.groups
        wanted: list[Int64 | None] = [None for _ in groups]
        if len(groups[0].pieces) > 1:  # with several pieces there are many items, most of them hopeless
            items = [self.maker.coarse(group, limit) for group in groups]
            for _ in range(COARSE_ROUNDS):
                if not all(len(each.choice) for each in items):
                    return None
                tables = Tables(self.problem, self.chain, items)
                tables.add(rows)
                mask = tables.useful(tables.scales * limit)
                items = [
                    each.select(mask[tables.start[g] : tables.start[g + 1]]) for g, each in enumerate(tables.items)
                ]
            wanted = [each.choice for each in items]
        made = []
        for group, choices in zip(groups, wanted, strict=True):
            outlined = None
            if choices is not None and len(group.pieces) > MOST_UNSKETCHED:
                outlined = self.maker.outlined(group, limit, choices)
            made.append(outlined or self.maker.make(group, limit, choices, self.limits))
            if not len(made[-1].choice):
                return None
        tables = Tables(self.problem, self.chain, made)
        tables.add(rows)
        return tables

    def _first_plans(self) -> None:
        """Plans from even boundaries with different shares of rows, every group with its fastest strategies."""
        assert self.chain is not None
        for start in row_starts(self.problem, SHARES):
            if self.limits.reached():
                return
            items = []
            for group in self.chain.groups:
                local = [
                    self.chain.local[piece, self.chain.numbers[start[piece], start[piece + 1]]]
                    if self.chain.numbers[start[piece], start[piece + 1]] >= 0
                    else -1
                    for piece in group.pieces
                ]
                if min(local) < 0:
                    break
                items.append(self.maker.sketch(group, self.longest, np.array([local], np.int64)))
                if not len(items[-1].choice):
                    break
            else:
                tables = Tables(self.problem, self.chain, items)
                chosen = list(range(len(items)))
                plan = assignment(self.maker, tables, chosen, [int(each.best[0]) for each in items])
                if plan is not None:
                    self.offer(plan)

    def _sketch_plans(self) -> None:
        """Better plans by annealing over boundaries, every group with strategies found by greed.

        With several pieces a rank has many items; those of a bad limit would take longer to make than all the rest.
        """
        assert self.chain is not None
        groups = self.chain.groups
        if self.best is None or len(groups[0].pieces) <= MOST_UNSKETCHED or self.limits.reached():
            return
        items = [self.maker.sketch(group, self.cap()) for group in groups]
        if all(len(each.choice) for each in items):
            self._annealed(Annealer(Tables(self.problem, self.chain, items)))

    def _anneal_plans(self) -> None:
        """Better plans by annealing over whole plans, from the best one known and from what the relaxation proposes."""
        start = relaxed_start(self.problem)
        if start is None or self.best is None:
            return
        self.relaxed = start
        price = float(max(prices.sum(axis=1).max() for prices in start.prices))
        annealer = PlanAnnealer(self.problem)
        ops = len(get_program(*self.sizes).code)
        trials = min(MOST_PLAN_TRIALS, PLAN_OPS // ops)
        for run in range(PLAN_RUNS):
            if self.limits.reached():
                return
            plan, _ = annealer.run(self.best, trials, self.seed + run, PLAN_PRICE * price)
            if plan is not None:
                self.offer(plan)

    def _balanced_time(self) -> int:
        """Work of one rank if all had the same, without recomputation: where to begin to look."""
        table = self.problem.tables[0]
        fast = [min(s.forward + s.input_grad + s.weight_grad for s in kind.strategies) for kind in table]
        work = sum(fast[kind] for kind in self.problem.layers)
        work += sum(s.ends.forward + s.ends.input_grad + s.ends.weight_grad for s in self.problem.virtual_stages[:1])
        work += sum(s.ends.forward + s.ends.input_grad + s.ends.weight_grad for s in self.problem.virtual_stages[-1:])
        return self.problem.num_microbatches * work // len(self.problem.ranks)

    def _first_tables(self) -> Tables | None:
        """Tables of everything up to a limit at which a plan is known, after raising the bound to what was refuted.

        None: nothing is left, or stopped.
        """
        balanced = self._balanced_time()
        steps = [int(balanced * step) for step in LIMIT_STEPS]
        for limit in [*(step for step in steps if self.low <= step < self.cap()), self.cap()]:
            if limit < self.low or (self.best_time is not None and limit < self.cap()):
                continue
            if self.limits.reached():
                return None
            tables = self._make_tables(limit)
            if tables is None:
                self.low = max(self.low, limit + 1)
                continue
            verdict = self._find_plan(tables, limit)
            if verdict is False:
                self.low = max(self.low, limit + 1)
                continue
            if self.best_time is None and limit < self.cap():
                continue
            if limit < self.cap():  # annealing may go beyond the limit; what it reached bounds the rest
                tables = self._make_tables(self.cap())
            if tables is None:
                self.low = max(self.low, self.cap() + 1)
                return None
            return self._reduced(tables, self.cap())
        return None

    def _find_plan(self, tables: Tables, limit: int) -> bool | None:
        """Plans within the limit: by annealing, or else the first one of a walk. False: there is none."""
        if np.any(tables.after[0, -1, : len(tables.rows)] > tables.scales * limit):
            return False
        self._anneal(tables)
        if self.best_time is not None:
            return True
        allowed = Limits(self.limits.deadline, self.limits.nodes + FIRST_PLAN_NODES, self.limits.stop)
        allowed.nodes = self.limits.nodes
        decision = self._decision(tables)
        verdict = decision.run(limit, allowed, lambda: self.best_time, first_only=True)
        self.limits.nodes = allowed.nodes
        self.learnt += decision.learnt
        if verdict:
            self._anneal(tables)
        return verdict

    def _anneal(self, tables: Tables) -> None:
        if self.problem.num_pieces < 2:
            return
        annealer = Annealer(tables)
        kept, count, paths = self._annealed(annealer)
        if count and self.problem.num_pieces > len(tables.items):
            for near in annealer.neighbours(kept[0], NEIGHBOURS, self.seed):
                points = [int(tables.items[g].best[n - tables.start[g]]) for g, n in enumerate(near)]
                paths.append(simulate_points(tables, near, points)[1])
        new = [path for path in dict.fromkeys(paths) if path not in self.known]
        self.known.update(dict.fromkeys(new))
        self.learnt += new
        tables.add([row_of(path, self.problem.p2p) for path in new])
        decision = self._decision(tables)
        for row in kept[: min(count, POLISHED)]:
            chosen = annealer.items_of(row)
            assert chosen is not None
            decision.completer.complete(chosen.tolist(), self.cap(), self.limits, POLISH_SETS)
        self.learnt += decision.learnt

    def _annealed(self, annealer: Annealer) -> tuple[Int64, int, list[PathCut]]:
        """Boundaries kept by annealing, best first, how many are complete, and their longest paths."""
        tables = annealer.tables
        trials = min(TRIALS, 100 * self.problem.num_pieces * len(self.problem.layers))
        starts = row_starts(self.problem, SHARES)
        if self.best is not None:
            starts.insert(0, np.array(self.best.boundaries, np.int64))
        if len(starts) > 1:
            tried = [annealer.run(start, trials // SHORT, self.seed) for start in starts]
            order = sorted(range(len(tried)), key=lambda i: (tried[i][1] == 0, tried[i][2], i))[:LONG_RUNS]
            starts = [tried[i][0][0] if tried[i][1] else starts[i] for i in order]
        runs = [annealer.run(start, trials, self.seed) for start in starts]
        kept, count, _ = min(runs, key=lambda run: (run[1] == 0, run[2]))
        paths = []
        for row in kept[:count]:
            chosen = annealer.items_of(row)
            assert chosen is not None, "annealing kept boundaries that do not fit"
            points = [int(tables.items[g].best[n - tables.start[g]]) for g, n in enumerate(chosen)]
            plan = assignment(self.maker, tables, chosen.tolist(), points)
            if plan is None:
                continue
            assert plan.boundaries == boundaries(tables, chosen.tolist())
            self.offer(plan)
            paths.append(evaluate(self.problem, plan).critical_path)
        return kept, count, paths

    def _decision(self, tables: Tables) -> Decision:
        if self.paths is None:
            self.paths = StrategyPaths(tables)
        return Decision(self.maker, tables, self.known, self.paths, self.offer, self.pool)

    def _reduced(self, tables: Tables, target: int) -> Tables:
        """Only items that can be part of a plan within the target."""
        while True:
            limits = tables.scales * target
            mask = tables.useful(limits)
            if mask.all():
                return tables
            before = len(mask)
            tables = tables.keep(mask)
            if mask.sum() > 0.9 * before or not mask.any():
                return tables

    def _close(self, tables: Tables) -> bool:
        """Levels, then the cap itself; whether nothing is left within the cap."""
        outlined = any(items.outline is not None for items in tables.items)
        if outlined:
            tables = self._with_prices(tables)
        hand_on, levels = HAND_ON_LIMIT, list(SHARES_OF_GAP if outlined else LEVELS)
        while self.low <= self.cap() and not self.limits.reached():
            if levels:
                level = levels.pop(0)
                target = int(self.cap() * (1 - level))
                if outlined:
                    target = self.low + int((self.cap() - self.low) * level)
            else:
                target = self.cap()
            if target < self.low:
                continue
            decision = self._decision(self._reduced(tables, target))
            decision.completer.refined_hand_on = hand_on
            verdict = decision.run(target, self.limits, lambda: self.best_time)
            self.learnt += decision.learnt
            if not self.limits.reached():  # many cuts of many items take their time
                tables.add([row_of(cut, self.problem.p2p) for cut in decision.learnt] + decision.sums)
            if verdict is False:
                self.low = max(self.low, min(target, self.cap()) + 1)
            self.low = max(self.low, min(decision.bound, self.cap() + 1))
            if not levels and target >= self.cap():
                if not outlined:
                    break
                hand_on *= 4  # some choices are undecided
        return self.low > self.cap()

    def _with_prices(self, tables: Tables) -> Tables:
        """The tables with prices on memory, if memory is so tight that these close a good part of what is open.

        Prices are dear: where outlines alone come as far, they are not worth it.
        """
        assert self.chain is not None
        self._bisect(tables)
        self._bound_by_weights(tables)
        if self.low > self.cap() or not all(items.memory is not None for items in tables.items):
            return tables
        before, gap, pool = self.low, self.cap() - self.low, self.pool
        settled = Tables(self.problem, self.chain, tables.items)
        settled.add(tables.rows)
        settled = self._settle_own_work(settled)
        priced = Tables(self.problem, self.chain, settled.items, priced=True)
        priced.add(settled.rows)
        priced = self._settle_own_work(priced)
        if self.low <= self.cap() and not self.limits.reached():
            self._bound_by_weights(priced)
        if self.low - before < TIGHT * gap:
            self.pool = pool
            return tables
        self._anneal_plans()
        return priced

    def _settle_own_work(self, tables: Tables) -> Tables:
        """Tables of the items left after each group's own work was settled, along the path that sees most of it."""
        for g, items in enumerate(tables.items):
            if self.limits.reached():
                break
            stages = list(items.group.stages)
            x = max(range(len(tables.rows)), key=lambda n: tables.rows[n].times[stages, 1].sum() / tables.scales[n])
            tables.settle(g, np.arange(len(items.choice)), x)
            tables.resum(x)
        tables = self._reduced(tables, self.cap())
        self._bisect(tables)
        return tables

    def _bisect(self, tables: Tables) -> None:
        """Raise the bound to what the cuts refute one by one, each by the items that are left."""
        low, high = self.low, self.cap() + 1
        while high - low > max(1, high // BISECTION):
            middle = (low + high) // 2
            if self._empty(tables, middle):
                low = middle + 1
            else:
                high = middle
        self.low = max(self.low, low)

    @staticmethod
    def _empty(tables: Tables, target: int) -> bool:
        """Whether some group has no item left once all that no cut allows within the target are gone."""
        while True:
            mask = tables.useful(tables.scales * target)
            if not all(mask[start:stop].any() for start, stop in pairwise(tables.start)):
                return True
            if mask.all():
                return False
            tables = tables.keep(mask)

    def _start(self, tables: Tables, pool: PricePool) -> NDArray[np.float64] | None:
        """Weights on the paths known from the relaxation, whose paths and prices join what is known."""
        start = self.relaxed or relaxed_start(self.problem)
        if start is None:
            return None
        fresh = [path for path in start.weights if path not in self.known]
        self.known.update(dict.fromkeys(fresh))
        self.learnt += fresh
        tables.add([row_of(path, self.problem.p2p) for path in fresh])
        for g, items in enumerate(tables.items):
            if pool.applies(g):
                pool.seed(g, start.prices[items.group.ranks[0]])
        return np.array([start.weights.get(path, 0.0) for path in self.known])

    def _bound_by_weights(self, tables: Tables) -> None:
        """Raise the bound to the best weighted sum of the paths known."""
        assert self.chain is not None
        weigher = Weigher(tables, self.longest, self.limits)
        self.pool = weigher.pool
        weights = self._start(tables, weigher.pool)
        for _ in range(ROOT_SEPARATIONS):
            weighing = weigher.weigh((), self.cap(), weights, to_the_end=True)
            if weighing is None or weighing.refuted:
                self.low = max(self.low, self.cap() + 1)
                return
            if weighing.row is None:
                return
            weights = weighing.weights
            fresh = Tables(self.problem, self.chain, tables.items)
            fresh.add([weighing.row])
            self.low = max(self.low, min(self.cap() + 1, -(-int(fresh.after[0, -1, 0]) // weighing.row.scale)))
            if weighing.mixture is None:
                return
            tail = np.array([rank.last_bucket for rank in self.problem.ranks], np.int64)
            times = np.rint(weighing.mixture).astype(np.int64)
            value, path = critical_path(self.problem, times, np.zeros_like(tail), tail)
            if path in self.known or value <= self.low or self.limits.reached():
                return
            self.known[path] = None
            self.learnt.append(path)
            tables.add([row_of(path, self.problem.p2p)])
