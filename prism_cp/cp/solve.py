"""Solve one layout's stage problem to proven optimality: cuts, exact simulation, more cuts, until bound = incumbent."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ortools.sat.python import cp_model

from prism_cp.cp.constraints.pieces import post_pieces
from prism_cp.cp.dominance import Reduction, remove_dominated
from prism_cp.cp.exact import LiveVectors, evaluate, is_feasible, live_vectors, static_cuts
from prism_cp.cp.model import ModelInvalidError, StageModel
from prism_cp.cp.objective import longest_possible, proven_bound
from prism_cp.cp.partition import Partition, Piece
from prism_cp.pipeline import PathCut
from prism_cp.stage_problem import Assignment, StageProblem

StageStatus = Literal["optimal", "no_better", "infeasible", "feasible", "unknown"]
# Per mille above the bound at which first plans are made: the quickest front ranks are not always the best plan.
_ALLOWANCES = (0, 1, 2, 5, 10, 20, 40)

OnIncumbent = Callable[[Assignment, int], None]


@dataclass(frozen=True)
class StageSolution:
    """What is known about one stage problem after a solve.

    Attributes
    ----------
    status
        ``optimal``: `pipeline_time` equals `bound`; ``no_better``: proved that no plan is within the given upper bound;
        ``infeasible``: proved that no plan exists; ``feasible`` and ``unknown``: a limit was met with and without a
        plan.
    assignment : Assignment or None
    pipeline_time : int or None
        Exact simulated time of `assignment`, in time units.
    bound : int
        Proven: every plan of the problem that is within the upper bound takes at least this long; with ``no_better``
        every plan at all does.
    cuts : tuple of PathCut
        The paths given by the caller and those learnt; valid for every problem of the same schedule, pp, vpp and
        number of micro-batches.
    deterministic_time : float
        Sum over CP-SAT solves.
    num_solves : int
        CP-SAT solves made.
    """

    status: StageStatus
    assignment: Assignment | None
    pipeline_time: int | None
    bound: int
    cuts: tuple[PathCut, ...]
    deterministic_time: float
    wall_s: float
    num_solves: int


class _Incumbents(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
    """Simulates every plan the solver finds; keeps the best and the critical paths the model did not know."""

    def __init__(self, search: _Search) -> None:
        super().__init__()
        self._search = search
        self.error: BaseException | None = None

    def on_solution_callback(self) -> None:
        try:
            variables = self._search.model.variables
            self._search.offer(variables.extract(self), int(self.value(variables.pipeline_time)))
        except BaseException as error:  # the solver's thread would swallow it
            self.error = error
            self.stop_search()


class _Search:
    """State of one solve: incumbent, bound, learnt cuts."""

    def __init__(
        self,
        reduction: Reduction,
        cuts: Sequence[PathCut],
        upper_bound: int | None,
        hint: Assignment | None,
        on_incumbent: OnIncumbent | None,
    ) -> None:
        self.reduction, self.problem = reduction, reduction.problem
        self.limit = longest_possible(self.problem) if upper_bound is None else upper_bound
        self.on_incumbent = on_incumbent
        self.best: Assignment | None = None
        self.best_time: int | None = None
        self.bound = 0
        self.known = dict.fromkeys([*static_cuts(self.problem), *cuts])
        self.learnt = list(dict.fromkeys(cuts))
        self.pending: list[PathCut] = []
        self.hint = None if hint is None else reduction.reduce(hint)
        live = live_vectors(self.problem)
        if self.hint is not None and is_feasible(self.problem, self.hint):
            self.offer(self.hint, -1)
        self.pieces = self._narrow(live)
        self.model = StageModel(self.problem, live, list(self.known), max(self.limit, 0))
        if self.pieces is not None:
            post_pieces(self.model.model, self.model.variables, self.pieces)
        self.pending = []

    def _narrow(self, live: LiveVectors) -> list[list[Piece]] | None:
        """Bound, first plans and surviving positions by dynamic programming; None where that does not apply."""
        if not Partition.applies(self.problem) or self.cap < 0:
            return None
        partition = Partition(self.problem, live, list(self.known), self.cap)
        self.bound = partition.lower_bound(0, self.cap)
        for allowance in _ALLOWANCES:
            time_allowed = self.bound + self.bound * allowance // 1000
            plan = partition.plan(time_allowed) if time_allowed <= self.cap else None
            if plan is not None and is_feasible(self.problem, plan):
                self.offer(plan, -1)
        return partition.pieces(self.cap)

    @property
    def cap(self) -> int:
        """Largest pipeline time that still matters."""
        return self.limit if self.best_time is None else min(self.limit, self.best_time - 1)

    def offer(self, assignment: Assignment, model_time: int) -> None:
        """Take note of a feasible plan whose pipeline time the model believes to be `model_time`."""
        simulation = evaluate(self.problem, assignment)
        exact = simulation.pipeline_time
        if exact > model_time and simulation.critical_path not in self.known:
            self.known[simulation.critical_path] = None
            self.learnt.append(simulation.critical_path)
            self.pending.append(simulation.critical_path)
        if exact <= self.cap:
            self.best, self.best_time = assignment, exact
            if self.on_incumbent is not None:
                self.on_incumbent(self.reduction.restore(assignment), exact)


def solve_stage_problem(
    problem: StageProblem,
    *,
    upper_bound: int | None = None,
    hint: Assignment | None = None,
    cuts: Sequence[PathCut] = (),
    time_limit_s: float | None = None,
    deterministic_limit: float | None = None,
    workers: int = 1,
    seed: int = 0,
    on_incumbent: OnIncumbent | None = None,
    stop: threading.Event | None = None,
) -> StageSolution:
    """Find the plan of a stage problem with the smallest exact pipeline time, with proof.

    Parameters
    ----------
    problem
        Integer tables of one layout.
    upper_bound
        Only plans with a pipeline time up to this (time units) matter.
    hint
        A plan to start from. If it is feasible and within the upper bound it is the first incumbent.
    cuts
        Paths known from earlier solves with the same schedule, pp, vpp and number of micro-batches.
    time_limit_s, deterministic_limit
        Limits over all CP-SAT solves together: wall seconds, and the solver's own reproducible measure.
    workers, seed
        One worker and a fixed seed give the same result every time (unless a wall limit or `stop` cuts in).
    on_incumbent
        Called with (assignment, exact pipeline time) for every improvement.
    stop
        Once set, the solve ends with what is known.

    Raises
    ------
    ModelInvalidError
        CP-SAT refuses the model.

    Notes
    -----
    For a fixed operation order the pipeline time is the maximum of affine functions of the stage times, one per path.
    The model knows some of the paths, so its optimum is a lower bound; the plan it returns is simulated, which gives an
    upper bound and, where the two differ, the path that is missing. Every round removes at least one plan's wrong time,
    so the loop ends. Once a plan is known the model asks for strictly better ones only.
    """
    started = time.perf_counter()
    search = _Search(remove_dominated(problem), cuts, upper_bound, hint, on_incumbent)
    deterministic, solves = 0.0, 0
    status: StageStatus | None = None
    suggestion = search.best or search.hint
    if suggestion is not None:
        search.model.hint(suggestion)
    while status is None:
        if search.cap < search.bound:
            status = _proved(search, upper_bound)
            break
        wall_left = None if time_limit_s is None else time_limit_s - (time.perf_counter() - started)
        effort_left = None if deterministic_limit is None else deterministic_limit - deterministic
        stopped = stop is not None and stop.is_set()
        if stopped or (wall_left is not None and wall_left <= 0) or (effort_left is not None and effort_left <= 0):
            status = "unknown" if search.best is None else "feasible"
            break
        search.model.bound_time(search.bound, search.cap)
        solver = _solver(wall_left, effort_left, workers, seed)
        code = _run(solver, search, stop)
        solves += 1
        deterministic += float(solver.response_proto.deterministic_time)
        if code == cp_model.INFEASIBLE:
            status = _proved(search, upper_bound)
            break
        search.bound = max(search.bound, proven_bound(solver))
        if code != cp_model.OPTIMAL:  # a limit, or a stop
            status = "optimal" if search.cap < search.bound else "unknown" if search.best is None else "feasible"
            break
        if search.pending:
            search.model.add_cuts(search.pending)
            search.pending = []
        if search.best is not None:
            search.model.hint(search.best)
    if status == "optimal" and search.best_time is not None:
        search.bound = search.best_time
    elif status == "no_better":
        search.bound = search.limit + 1
    return StageSolution(
        status,
        None if search.best is None else search.reduction.restore(search.best),
        search.best_time,
        search.bound if search.best_time is None else min(search.bound, search.best_time),
        tuple(search.learnt),
        deterministic,
        time.perf_counter() - started,
        solves,
    )


def _proved(search: _Search, upper_bound: int | None) -> StageStatus:
    """Nothing has a pipeline time up to the cap: what that says."""
    if search.best is not None:
        return "optimal"
    if upper_bound is None or upper_bound >= longest_possible(search.problem):
        return "infeasible"
    return "no_better"


def _solver(wall_s: float | None, effort: float | None, workers: int, seed: int) -> cp_model.CpSolver:
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    solver.parameters.absolute_gap_limit = 0.0
    if wall_s is not None:
        solver.parameters.max_time_in_seconds = wall_s
    if effort is not None:
        solver.parameters.max_deterministic_time = effort
    return solver


def _run(solver: cp_model.CpSolver, search: _Search, stop: threading.Event | None) -> Any:
    """One CP-SAT solve, stoppable by the event; returns the solver's status."""
    callback = _Incumbents(search)
    finished = threading.Event()

    def watch(event: threading.Event) -> None:
        while not finished.is_set():
            if event.wait(0.05):
                solver.stop_search()  # again and again: it does nothing before the solver has started
                finished.wait(0.05)

    watcher = None
    if stop is not None:
        watcher = threading.Thread(target=watch, args=(stop,), daemon=True)
        watcher.start()
    try:
        code = solver.solve(search.model.model, callback)
    finally:
        finished.set()
        if watcher is not None:
            watcher.join()
    if callback.error is not None:
        raise callback.error
    if code == cp_model.MODEL_INVALID:
        search.model.validate()
        raise ModelInvalidError(solver.solution_info())
    return code
