"""Early plans for waiting layouts: the better the incumbent, the fewer layouts have to be decided."""

from __future__ import annotations

from prism_cp import engine
from prism_cp.inputs.layout import Layout
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.result import LayoutOutcome
from prism_cp.search.state import SearchState
from prism_cp.stage_problem import StageProblem

PROBE_NODES = 100_000  # of the engine's walks; enough for plans, far from a proof
PROMISING = 0.99  # a layout is probed when its bound is below this share of the incumbent
MOST_PROBES = 4  # at a time
MOST_PIECES = 2  # of a rank whose plans the engine looks for; with more, its tables take too long


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
        bound = state.units(seconds)
        if has_many_pieces(layout):
            state.waiting.take(layout)
            state.contested.append(annealed(state, cost_model, layout, bound))
        else:
            problem = build_stage_problem(state.instance, layout, cost_model)
            if engine.applicable(problem):
                _by_engine(state, problem, layout, bound)
        state.drop_waiting()


def has_many_pieces(layout: Layout) -> bool:
    """Whether plans are looked for by annealing alone."""
    return layout.vpp > MOST_PIECES


def annealed(state: SearchState, cost_model: CostModel, layout: Layout, bound: int) -> LayoutOutcome:
    """A layout with its stage problem and the plan that annealing found: the incumbent, if it is better."""
    state.report()
    problem = build_stage_problem(state.instance, layout, cost_model)
    found = engine.early_plan(problem, state.options.seed, engine.Limits(state.deadline, None, state.stop))
    if found is None:
        return LayoutOutcome(layout, "open", bound, problem=problem)
    plan, pipeline_time = found
    outcome = LayoutOutcome(layout, "open", bound, pipeline_time + problem.barrier, "", problem, plan)
    state.improve(outcome)
    return outcome


def _by_engine(state: SearchState, problem: StageProblem, layout: Layout, bound: int) -> None:
    """Let the engine look for plans, which may even decide the layout."""
    state.report()
    found = engine.solve_with_engine(
        problem,
        bound - problem.barrier,
        None if state.target is None else state.target - problem.barrier,
        deadline=state.deadline,
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
