"""The linear encoding of a stage problem as MPS or LP text, and solved by HiGHS: a second solver's voice."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import highspy
import numpy as np

from prism_cp.cp.exact import cut_value, is_feasible, live_vectors
from prism_cp.cp.linear_rows import LinearRows
from prism_cp.cp.objective import longest_possible
from prism_cp.errors import UsageError
from prism_cp.pipeline import PathCut
from prism_cp.silent_highs import SilentHighs
from prism_cp.stage_problem import Assignment, StageProblem

HighsStatus = Literal["optimal", "infeasible", "feasible", "unknown"]


@dataclass(frozen=True)
class HighsSolution:
    """What HiGHS says about the linear model, in time units.

    `objective` is the longest of the given paths under the plan, recomputed in integers; it is the plan's exact
    pipeline time only if no other path is longer. `bound` is HiGHS's dual bound rounded up. HiGHS computes in floating
    point: its answer confirms, it proves nothing by itself.
    """

    status: HighsStatus
    objective: int | None
    bound: int
    assignment: Assignment | None


def linear_model(problem: StageProblem, cuts: Sequence[PathCut], upper_bound: int | None = None) -> LinearRows:
    """The pure mixed-integer linear model of a stage problem with the given paths as its time rows."""
    limit = longest_possible(problem) if upper_bound is None else upper_bound
    rows = LinearRows(problem, live_vectors(problem), limit)
    rows.add_cuts(cuts)
    return rows


def write_linear_model(problem: StageProblem, cuts: Sequence[PathCut], path: Path) -> None:
    """Write the linear model; the file's ending says the format.

    Raises
    ------
    UsageError
        The ending is neither ``.mps`` nor ``.lp``, or the file cannot be written.
    """
    if path.suffix not in (".mps", ".lp"):
        raise UsageError(f"{path}: unknown model format {path.suffix!r} (accepted: .mps, .lp)")
    highs = _highs(linear_model(problem, cuts))
    if highs.writeModel(str(path)) == highspy.HighsStatus.kError:
        raise UsageError(f"{path}: cannot be written")


def solve_with_highs(
    problem: StageProblem, cuts: Sequence[PathCut], time_limit_s: float | None = None, upper_bound: int | None = None
) -> HighsSolution:
    """Minimise the longest of the given paths with HiGHS.

    Parameters
    ----------
    cuts
        Paths that make up the time; with the paths a CP-SAT solve ended with, both optima must be equal.
    time_limit_s
        Wall seconds; None: none.
    upper_bound
        Only pipeline times up to this one matter; ``infeasible`` then means that there is none.
    """
    if upper_bound is not None and upper_bound < 0:
        return HighsSolution("infeasible", None, 0, None)
    rows = linear_model(problem, cuts, upper_bound)
    highs = _highs(rows)
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("mip_abs_gap", 0.5)  # the objective is an integer
    if time_limit_s is not None:
        highs.setOptionValue("time_limit", float(time_limit_s))
    highs.run()
    status, info = highs.getModelStatus(), highs.getInfo()
    if status in (highspy.HighsModelStatus.kInfeasible, highspy.HighsModelStatus.kUnboundedOrInfeasible):
        return HighsSolution("infeasible", None, 0, None)
    bound = max(0, int(np.ceil(info.mip_dual_bound - 0.5))) if np.isfinite(info.mip_dual_bound) else 0
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return HighsSolution("unknown", None, bound, None)
    assignment = rows.extract([round(value) for value in highs.getSolution().col_value])
    if not is_feasible(problem, assignment):  # within HiGHS's tolerance, but not in integers
        return HighsSolution("unknown", None, bound, None)
    objective = max(cut_value(problem, cut, assignment) for cut in cuts)
    if status == highspy.HighsModelStatus.kOptimal:
        return HighsSolution("optimal", objective, min(bound, objective), assignment)
    return HighsSolution("feasible", objective, min(bound, objective), assignment)


def _highs(rows: LinearRows) -> Any:
    """A silent HiGHS object that holds the model."""
    highs = SilentHighs()
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = len(rows.columns), len(rows.rows)
    objective = np.zeros(len(rows.columns))
    objective[next(iter(rows.pipeline_time.terms))] = 1.0
    lp.col_cost_ = objective
    lp.col_lower_ = np.array([column.lower for column in rows.columns], dtype=np.float64)
    lp.col_upper_ = np.array([column.upper for column in rows.columns], dtype=np.float64)
    lp.integrality_ = [
        highspy.HighsVarType.kInteger if column.kind == "choice" else highspy.HighsVarType.kContinuous
        for column in rows.columns
    ]
    infinity = highspy.kHighsInf
    lp.row_lower_ = np.array([-infinity if row.lower is None else row.lower for row in rows.rows], dtype=np.float64)
    lp.row_upper_ = np.array([infinity if row.upper is None else row.upper for row in rows.rows], dtype=np.float64)
    starts = np.cumsum([0, *(len(row.terms) for row in rows.rows)])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = starts
    lp.a_matrix_.index_ = np.array([column for row in rows.rows for column in row.terms], dtype=np.int32)
    lp.a_matrix_.value_ = np.array([a for row in rows.rows for a in row.terms.values()], dtype=np.float64)
    lp.col_names_ = [column.name for column in rows.columns]
    lp.row_names_ = [row.name for row in rows.rows]
    if highs.passModel(lp) == highspy.HighsStatus.kError:
        raise RuntimeError("HiGHS refuses the linear model")
    return highs
