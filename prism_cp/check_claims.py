"""Check room: status, proof, gap and search counts of a plan against each other."""

from __future__ import annotations

from collections.abc import Iterator

from prism_cp.check_findings import Finding, differences
from prism_cp.inputs.instance import Instance
from prism_cp.plan import Plan
from prism_cp.plan_builder import claims, flops_convention


def claim_findings(plan: Plan, instance: Instance) -> Iterator[Finding]:
    """Status, proof, gap, units and counts against each other."""
    expected = claims(plan.objective, plan.bound, instance.time_unit_s)
    expected["time_unit_s"], expected["memory_unit_bytes"] = instance.time_unit_s, instance.memory_unit_bytes
    expected["flops_convention"] = flops_convention(instance)
    yield from differences({key: getattr(plan, key) for key in expected}, expected, "")
    if plan.objective is not None and plan.bound is not None and plan.bound > plan.objective:
        yield Finding("bound", f"{plan.bound} is above the objective {plan.objective}")
    if (plan.objective is None) != (plan.layout is None):
        yield Finding(
            "objective", f"{plan.objective} although layout is {'absent' if plan.layout is None else 'given'}"
        )
    if plan.layout is not None and plan.pipeline_time is not None and plan.barrier is not None:
        yield from differences(plan.objective, plan.pipeline_time + plan.barrier, "objective")
    met = plan.objective is not None and plan.objective == plan.bound
    yield from differences(plan.proved, met or plan.status == "infeasible", "proved")
    if plan.objective is not None:
        yield from differences(plan.status, "optimal" if met else "feasible", "status")
    elif plan.status not in ("infeasible", "unknown"):
        yield Finding("status", f"{plan.status!r} without a plan")
    yield from _search_findings(plan)


def _search_findings(plan: Plan) -> Iterator[Finding]:
    search = plan.search
    ended = search.pruned + search.no_better + search.solved + search.infeasible + search.open
    if search.layouts_total != ended:
        yield Finding("search.layouts_total", f"{search.layouts_total}, the endings add up to {ended}")
    if plan.proved and search.open:
        yield Finding("search.open", f"{search.open} layouts undecided in a proved result")
    if plan.status == "infeasible" and search.infeasible != search.layouts_total:
        yield Finding("search.infeasible", f"{search.infeasible} of {search.layouts_total} in an infeasible result")
    levels = set(plan.certificate.levels)
    if len(levels) < len(plan.certificate.levels):
        yield Finding("certificate.levels", "a level is named twice")
    if ("bound" in levels) != plan.proved:
        yield Finding(
            "certificate.levels", f"'bound' is {'there' if 'bound' in levels else 'missing'}, proved is {plan.proved}"
        )
    for level in sorted(levels & {"reproved", "cross-engine", "exhaustive"}):
        if not plan.proved:
            yield Finding("certificate.levels", f"{level!r} although the result is not proved")
        if level not in plan.certificate.details:
            yield Finding("certificate.levels", f"{level!r} without its details")
