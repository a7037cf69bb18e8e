"""The joint model: layout and stage problem in one CP-SAT model, in an encoding of its own.

Layout fields are integer variables tied by a table to the admissible layouts; every layout's linear rows hold only if
it is chosen. Time is modelled by explicit start times where the event graph is small, so that nothing depends on paths,
and by paths (with lazy critical paths) otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from ortools.sat.python import cp_model

from prism_cp.cp.exact import evaluate, live_vectors, static_cuts
from prism_cp.cp.linear_rows import LinearRows
from prism_cp.cp.model import ModelInvalidError
from prism_cp.cp.objective import longest_possible, proven_bound
from prism_cp.inputs.layout import Layout
from prism_cp.pipeline import PathCut
from prism_cp.stage_problem import Assignment, StageProblem

Candidates = Sequence[tuple[Layout, StageProblem]]
JointStatus = Literal["optimal", "infeasible", "feasible", "unknown"]

START_TIME_LIMIT = 400  # operations of a layout up to which its event graph is spelled out


@dataclass(frozen=True)
class JointSolution:
    """The joint model's answer.

    Attributes
    ----------
    status
        ``optimal``: `objective` equals `bound`; ``infeasible``: no layout has a plan within the upper bound.
    objective : int or None
        Exact pipeline time plus barrier of the plan, in time units.
    bound : int
        Proven lower bound over all candidates.
    """

    status: JointStatus
    objective: int | None
    bound: int
    layout: Layout | None
    assignment: Assignment | None
    deterministic_time: float
    num_solves: int


class JointModel:
    """One CP-SAT model over all candidates.

    Attributes
    ----------
    model : CpModel
    fields : dict of str to IntVar
        Layout fields; those that are no numbers count positions in `field_values`.
    objective : IntVar
        Pipeline time plus barrier of the chosen layout.
    chosen : list of IntVar
        One literal per candidate.
    """

    def __init__(self, candidates: Candidates, upper_bound: int | None, start_time_limit: int) -> None:
        self.candidates = list(candidates)
        self.model = cp_model.CpModel()
        limits = [longest_possible(problem) + problem.barrier for _, problem in self.candidates]
        self.limit = max(limits, default=0) if upper_bound is None else upper_bound
        self.objective = self.model.new_int_var(0, max(self.limit, 0), "pipeline time and barrier")
        if self.limit < 0:
            self.model.add_bool_or([])
        self.chosen = [self.model.new_bool_var(f"layout {i}") for i in range(len(self.candidates))]
        self.model.add_exactly_one(self.chosen)
        self.rows: list[LinearRows] = []
        self.columns: list[list[Any]] = []
        self.uses_paths: list[bool] = []
        self._posted: list[int] = []  # rows of every candidate that the model has already
        self._post_fields()
        for index, (_, problem) in enumerate(self.candidates):
            self._post_candidate(index, problem, start_time_limit)
        self.model.minimize(self.objective)

    def _post_fields(self) -> None:
        """Field variables, and the table of admissible layouts that links them to the candidate's number."""
        self.fields: dict[str, Any] = {}
        self.field_values: dict[str, list[Any]] = {}
        columns = []
        for name in (f.name for f in fields(Layout)):
            values = [getattr(layout, name) for layout, _ in self.candidates]
            if all(isinstance(value, int) for value in values):
                numbers = [int(value) for value in values]
            else:
                self.field_values[name] = sorted(set(values))
                numbers = [self.field_values[name].index(value) for value in values]
            self.fields[name] = self.model.new_int_var_from_domain(cp_model.Domain.from_values(numbers), name)
            columns.append(numbers)
        number = self.model.new_int_var(0, max(0, len(self.candidates) - 1), "layout")
        tuples = [tuple(row) for row in zip(*columns, range(len(self.candidates)), strict=True)]
        self.model.add_allowed_assignments([*self.fields.values(), number], tuples)
        self.model.add_map_domain(number, self.chosen)

    def _post_candidate(self, index: int, problem: StageProblem, start_time_limit: int) -> None:
        """The candidate's rows, enforced by its literal; its operations' starts or its schedule's known paths."""
        limit = min(self.limit - problem.barrier, longest_possible(problem))
        rows = LinearRows(problem, live_vectors(problem), max(limit, 0))
        if limit < 0:
            self.model.add_bool_and(~self.chosen[index])
        self.uses_paths.append(rows.num_ops() > start_time_limit)
        if self.uses_paths[-1]:
            rows.add_cuts(static_cuts(problem))
        else:
            rows.add_start_times()
        self.rows.append(rows)
        self.columns.append(
            [self.model.new_int_var(column.lower, column.upper, f"{index} {column.name}") for column in rows.columns]
        )
        self._posted.append(0)
        self._post_new_rows(index)
        [pipeline_time] = rows.pipeline_time.terms
        literal = self.chosen[index]
        self.model.add(self.objective >= self.columns[index][pipeline_time] + problem.barrier).only_enforce_if(literal)

    def _post_new_rows(self, index: int) -> None:
        columns, literal = self.columns[index], self.chosen[index]
        for row in self.rows[index].rows[self._posted[index] :]:
            form = cp_model.LinearExpr.weighted_sum([columns[c] for c in row.terms], list(row.terms.values()))
            low = cp_model.INT_MIN if row.lower is None else row.lower
            high = cp_model.INT_MAX if row.upper is None else row.upper
            self.model.add_linear_constraint(form, low, high).only_enforce_if(literal)
        self._posted[index] = len(self.rows[index].rows)

    def add_cut(self, index: int, cut: PathCut) -> None:
        """One more path for one candidate."""
        self.rows[index].add_cuts([cut])
        self._post_new_rows(index)

    def extract(self, solver: Any) -> tuple[int, Assignment]:
        """The chosen candidate's number and its plan."""
        index = next(i for i, literal in enumerate(self.chosen) if solver.boolean_value(literal))
        return index, self.rows[index].extract([int(solver.value(column)) for column in self.columns[index]])


