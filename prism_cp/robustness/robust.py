"""Robustness room: the plan with the best worst case over a range of expert loads, searched and bounded.

Whatever a plan's step time does between the ends of the range, its worst case is at least its step time at either end,
which is at least the proved bound over all plans there: the larger of both bounds is a lower bound on every plan's
worst case. The optimum at the highest load is the candidate (at the lowest one the other); `worst_case` bounds its step
time over the whole range from above. Where both meet as integers, no plan has a better worst case.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.plan import NominalPlan, RobustSummary
from prism_cp.result import SearchResult
from prism_cp.robustness.figures import Placed, nominal_plan, robust_figures
from prism_cp.robustness.load_range import LoadRange, at_load
from prism_cp.robustness.worst_case import LoadTables, WorstCase, worst_case
from prism_cp.stage_problem import Assignment

Search = Callable[[Instance, Sequence[tuple[Layout, Assignment]]], SearchResult]


@dataclass(frozen=True)
class RobustChoice:
    """The chosen plan as the result of the search at one end of the range, and how it does over all of it.

    `summary` is None where no plan is known that fits at every load of the range.
    """

    instance: Instance
    result: SearchResult
    summary: RobustSummary | None


def solve_robust(instance: Instance, spread: LoadRange, search: Search) -> RobustChoice:
    """Search at the highest load, then at the lowest, and take the plan with the better worst case."""
    tables = LoadTables(instance)
    high = at_load(instance, spread.high)
    result = search(high, ())
    plan = _placed(result)
    if plan is None or result.interrupted:
        return RobustChoice(high, result, None)
    low = at_load(instance, spread.low)
    balanced = search(low, [(plan.layout, plan.assignment)])
    nominal = _placed(balanced)
    bounds = [found.bound for found in (result, balanced) if found.bound is not None]
    adapted = None
    if nominal is not None and not balanced.interrupted:
        adapted = _in_layout(nominal.layout, high, result, search)
    worst = worst_case(tables, plan.layout, plan.assignment, spread.points)
    choice = (high, result, plan, worst)
    if nominal is not None and (worst.at_most is None or worst.at_most > max(bounds, default=0)):
        other = worst_case(tables, nominal.layout, nominal.assignment, spread.points)
        if _better(other, worst):
            choice = (low, balanced, nominal, other)
    chosen_instance, chosen_result, chosen, worst = choice
    if worst.at_most is None:
        return RobustChoice(high, result, None)
    figures = robust_figures(
        tables,
        spread,
        chosen,
        _record(balanced),
        None if adapted is None else _record(adapted),
        "unknown" if adapted is None else adapted.status,
        worst,
        max(bounds, default=0),
    )
    return RobustChoice(chosen_instance, chosen_result, RobustSummary.model_validate(figures))


def _in_layout(layout: Layout, high: Instance, result: SearchResult, search: Search) -> SearchResult:
    """The best plan of one layout at the highest load; `result` is the best of all layouts there."""
    if result.best is not None and result.best.layout == layout:
        return result
    return search(high.model_copy(update={"layout": high.layout.pinned_to(layout)}), ())


def _record(result: SearchResult) -> NominalPlan | None:
    plan = _placed(result)
    if plan is None or result.objective is None:
        return None
    return nominal_plan(plan, result.objective, result.bound or 0)


def _placed(result: SearchResult) -> Placed | None:
    if result.best is None or result.best.assignment is None:
        return None
    return Placed(result.best.layout, result.best.assignment)


def _better(one: WorstCase, other: WorstCase) -> bool:
    return one.at_most is not None and (other.at_most is None or one.at_most < other.at_most)
