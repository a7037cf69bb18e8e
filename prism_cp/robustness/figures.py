"""Robustness room: what a robust plan and the plan it is compared with imply over a range of loads; no search."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from prism_cp.inputs.layout import Layout
from prism_cp.plan import NominalPlan, PlanLayout, RobustPoint
from prism_cp.plan_builder import simulated_time
from prism_cp.result import Status
from prism_cp.robustness.load_range import LoadRange
from prism_cp.robustness.worst_case import LoadTables, Simulate, WorstCase, headroom, step_time
from prism_cp.stage_problem import Assignment

GIB = 2**30


@dataclass(frozen=True)
class Placed:
    """A layout with boundaries and strategy counts."""

    layout: Layout
    assignment: Assignment


def robust_figures(
    tables: LoadTables,
    spread: LoadRange,
    plan: Placed,
    nominal: NominalPlan | None,
    adapted: NominalPlan | None,
    adapted_status: Status,
    worst: WorstCase,
    lower_bound: int,
    simulate: Simulate = simulated_time,
) -> dict[str, Any]:
    """The fields of `prism_cp.plan.RobustSummary`.

    Parameters
    ----------
    nominal
        The best plan known at the lowest load.
    adapted, adapted_status
        The best plan known in its layout at the highest load, and how that search ended.
    worst
        Of `plan` over `spread`.
    lower_bound
        No plan's worst case is smaller, in time units.
    """
    unit = tables.instance.time_unit_s
    compared = None
    if nominal is not None:
        compared = Placed(nominal.layout.layout(), Assignment(nominal.boundaries, nominal.counts))
    points = tuple(_point(tables, load, plan, compared, simulate) for load in spread.points)
    first, last = points[0], points[-1]
    price = regret = adapted_regret = None
    if nominal is not None and first.step_time is not None:
        price = float(Fraction(first.step_time, nominal.objective) - 1)
    if last.nominal_step_time is not None and last.step_time is not None:
        regret = float(Fraction(last.nominal_step_time, last.step_time) - 1)
    if adapted is not None and last.step_time is not None:
        adapted_regret = float(Fraction(adapted.objective, last.step_time) - 1)
    return {
        "parameter": "load",
        "low": spread.low,
        "high": spread.high,
        "proved": worst.at_most == lower_bound,
        "lower_bound": lower_bound,
        "worst_case_at_least": worst.at_least,
        "worst_case_at_most": worst.at_most,
        "worst_case_s": None if worst.at_most is None else worst.at_most * unit,
        "bounded_loads": worst.loads,
        "nominal": nominal,
        "adapted": adapted,
        "adapted_status": adapted_status,
        "price": price,
        "regret": regret,
        "adapted_regret": adapted_regret,
        "points": points,
    }


def _point(tables: LoadTables, load: float, plan: Placed, nominal: Placed | None, simulate: Simulate) -> RobustPoint:
    time, free = _evaluated(tables, load, plan, simulate)
    other, other_free = (None, None) if nominal is None else _evaluated(tables, load, nominal, simulate)
    unit = tables.instance.time_unit_s
    return RobustPoint(
        load=load,
        step_time=time,
        step_time_s=None if time is None else time * unit,
        headroom_gib=free,
        nominal_step_time=other,
        nominal_step_time_s=None if other is None else other * unit,
        nominal_headroom_gib=other_free,
    )


def _evaluated(tables: LoadTables, load: float, plan: Placed, simulate: Simulate) -> tuple[int | None, float]:
    """Step time (None where the plan does not fit) and head-room in GiB of the fullest rank."""
    problem = tables.problem(plan.layout, load)
    free = headroom(problem, plan.assignment)
    time = step_time(problem, plan.assignment, simulate) if free >= 0 else None
    return time, free * tables.instance.memory_unit_bytes / GIB


def nominal_plan(plan: Placed, objective: int, bound: int) -> NominalPlan:
    """The record of the plan that is best under one load."""
    return NominalPlan(
        layout=PlanLayout.of(plan.layout),
        boundaries=plan.assignment.boundaries,
        counts=plan.assignment.counts,
        objective=objective,
        bound=bound,
    )
