"""Second proof room: is there a plan within a time? Columns, CP-SAT, exact simulation, until one of them says no."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from prism_cp.pipeline import PathCut, simulate, static_cuts
from prism_cp.second_proof.columns import ColumnMaker, Columns, Items, TooManyColumnsError
from prism_cp.second_proof.components import components, piece_contents
from prism_cp.second_proof.fronts import Fronts
from prism_cp.second_proof.model import ColumnModel
from prism_cp.second_proof.narrowing import possible_columns, possible_items, surviving
from prism_cp.second_proof.paths import Paths
from prism_cp.second_proof.strategies import StrategyModel
from prism_cp.stage_problem import Assignment, StageProblem, rank_memories, stage_times, structure_errors

Int64 = NDArray[np.int64]
Status = Literal["no_plan", "plan", "unknown"]

# Pieces of a component whose columns are all made: they bound far better than items where memory is tight. With more
# pieces there are too many of them, and items come first.
MOST_ENUMERATED = 2
TRIED_COLUMNS = 400  # CP-SAT is asked when there are no more, or when every component holds a known number of layers
FIRST_PATHS, MORE_PATHS = 60, 20  # that CP-SAT is told, and that it is told where its choice breaks them
TRIED_EFFORT = 0.05  # deterministic time of CP-SAT before a component is split
MOST_SETTLED = 30  # choices looked at with what they really hide before all columns are


class _TooManySettledError(Exception):
    """It is better to tell all columns apart by what they hide."""


@dataclass(frozen=True)
class Verdict:
    """What is known about plans within a time.

    Attributes
    ----------
    status
        ``no_plan``: there is none; ``plan``: `assignment` is one; ``unknown``: a limit was met.
    reason : str
        Of ``unknown``.
    columns, paths : int
        Columns at the beginning, or items where their columns are too many to be made; paths at the end.
    parts, solves : int
        Parts the columns were split into, and how often CP-SAT was run.
    """

    status: Status
    assignment: Assignment | None
    reason: str
    columns: int
    paths: int
    parts: int
    solves: int
    wall_s: float


def prove_no_plan(
    problem: StageProblem,
    target: int,
    cuts: Sequence[PathCut] = (),
    *,
    time_limit_s: float | None = None,
    seed: int = 0,
) -> Verdict:
    """Decide whether some plan has a pipeline time up to `target` (time units).

    Parameters
    ----------
    cuts
        Paths known from elsewhere: with more of them fewer have to be found by simulation. They are taken to be paths
        of the schedule's event graph, each of which is a lower bound of every plan.
    time_limit_s
        Looked at between steps.

    Notes
    -----
    Every column hides as much of the gradient reduction as its layers could, at first. Where that leaves a choice that
    is no plan, what its pieces hold is looked at again with what each column really hides, and then left out.

    A column that no path allows beside the least of the others, for any split of the layers, is in no plan within the
    target. What is left is handed to CP-SAT; what that does not decide soon is split by the layers a component holds,
    by its pieces, and at last in halves. A choice of CP-SAT is simulated: either it is a plan, or its critical path is
    a path the model did not know. "No plan" is said when every part was found empty or INFEASIBLE.

    Where ranks hold more than two pieces their columns are too many. The same is then done with items, each of which
    takes of every path the least that prices on its memory allow; a choice of items settles what every piece holds, and
    its columns say whether strategies of the layers make a plan of it, or a model of its own where they are too many.
    """
    started = time.perf_counter()
    deadline = None if time_limit_s is None else started + time_limit_s
    search = _Search(problem, target, cuts, deadline, seed)
    plan, reason = None, ""
    try:
        status, plan = search.run()
        reason = "time limit" if status == "unknown" else ""
    except TooManyColumnsError as error:
        status, reason = "unknown", str(error)
    except TimeoutError:
        status, reason = "unknown", "time limit"
    wall = time.perf_counter() - started
    return Verdict(
        status, plan, reason, search.num_columns, len(search.paths.cuts), search.parts, search.solves, wall
    )  # fmt: skip


class _Search:
    """State of one proof."""

    def __init__(
        self, problem: StageProblem, target: int, cuts: Sequence[PathCut], deadline: float | None, seed: int
    ) -> None:
        self.problem, self.target, self.deadline, self.seed = problem, target, deadline, seed
        own = static_cuts(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)
        self.paths = Paths(problem, [*own, *cuts])
        self.components = components(problem)
        self.contents = piece_contents(problem)
        self.chain = np.array([problem.layers.count(kind) for kind in range(problem.num_kinds)], np.int64)
        fronts = Fronts(problem)
        self.makers, self.exact_makers = (
            [ColumnMaker(problem, component, self.contents, fronts, exact) for component in self.components]
            for exact in (False, True)
        )
        self.settled: list[tuple[tuple[int, ...], ...]] = []  # what pieces of all components hold in no plan
        self.num_columns = self.parts = self.solves = 0

    def run(self) -> tuple[Status, Assignment | None]:
        """The verdict, and a plan."""
        if not all(len(each) for each in self.contents):
            return "no_plan", None
        found = possible_items(self.makers, self.paths, self.chain, self.target)
        if found is None:
            return "no_plan", None
        items, shares = found
        if any(len(component.pieces) > MOST_ENUMERATED for component in self.components):
            return self._decide_items(items, shares)
        for makers in (self.makers, self.exact_makers):
            shares = [self._extended(*each) for each in zip(makers, items, shares, strict=True)]
            everything = possible_columns(makers, self.paths, self.chain, self.target, items, shares, self.deadline)
            if everything is None:
                return "no_plan", None
            self.num_columns = sum(len(each.layers) for each in everything)
            try:
                return self._decide(everything, exact=makers is self.exact_makers)
            except _TooManySettledError:
                continue
        raise AssertionError("nothing is settled apart when columns are exact")

    def _decide_items(self, items: list[Items], shares: list[Int64]) -> tuple[Status, Assignment | None]:
        """The verdict on plans made of these items, of each of which `shares` says what it takes at least.

        Strategies are only looked for where CP-SAT finds a choice that no path forbids.
        """
        self.num_columns = sum(len(each.layers) for each in items)
        stack = [(items, shares)]
        while stack:
            if self.deadline is not None and time.perf_counter() > self.deadline:
                return "unknown", None
            items, shares = stack.pop()
            shares = [self._extended(*each) for each in zip(self.makers, items, shares, strict=True)]
            kept = surviving([each.layers for each in items], shares, self.chain, self.paths.room(self.target))
            if kept is None:
                continue
            items = [each.take(which) for each, which in zip(items, kept, strict=True)]
            shares = [share[which] for share, which in zip(shares, kept, strict=True)]
            chosen = self._ask(items, shares, exact=False)
            if chosen is None:
                for part in _split(items):
                    taken = list(zip(items, shares, part, strict=True))
                    stack.append(([each.take(own) for each, _, own in taken], [each[own] for _, each, own in taken]))
                self.parts += 1
            elif chosen:
                try:
                    status, plan = self._settle(items, chosen)
                except TooManyColumnsError:
                    status, plan = self._settle_contents(items, chosen)
                if status != "no_plan":
                    return status, plan
                stack.append((items, shares))
        return "no_plan", None

    def _settle_contents(self, items: list[Items], chosen: Sequence[int]) -> tuple[Status, Assignment | None]:
        """The verdict on all plans whose pieces hold what those of a choice hold: only strategies are left."""
        held = [each.content[i] for each, i in zip(items, chosen, strict=True)]
        model = StrategyModel(self.problem, [maker.costs for maker in self.makers], held, self.target)
        model.forbid_longer(self.paths.cuts)
        while model.fits:
            solver = self._solver()
            if self.deadline is not None:
                solver.parameters.max_time_in_seconds = max(0.0, self.deadline - time.perf_counter())
            status = solver.solve(model.model)
            self.solves += 1
            if status == cp_model.INFEASIBLE:
                break
            if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                return "unknown", None
            plan = self._checked(model.plan(solver))
            path = self._missing(plan)
            if path is None:
                return "plan", plan
            if path in self.paths.cuts:
                raise AssertionError("chosen strategies take more of a path than the model was told")
            self.paths = Paths(self.problem, [*self.paths.cuts, path])
            model.forbid_longer([path])
        self.settled.append(tuple(tuple(content.tolist()) for content in held))
        return "no_plan", None

    def _extended(self, maker: ColumnMaker, items: Items, share: Int64) -> Int64:
        """What items take of every path at least, also of those learnt since."""
        fresh = self.paths.cuts[share.shape[1] :]
        return np.hstack((share, maker.priced(Paths(self.problem, fresh), items))) if fresh else share

    def _decide(self, everything: list[Columns], exact: bool) -> tuple[Status, Assignment | None]:
        """The verdict on plans made of these columns; `exact` says whether they hide what they really hide."""
        stack = [everything]
        while stack:
            if self.deadline is not None and time.perf_counter() > self.deadline:
                return "unknown", None
            columns, shares = self._narrowed(stack.pop())
            if not columns:
                continue
            chosen = self._ask(columns, shares, exact)
            if chosen is None:
                stack += [[each.take(own) for each, own in zip(columns, part, strict=True)] for part in _split(columns)]
                self.parts += 1
                continue
            if not chosen:
                continue
            plan = self._plan(columns, chosen)
            path = self._missing(plan)
            if path is None:
                return "plan", plan
            if path not in self.paths.cuts:
                self.paths = Paths(self.problem, [*self.paths.cuts, path])
            elif exact:
                raise AssertionError("a chosen column takes more of a path than the model was told")
            elif len(self.settled) == MOST_SETTLED:
                raise _TooManySettledError
            else:
                status, better = self._settle(columns, chosen)
                if status != "no_plan":
                    return status, better
            stack.append(columns)
        return "no_plan", None

    def _settle(self, columns: Sequence[Items | Columns], chosen: Sequence[int]) -> tuple[Status, Assignment | None]:
        """The verdict on all plans whose pieces hold what those of a choice hold, also with columns of other parts."""
        items = [
            Items(each.content[i : i + 1], each.layers[i : i + 1]) for each, i in zip(columns, chosen, strict=True)
        ]
        held = [item.content[0] for item in items]
        least = [maker.priced(self.paths, item) for maker, item in zip(self.makers, items, strict=True)]
        room = self.paths.room(self.target) - sum(least)
        made = [
            maker.columns(self.paths, item, room + own, self.deadline)
            for maker, item, own in zip(self.exact_makers, items, least, strict=True)
        ]
        status, plan = ("no_plan", None) if not all(len(each.layers) for each in made) else self._decide(made, True)
        if status == "no_plan":
            self.settled.append(tuple(tuple(content.tolist()) for content in held))
        return status, plan

    def _narrowed(self, columns: list[Columns]) -> tuple[list[Columns], list[Int64]]:
        """Columns that are left, with their shares of all paths; none where a component has none."""
        shares = [
            self.paths.values(component, each.times, each.head, each.tail)
            for component, each in zip(self.components, columns, strict=True)
        ]
        layers = [each.layers for each in columns]
        kept = surviving(layers, shares, self.chain, self.paths.room(self.target))
        if kept is None:
            return [], []
        left = [each.take(which) for each, which in zip(columns, kept, strict=True)]
        return left, [share[which] for share, which in zip(shares, kept, strict=True)]

    def _ask(self, columns: Sequence[Items | Columns], shares: list[Int64], exact: bool) -> list[int] | None:
        """CP-SAT's column of every component, empty when there is no choice; None when it cannot say soon."""
        undecided = any(len(np.unique(each.layers, axis=0)) > 1 for each in columns)
        if undecided and sum(len(each.layers) for each in columns) > TRIED_COLUMNS:
            return None
        model = ColumnModel(self.problem, self.components, self.contents, columns)
        if not exact:
            model.forbid_contents(columns, self.settled)
        room = self.paths.room(self.target)
        fresh = _tightest(shares, room)
        while True:
            model.forbid_longer([share[:, fresh] for share in shares], room[fresh])
            solver = self._solver()
            if any(len(each.layers) > 1 for each in columns):
                solver.parameters.max_deterministic_time = TRIED_EFFORT
            status = solver.solve(model.model)
            self.solves += 1
            if status == cp_model.INFEASIBLE:
                return []
            if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
                return None
            chosen = [next(i for i, x in enumerate(own) if solver.value(x)) for own in model.choose]
            excess = sum(share[i] for share, i in zip(shares, chosen, strict=True)) - room
            fresh = np.flatnonzero(excess > 0)[:MORE_PATHS]
            if not len(fresh):
                return chosen

    def _plan(self, columns: Sequence[Columns], chosen: Sequence[int]) -> Assignment:
        """The plan of one column per component, checked to be one that fits."""
        sizes = [0] * self.problem.num_pieces
        counts: list[tuple[tuple[int, ...], ...]] = [()] * self.problem.num_pieces
        first = np.append(0, np.cumsum([len(kind.strategies) for kind in self.problem.tables[0]]))
        for maker, each, column in zip(self.makers, columns, chosen, strict=True):
            for k, piece in enumerate(maker.component.pieces):
                sizes[piece] = int(self.contents[piece][each.content[column, k]].sum())
                row = each.counts[column, k].tolist()
                counts[piece] = tuple(tuple(row[a:b]) for a, b in pairwise(first.tolist()))
        return self._checked(Assignment(tuple(np.append(0, np.cumsum(sizes)).tolist()), tuple(counts)))

    def _checked(self, plan: Assignment) -> Assignment:
        """The plan, which must be one that fits."""
        memories = rank_memories(self.problem, plan, self.makers[0].costs.live)
        if structure_errors(self.problem, plan) or any(row.total > row.capacity for row in memories):
            raise AssertionError("what CP-SAT chose makes a plan that does not fit")
        return plan

    def _solver(self) -> cp_model.CpSolver:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = self.seed
        return solver

    def _missing(self, plan: Assignment) -> PathCut | None:
        """The critical path of a plan; None when the plan is within the target."""
        times = stage_times(self.problem, plan)
        simulation = simulate(
            self.problem.schedule, self.problem.pp, self.problem.vpp, self.problem.num_microbatches,
            times.forward, times.input_grad, times.weight_grad, times.head, times.tail, times.p2p,
        )  # fmt: skip
        return None if simulation.pipeline_time <= self.target else simulation.critical_path


