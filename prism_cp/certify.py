"""Certificates: how often, and by what, a result was proved besides the search that found it.

Levels, weakest first
---------------------
``checked``
    The solver-free checker recomputed legality, memory and time of the plan.
``bound``
    Incumbent and bound are equal integers.
``reproved``
    The joint model (other encoding), or where it is too slow CP-SAT over columns, or its stage model with another seed,
    finds nothing better among the layouts that the search opened.
``cross-engine``
    HiGHS, on the linear export of the best layout's stage problem, finds the same optimum.
``exhaustive``
    Enumeration of every plan of every layout finds the same optimum (tiny instances only).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from prism_cp.baselines.exhaustive import count_plans, exhaustive_layouts
from prism_cp.cp.exact import evaluate, static_cuts
from prism_cp.cp.export import solve_with_highs
from prism_cp.cp.joint import prove_nothing_better
from prism_cp.cp.solve import solve_stage_problem
from prism_cp.inputs.instance import Instance
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.layouts.admissible import AdmissibleLayouts, all_layouts
from prism_cp.result import LayoutOutcome, SearchResult
from prism_cp.second_proof import prove_no_plan

GROUP = 8  # layouts in one joint model
JOINT_LIMIT_S = 20.0  # then one layout at a time
DEFAULT_LIMIT_S = 60.0  # of one step, where the user gave none
MOST_PATHS_ADDED = 100  # rounds of HiGHS
MOST_EXHAUSTIVE_LAYOUTS = 5_000
MOST_EXHAUSTIVE_PLANS = 2_000_000


@dataclass(frozen=True)
class Certificate:
    """Levels reached, and for each what was done."""

    levels: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


def certify(instance: Instance, result: SearchResult, time_limit_s: float | None = None, seed: int = 1) -> Certificate:
    """Prove a result again, by other means.

    `checked` is not decided here: whoever builds the plan runs the checker on it and adds the level.
    """
    levels: list[str] = []
    details: dict[str, Any] = {}
    if result.proved:
        levels.append("bound")
        details["bound"] = {"objective": result.objective, "bound": result.bound}
    time_limit_s = DEFAULT_LIMIT_S if time_limit_s is None else time_limit_s
    if result.proved and result.best is not None and result.objective is not None:
        if _reprove(result, details, time_limit_s, seed):
            levels.append("reproved")
        if _cross_engine(result.best, result.objective, details, time_limit_s, seed):
            levels.append("cross-engine")
        if _exhaustive(instance, result.objective, details):
            levels.append("exhaustive")
    return Certificate(tuple(levels), details)


def _reprove(result: SearchResult, details: dict[str, Any], time_limit_s: float, seed: int) -> bool:
    """Nothing better in any layout that the search opened, by the joint model or, where that is too slow, one layout
    after another."""
    assert result.objective is not None
    assert result.best is not None
    opened = [outcome for outcome in result.opened if outcome.problem is not None]
    candidates = [outcome for outcome in opened if outcome.lower_bound <= result.objective]
    if all(outcome.layout != result.best.layout for outcome in candidates):
        candidates.append(result.best)
    proved = {"joint_model": 0, "columns": 0, "stage_model": 0}
    for start in range(0, len(candidates), GROUP):
        group = candidates[start : start + GROUP]
        pairs = [(outcome.layout, outcome.problem) for outcome in group if outcome.problem is not None]
        answer = prove_nothing_better(
            pairs, result.objective - 1, time_limit_s=min(JOINT_LIMIT_S, time_limit_s), seed=seed
        )
        if answer is None:
            answer = True
            for outcome in group:
                alone = None
                for name, refuted in (("columns", _refuted_by_columns), ("stage_model", _refuted_by_stage_model)):
                    if alone is None:
                        alone = refuted(outcome, result.objective, time_limit_s, seed)
                        proved[name] += alone is True
                answer = answer and alone is not False
        elif answer:
            proved["joint_model"] += len(group)
        if answer is False:
            details["reproved"] = {"contradiction": "another model has a better plan", "layouts": len(group)}
            return False
    details["reproved"] = {
        "layouts_opened": len(candidates),
        **{f"by_{name}": count for name, count in proved.items()},
        "layouts_left_to_bounds": result.statistics.layouts_total - sum(proved.values()),
    }
    return sum(proved.values()) == len(candidates)


def _refuted_by_columns(outcome: LayoutOutcome, objective: int, time_limit_s: float, seed: int) -> bool | None:
    """CP-SAT over columns finds nothing below `objective` in one layout: True; a plan: False; a limit was met: None."""
    problem = outcome.problem
    assert problem is not None
    target = objective - 1 - problem.barrier
    verdict = prove_no_plan(problem, target, outcome.cuts, time_limit_s=time_limit_s, seed=seed)
    return {"no_plan": True, "plan": False, "unknown": None}[verdict.status]


def _refuted_by_stage_model(outcome: LayoutOutcome, objective: int, time_limit_s: float, seed: int) -> bool | None:
    """CP-SAT finds nothing below `objective` in one layout: True; a plan: False; a limit was met: None.

    Paths learnt by the search are handed on: a path of the event graph is a valid cut whoever found it.
    """
    problem = outcome.problem
    assert problem is not None
    solution = solve_stage_problem(
        problem, upper_bound=objective - 1 - problem.barrier, cuts=outcome.cuts, time_limit_s=time_limit_s, seed=seed
    )
    if solution.status in ("no_better", "infeasible"):
        return True
    return None if solution.assignment is None else False


def _cross_engine(best: LayoutOutcome, objective: int, details: dict[str, Any], time_limit_s: float, seed: int) -> bool:
    """HiGHS and CP-SAT agree on the best layout's stage problem."""
    problem = best.problem
    assert problem is not None
    solution = solve_stage_problem(problem, hint=best.assignment, cuts=best.cuts, time_limit_s=time_limit_s, seed=seed)
    expected = objective - problem.barrier
    cuts = [*static_cuts(problem), *solution.cuts]
    highs = solve_with_highs(problem, cuts, time_limit_s)
    for _ in range(MOST_PATHS_ADDED):
        # Too small a time means that HiGHS lacks the path that makes its plan slow.
        if highs.assignment is None or highs.objective is None or highs.objective >= expected:
            break
        path = evaluate(problem, highs.assignment).critical_path
        if path in cuts:
            break
        cuts.append(path)
        highs = solve_with_highs(problem, cuts, time_limit_s)
    details["cross-engine"] = {
        "highs_status": highs.status,
        "highs_objective": highs.objective,
        "highs_bound": highs.bound,
        "cp_sat_pipeline_time": solution.pipeline_time,
        "cuts": len(cuts),
    }
    return bool(highs.status == "optimal" and highs.objective == expected and solution.pipeline_time == expected)


def _exhaustive(instance: Instance, objective: int, details: dict[str, Any]) -> bool:
    """Enumeration agrees; False also when the instance is too large to enumerate."""
    admissible = AdmissibleLayouts(instance)
    if admissible.num_layouts > MOST_EXHAUSTIVE_LAYOUTS:
        return False
    cost_model = CostModel(instance)
    problems = [(layout, build_stage_problem(instance, layout, cost_model)) for layout in all_layouts(instance)]
    plans = sum(count_plans(problem) for _, problem in problems)
    if plans > MOST_EXHAUSTIVE_PLANS:
        return False
    best = exhaustive_layouts(problems)
    details["exhaustive"] = {"layouts": len(problems), "plans": plans, "objective": None if best is None else best[0]}
    return best is not None and best[0] == objective