def build_joint_model(
    candidates: Candidates, *, upper_bound: int | None = None, start_time_limit: int = START_TIME_LIMIT
) -> JointModel:
    """Build the joint model.

    Parameters
    ----------
    candidates
        Admissible layouts with their stage problems.
    upper_bound
        Only plans whose pipeline time plus barrier is at most this matter.
    start_time_limit
        Most operations of a layout for which start times are spelled out.
    """
    return JointModel(candidates, upper_bound, start_time_limit)


def solve_joint(
    candidates: Candidates,
    *,
    upper_bound: int | None = None,
    start_time_limit: int = START_TIME_LIMIT,
    time_limit_s: float | None = None,
    deterministic_limit: float | None = None,
    workers: int = 1,
    seed: int = 0,
    first_only: bool = False,
) -> JointSolution:
    """Minimise pipeline time plus barrier over layouts and plans at once.

    Parameters
    ----------
    first_only
        Stop at the first plan within the upper bound (status ``feasible``): enough to refute a claimed optimum.

    Raises
    ------
    ModelInvalidError
        CP-SAT refuses the model.
    """
    if not candidates:
        return JointSolution("infeasible", None, 0, None, None, 0.0, 0)
    started = time.perf_counter()
    joint = build_joint_model(candidates, upper_bound=upper_bound, start_time_limit=start_time_limit)
    best: tuple[int, Layout, Assignment] | None = None
    bound, deterministic, solves = 0, 0.0, 0

    def answer(status: JointStatus) -> JointSolution:
        objective, layout, assignment = (None, None, None) if best is None else best
        proved = bound if objective is None else min(bound, objective)
        return JointSolution(status, objective, proved, layout, assignment, deterministic, solves)

    while True:
        solver = cp_model.CpSolver()
        solver.parameters.num_workers, solver.parameters.random_seed = workers, seed
        solver.parameters.absolute_gap_limit = 0.0
        solver.parameters.stop_after_first_solution = first_only
        if time_limit_s is not None:
            solver.parameters.max_time_in_seconds = max(0.0, time_limit_s - (time.perf_counter() - started))
        if deterministic_limit is not None:
            solver.parameters.max_deterministic_time = max(0.0, deterministic_limit - deterministic)
        code = solver.solve(joint.model)
        solves += 1
        deterministic += float(solver.response_proto.deterministic_time)
        if code == cp_model.MODEL_INVALID:
            raise ModelInvalidError(joint.model.validate())
        if code == cp_model.INFEASIBLE:
            bound = joint.limit + 1 if best is None else best[0]
            return answer("infeasible" if best is None else "optimal")
        bound = max(bound, proven_bound(solver))
        if code == cp_model.UNKNOWN:
            return answer("unknown" if best is None else "feasible")
        index, assignment = joint.extract(solver)
        layout, problem = joint.candidates[index]
        simulation = evaluate(problem, assignment)
        value = simulation.pipeline_time + problem.barrier
        if value <= joint.limit and (best is None or value < best[0]):
            best = (value, layout, assignment)
        if best is not None and best[0] <= bound:
            return answer("optimal")
        if (best is not None and first_only) or (code == cp_model.FEASIBLE and not first_only):
            return answer("unknown" if best is None else "feasible")
        joint.add_cut(index, simulation.critical_path)


def prove_nothing_better(
    candidates: Candidates,
    upper_bound: int,
    *,
    time_limit_s: float | None = None,
    deterministic_limit: float | None = None,
    workers: int = 1,
    seed: int = 1,
) -> bool | None:
    """Whether no plan of any candidate has pipeline time plus barrier up to `upper_bound`.

    Returns
    -------
    bool or None
        True: proved. False: there is such a plan. None: a limit was met.
    """
    solution = solve_joint(
        candidates,
        upper_bound=upper_bound,
        time_limit_s=time_limit_s,
        deterministic_limit=deterministic_limit,
        workers=workers,
        seed=seed,
        first_only=True,
    )
    if solution.status == "infeasible":
        return True
    return False if solution.objective is not None else None
