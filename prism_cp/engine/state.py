"""Engine room: what is known during one solve: the best plan, the bound, the paths."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property

from prism_cp.cp.exact import evaluate, is_feasible, static_cuts
from prism_cp.cp.objective import longest_possible
from prism_cp.engine.chain import Chain
from prism_cp.engine.decide import Decision
from prism_cp.engine.divide import Division
from prism_cp.engine.items import ItemMaker
from prism_cp.engine.limits import Limits
from prism_cp.engine.point_sets import StrategyPaths
from prism_cp.engine.price_pool import PricePool
from prism_cp.engine.refine import Refinement
from prism_cp.engine.relaxed_start import RelaxedStart, relaxed_start
from prism_cp.engine.tables import Row, Tables, row_of
from prism_cp.engine.whole_plans import PlanAnnealer
from prism_cp.pipeline import PathCut
from prism_cp.stage_problem import Assignment, StageProblem

MOST_UNSKETCHED = 2  # pieces of a group; with more, plans are looked for before all items are made


class EngineState:
    """State of one solve.

    Attributes
    ----------
    problem : StageProblem
    chain : Chain
    maker : ItemMaker
    limits : Limits
    seed : int
        Of the annealing.
    longest, limit : int
        No plan takes longer than the first; only plans up to the second matter. Time units, as `low` and `best_time`.
    low : int
        Proven: every plan within the limit takes at least this long.
    best, best_time
        The best plan known.
    known : dict of PathCut
        Paths, in the order they were learnt.
    given, learnt : list of PathCut
        Those of the caller, and those found here.
    pool : PricePool or None
        Prices on memory, once there are some.
    plan_runs : int
        Annealings over whole plans so far; each has a seed of its own.
    """

    def __init__(
        self,
        problem: StageProblem,
        chain: Chain,
        lower_bound: int,
        upper_bound: int | None,
        cuts: Sequence[PathCut],
        limits: Limits,
        seed: int,
    ) -> None:
        self.problem, self.chain, self.limits, self.seed = problem, chain, limits, seed
        self.maker = ItemMaker(problem, chain)
        self.longest = longest_possible(problem)
        self.limit = self.longest if upper_bound is None else min(upper_bound, self.longest)
        self.low = lower_bound
        self.best: Assignment | None = None
        self.best_time: int | None = None
        self.given = list(dict.fromkeys(cuts))
        self.known = dict.fromkeys([*static_cuts(problem), *cuts])
        self.learnt: list[PathCut] = []
        self.pool: PricePool | None = None
        self.plan_runs = 0
        self._paths: StrategyPaths | None = None

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

    def raise_bound(self, bound: int) -> None:
        """Take note of a proven bound; beyond the cap it says that nothing is left."""
        self.low = max(self.low, min(bound, self.cap() + 1))

    @property
    def many_pieces(self) -> bool:
        """Whether every rank holds so many pieces that items are outlined before all their points are made."""
        return len(self.chain.groups[0].pieces) > MOST_UNSKETCHED

    def learn(self, paths: Sequence[PathCut]) -> list[Row]:
        """Make paths known; those that are new, as rows."""
        fresh = [path for path in dict.fromkeys(paths) if path not in self.known]
        self.known.update(dict.fromkeys(fresh))
        self.learnt += fresh
        return [row_of(path, self.problem.p2p) for path in fresh]

    @cached_property
    def relaxed(self) -> RelaxedStart | None:
        """What the linear relaxation proposes, found when first asked for."""
        return relaxed_start(self.problem)

    @cached_property
    def annealer(self) -> PlanAnnealer:
        """Looks for better whole plans."""
        return PlanAnnealer(self.problem)

    @cached_property
    def refinement(self) -> Refinement:
        """Makes items that tell classes of strategies apart."""
        return Refinement(self.problem, self.chain)

    def decision(self, tables: Tables) -> Decision:
        """A walk over the items of some tables."""
        return Decision(self.maker, tables, self.known, self._strategy_paths(tables), self.offer, self.pool)

    def division(self, tables: Tables, known: Sequence[PathCut]) -> Division:
        """A search over refined items, whose tables have the paths `known`."""
        paths = self._strategy_paths(tables)

        def decide(part: Tables, own: Iterable[PathCut]) -> Decision:
            return Decision(self.refinement.maker, part, own, paths, self.offer)

        return Division(tables, known, decide)

    def _strategy_paths(self, tables: Tables) -> StrategyPaths:
        if self._paths is None:
            self._paths = StrategyPaths(tables)
        return self._paths
