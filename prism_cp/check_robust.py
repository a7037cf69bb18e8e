"""Check room: what a plan claims about a range of expert loads, recomputed without any solver.

The bounds over all plans, `lower_bound` and `nominal.bound`, are the solver's claims, like `Plan.bound`: they are
compared with the plans that are known.
"""

from __future__ import annotations

from collections.abc import Iterator

from prism_cp.check_findings import Finding, differences
from prism_cp.check_layout import layout_faults
from prism_cp.errors import UsageError
from prism_cp.inputs.instance import Instance
from prism_cp.plan import NominalPlan, Plan, RobustSummary
from prism_cp.robustness.figures import Placed, robust_figures
from prism_cp.robustness.load_range import LoadRange, at_load, require_load
from prism_cp.robustness.worst_case import LoadTables, Simulate, bounded_by, headroom, step_time
from prism_cp.stage_problem import Assignment, structure_errors


def robust_findings(
    plan: Plan, summary: RobustSummary, instance: Instance, assignment: Assignment, simulate: Simulate
) -> Iterator[Finding]:
    """Everything `Plan.robust` states, for a plan that is right at its own load.

    Parameters
    ----------
    instance : Instance
        The plan's.
    assignment : Assignment
        The plan's.
    simulate : callable
        Pipeline time of an assignment, time units.
    """
    assert plan.layout is not None
    try:
        require_load(instance)
    except UsageError as error:
        yield Finding("robust", str(error))
        return
    loads = summary.bounded_loads
    if not 1 <= summary.low < summary.high:
        yield Finding("robust.low", f"{summary.low} … {summary.high} is no range of loads")
        return
    if loads != tuple(sorted(set(loads))) or loads[:1] != (summary.low,) or loads[-1:] != (summary.high,):
        yield Finding("robust.bounded_loads", "do not rise from low to high")
        return
    if instance.job.expert_load not in (summary.low, summary.high):
        yield Finding("robust.low", f"the plan's own load {instance.job.expert_load} is no end of the range")
        return
    tables = LoadTables(instance)
    if summary.nominal is not None:
        faults = [*_nominal_findings(summary.nominal, summary.low, tables, simulate)]
        yield from faults
        if faults:
            return
    placed = Placed(plan.layout.layout(), assignment)
    worst = bounded_by(tables, placed.layout, assignment, loads, simulate)
    spread = LoadRange(summary.low, summary.high)
    figures = robust_figures(tables, spread, placed, summary.nominal, worst, summary.lower_bound, simulate)
    expected = RobustSummary.model_validate(figures)
    yield from differences(summary, expected, "robust")
    if worst.at_most is not None and summary.lower_bound > worst.at_most:
        yield Finding("robust.lower_bound", f"{summary.lower_bound} is above the plan's worst case {worst.at_most}")
    bounds = [] if summary.nominal is None else [summary.nominal.bound]
    if instance.job.expert_load == summary.high and plan.bound is not None:
        bounds.append(plan.bound)
    if bounds and summary.lower_bound < max(bounds):
        yield Finding("robust.lower_bound", f"{summary.lower_bound} is below the bound {max(bounds)} at one load")


def _nominal_findings(nominal: NominalPlan, low: float, tables: LoadTables, simulate: Simulate) -> Iterator[Finding]:
    """The plan compared with is legal, fits and takes what is said at the lowest load."""
    layout = nominal.layout.layout()
    yield from differences(nominal.layout.edp, layout.edp, "robust.nominal.layout.edp")
    faults = layout_faults(at_load(tables.instance, low), layout)
    yield from (Finding(f"robust.nominal.layout.{field}", text) for field, text in faults)
    if faults:
        return
    problem, assignment = tables.problem(layout, low), Assignment(nominal.boundaries, nominal.counts)
    errors = structure_errors(problem, assignment)
    yield from (Finding("robust.nominal.counts", text) for text in errors)
    if errors:
        return
    if headroom(problem, assignment) < 0:
        yield Finding("robust.nominal.counts", f"does not fit at load {low}")
    yield from differences(nominal.objective, step_time(problem, assignment, simulate), "robust.nominal.objective")
    if nominal.bound > nominal.objective:
        yield Finding("robust.nominal.bound", f"{nominal.bound} is above the objective {nominal.objective}")
