"""Early plans for waiting layouts: the better the incumbent, the fewer layouts have to be decided."""

from __future__ import annotations

from prism_cp import engine
from prism_cp.inputs.layout import Layout
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.result import LayoutOutcome
from prism_cp.search.state import SearchState

PROMISING = 0.99  # a layout is probed when its bound is below this share of the incumbent
MOST_PROBES = 4  # at a time


def probe(state: SearchState, cost_model: CostModel) -> None:
    """Look for plans of the waiting layouts of least bound by annealing alone; those probed are contested from then on.

    It stops where one more cannot help much.
    """
    state.drop_waiting()
    for _ in range(MOST_PROBES):
        limit = state.target_s if state.objective is None else PROMISING * state.target_s
        found = state.waiting.least(limit, state.stopped)
        state.drop_waiting()
        if found is None or state.stopped():
            return
        seconds, layout = found
        state.waiting.take(layout)
        state.contested.append(probed(state, cost_model, layout, state.units(seconds)))
        state.drop_waiting()


def probed(state: SearchState, cost_model: CostModel, layout: Layout, bound: int) -> LayoutOutcome:
    """A layout with its stage problem and the plan found, which becomes the incumbent if it is better."""
    state.report()
    problem = build_stage_problem(state.instance, layout, cost_model)
    found = engine.early_plan(problem, state.options.seed, state.stop)
    if found is None:
        return LayoutOutcome(layout, "open", bound, problem=problem)
    plan, pipeline_time = found
    outcome = LayoutOutcome(layout, "open", bound, pipeline_time + problem.barrier, "", problem, plan)
    state.improve(outcome)
    return outcome
