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
    faults: list[Finding] = []
    for name, load in (("nominal", summary.low), ("adapted", summary.high)):
        known = getattr(summary, name)
        if known is not None:
            faults += _known_findings(known, f"robust.{name}", load, tables, simulate)
    faults += _adapted_findings(summary)
    yield from faults
    if faults:
        return
    placed = Placed(plan.layout.layout(), assignment)
    worst = bounded_by(tables, placed.layout, assignment, loads, simulate)
    spread = LoadRange(summary.low, summary.high)
    figures = robust_figures(
        tables,
        spread,
        placed,
        summary.nominal,
        summary.adapted,
        summary.adapted_status,
        worst,
        summary.lower_bound,
        simulate,
    )
    expected = RobustSummary.model_validate(figures)
    yield from differences(summary, expected, "robust")
    if worst.at_most is not None and summary.lower_bound > worst.at_most:
        yield Finding("robust.lower_bound", f"{summary.lower_bound} is above the plan's worst case {worst.at_most}")
    bounds = [] if summary.nominal is None else [summary.nominal.bound]
    if instance.job.expert_load == summary.high and plan.bound is not None:
        bounds.append(plan.bound)
    if bounds and summary.lower_bound < max(bounds):
        yield Finding("robust.lower_bound", f"{summary.lower_bound} is below the bound {max(bounds)} at one load")


def _adapted_findings(summary: RobustSummary) -> Iterator[Finding]:
    """The adapted plan is one of the nominal layout, and its status fits what is known of it."""
    adapted, status = summary.adapted, summary.adapted_status
    if (adapted is not None) != (status in ("optimal", "feasible")):
        yield Finding("robust.adapted_status", f"{status!r} {'with' if adapted is not None else 'without'} a plan")
    if adapted is None:
        return
    if (adapted.objective == adapted.bound) != (status == "optimal"):
        yield Finding("robust.adapted_status", f"{status!r} with objective {adapted.objective}, bound {adapted.bound}")
    if summary.nominal is None or adapted.layout != summary.nominal.layout:
        yield Finding("robust.adapted.layout", "is not that of the nominal plan")


def _known_findings(
    known: NominalPlan, key: str, load: float, tables: LoadTables, simulate: Simulate
) -> Iterator[Finding]:
    """A plan that others are compared with is legal, fits and takes what is said at its load."""
    layout = known.layout.layout()
    yield from differences(known.layout.edp, layout.edp, f"{key}.layout.edp")
    faults = layout_faults(at_load(tables.instance, load), layout)
    yield from (Finding(f"{key}.layout.{field}", text) for field, text in faults)
    if faults:
        return
    problem, assignment = tables.problem(layout, load), Assignment(known.boundaries, known.counts)
    errors = structure_errors(problem, assignment)
    yield from (Finding(f"{key}.counts", text) for text in errors)
    if errors:
        return
    if headroom(problem, assignment) < 0:
        yield Finding(f"{key}.counts", f"does not fit at load {load}")
    yield from differences(known.objective, step_time(problem, assignment, simulate), f"{key}.objective")
    if known.bound > known.objective:
        yield Finding(f"{key}.bound", f"{known.bound} is above the objective {known.objective}")