def _tightest(shares: Sequence[Int64], room: Int64) -> NDArray[np.intp]:
    """Paths that forbid most, of those that forbid anything."""
    least = sum(share.min(axis=0) for share in shares)
    most = sum(share.max(axis=0) for share in shares)
    forbids = np.flatnonzero(most > room)
    beyond = (most - room)[forbids] / (most - least)[forbids]
    return forbids[np.argsort(-beyond, kind="stable")[:FIRST_PATHS]]


def _split(rows: Sequence[Items | Columns]) -> list[list[NDArray[np.intp]]]:
    """Parts, as rows of every component: by the layers that one holds, else by its pieces, else halves."""
    for values in ([each.layers for each in rows], [each.content for each in rows]):
        groups = [np.unique(each, axis=0, return_inverse=True) for each in values]
        widest = max(range(len(rows)), key=lambda g: len(groups[g][0]))
        if len(groups[widest][0]) > 1:
            return _parts(rows, widest, groups[widest][1].reshape(-1))
    largest = max(range(len(rows)), key=lambda g: len(rows[g].layers))
    number = np.arange(len(rows[largest].layers))
    return _parts(rows, largest, (2 * number >= len(number)).astype(np.int64))


def _parts(
    rows: Sequence[Items | Columns], component: int, number: NDArray[np.intp] | Int64
) -> list[list[NDArray[np.intp]]]:
    everything = [np.arange(len(each.layers)) for each in rows]
    return [
        [*everything[:component], np.flatnonzero(number == part), *everything[component + 1 :]]
        for part in range(int(number.max()) + 1)
    ]
