"""Early plans for waiting layouts: the better the incumbent, the fewer layouts have to be decided."""

from __future__ import annotations

from prism_cp import engine
from prism_cp.inputs.layout import Layout
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.result import LayoutOutcome
from prism_cp.search.state import SearchState

PROBE_NODES = 100_000  # of the engine's walks; enough for plans, far from a proof
PROMISING = 0.99  # a layout is probed when its bound is below this share of the incumbent
MOST_PROBES = 4  # at a time
MOST_PIECES = 2  # of a rank, once there is a plan: with more, tables take longer than what better plans save


def probe(state: SearchState, cost_model: CostModel, probed: set[Layout]) -> None:
    """Look for plans of the waiting layouts of least bound, until one more cannot help much.

    Parameters
    ----------
    probed
        Layouts probed before; gains those probed now.
    """
    state.drop_waiting()
    for _ in range(MOST_PROBES):
        limit = state.target_s if state.objective is None else PROMISING * state.target_s
        found = state.waiting.least(limit, state.stopped)
        state.drop_waiting()
        if found is None or found[1] in probed or state.stopped():
            return
        seconds, layout = found
        probed.add(layout)
        _probe_one(state, cost_model, state.units(seconds), layout)
        state.drop_waiting()


def _probe_one(state: SearchState, cost_model: CostModel, bound: int, layout: Layout) -> None:
    problem = build_stage_problem(state.instance, layout, cost_model)
    if (layout.vpp > MOST_PIECES and state.target is not None) or not engine.applicable(problem):
        return
    state.report()
    limit = state.options.time_limit_s
    found = engine.solve_with_engine(
        problem,
        bound - problem.barrier,
        None if state.target is None else state.target - problem.barrier,
        deadline=None if limit is None else state.started + limit,
        node_limit=PROBE_NODES,
        stop=state.stop,
        seed=state.options.seed,
    )
    state.waiting.take(layout)
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
