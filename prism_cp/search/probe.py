"""Early plans for postponed layouts: the more of them are known, the fewer layouts have to be decided."""

from __future__ import annotations

from prism_cp import engine
from prism_cp.inputs.layout import Layout
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.result import LayoutOutcome
from prism_cp.search.state import SearchState

PROBE_NODES = 100_000  # of the engine's walks; enough for plans, far from a proof
PROMISING = 0.99  # a layout is probed when its bound is below this share of the incumbent
MOST_PROBES = 3  # at a time


def probe(state: SearchState, cost_model: CostModel, probed: set[Layout]) -> None:
    """Look for plans of the postponed layouts of least bound, until one more cannot help much.

    Parameters
    ----------
    probed
        Layouts probed before; gains those probed now.
    """
    state.drop_postponed()
    for _ in range(MOST_PROBES):
        fresh = [entry for entry in state.postponed if entry[1] not in probed]
        if not fresh or state.stopped():
            return
        bound, layout = min(fresh, key=lambda entry: entry[0])
        if state.objective is not None and bound > PROMISING * state.objective:
            return
        probed.add(layout)
        _probe_one(state, cost_model, bound, layout)
        state.drop_postponed()


def _probe_one(state: SearchState, cost_model: CostModel, bound: int, layout: Layout) -> None:
    problem = build_stage_problem(state.instance, layout, cost_model)
    if not engine.applicable(problem):
        return
    state.report()
    upper = None if state.target is None else state.target - problem.barrier
    limit = state.options.time_limit_s
    found = engine.solve_with_engine(
        problem,
        bound - problem.barrier,
        upper,
        deadline=None if limit is None else state.started + limit,
        node_limit=PROBE_NODES,
        stop=state.stop,
        seed=state.options.seed,
    )
    state.postponed = [entry for entry in state.postponed if entry[1] != layout]
    best = None if found.pipeline_time is None else found.pipeline_time + problem.barrier
    lower = max(bound, found.lower_bound + problem.barrier)
    outcome = LayoutOutcome(layout, "open", lower, best, "", problem, found.assignment, found.cuts)
    if best is not None:
        state.improve(outcome)
    if found.status == "infeasible":
        state.close(outcome, "infeasible", "no plan fits in memory")
    elif found.status == "optimal":
        state.close(outcome, "solved", "solved to its own optimum")
    elif found.status == "no_better" or state.excludes(lower):
        state.close(outcome, "no_better", "proved to have nothing below the incumbent")
    else:
        state.contested.append(outcome)
