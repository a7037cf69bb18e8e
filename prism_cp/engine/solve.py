"""Engine room: the stage problem of any schedule, solved to proven optimality by walks over items.

Every path of the event graph is a sum over ranks, so with integer tables of what each rank's possible share of the
chain is worth along each path, and the least worth of the later ranks, a depth-first walk over the ranks refutes a
target time quickly. Plans come from annealing over the boundaries; targets approach the best plan in levels; complete
choices are simulated, and their critical paths become new cuts.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from prism_cp.cp.exact import is_feasible
from prism_cp.cp.objective import longest_possible
from prism_cp.engine.chain import make_chain, make_groups
from prism_cp.engine.close import close
from prism_cp.engine.early_plans import early_plan
from prism_cp.engine.limits import Limits, SearchStopped
from prism_cp.engine.plans import anneal, first_plans, sketch_plans
from prism_cp.engine.state import EngineState
from prism_cp.engine.tables import LARGEST_VALUE, Tables, row_of
from prism_cp.pipeline import PathCut, get_schedule
from prism_cp.stage_problem import Assignment, StageProblem

Int64 = NDArray[np.int64]
EngineStatus = Literal["optimal", "no_better", "infeasible", "feasible", "unknown"]

LIMIT_STEPS = (1.02, 1.06, 1.12, 1.2, 1.35, 1.6, 2.0, 3.0)  # first limits, relative to perfectly balanced work
FIRST_ROWS = 2  # cuts that coarse items are held against first; then as many as before
FIRST_PLAN_NODES = 2_000_000


@dataclass(frozen=True)
class EngineResult:
    """What is known about a stage problem.

    Attributes
    ----------
    lower_bound
        Proven: every plan takes at least this long (time units), or, where an upper bound was given, every plan
        within it does.
    status
        ``optimal``: `pipeline_time` equals the bound; ``no_better``: no plan is within the upper bound;
        ``infeasible``: no plan exists; ``feasible`` and ``unknown``: stopped with and without a plan.
    nodes
        Items and totals looked at.
    cuts
        Paths learnt; valid for every problem of the same schedule, pp, vpp and number of micro-batches.
    """

    lower_bound: int
    assignment: Assignment | None
    pipeline_time: int | None
    status: EngineStatus
    nodes: int
    cuts: tuple[PathCut, ...]


def applicable(problem: StageProblem) -> bool:
    """Whether all groups of ranks hold equally many pieces, which the tables need, and no time can overflow."""
    groups = make_groups(problem)
    alike = len({(len(group.pieces), len(group.stages), len(group.ranks)) for group in groups}) == 1
    scale = get_schedule(problem.schedule).overlap_factor.denominator
    return alike and scale * longest_possible(problem) < LARGEST_VALUE


def solve_with_engine(
    problem: StageProblem,
    lower_bound: int = 0,
    upper_bound: int | None = None,
    *,
    hint: Assignment | None = None,
    cuts: Sequence[PathCut] = (),
    deadline: float | None = None,
    node_limit: int | None = None,
    stop: threading.Event | None = None,
    seed: int = 0,
) -> EngineResult:
    """Find the plan with the smallest exact pipeline time, with proof.

    Parameters
    ----------
    problem
        Integer tables of one layout, under any schedule.
    lower_bound
        Proven elsewhere, time units.
    upper_bound
        Only plans with a pipeline time up to this matter.
    hint
        A plan to start from.
    cuts
        Paths known from earlier solves with the same schedule, pp, vpp and number of micro-batches.
    deadline
        As `time.monotonic` counts.
    node_limit
        Most nodes of all walks together.
    stop
        Once set, the search ends with what is known.
    seed
        Of the annealing. The same seed gives the same result unless a deadline or `stop` cuts in.

    Raises
    ------
    ValueError
        The problem is not `applicable`.
    """
    if not applicable(problem):
        raise ValueError(f"ranks of {problem.schedule} hold different numbers of pieces, or times overflow")
    chain, limits = make_chain(problem), Limits(deadline, node_limit, stop)
    if chain is None:
        longest = longest_possible(problem)
        limit = longest if upper_bound is None else min(upper_bound, longest)
        return EngineResult(limit + 1, None, None, _nothing(limit, longest), 0, tuple(dict.fromkeys(cuts)))
    state = EngineState(problem, chain, lower_bound, upper_bound, cuts, limits, seed)
    if hint is not None and is_feasible(problem, hint):
        state.offer(hint)
    try:
        if state.best is None and upper_bound is None:
            early = early_plan(problem, seed, limits) if state.many_pieces else None
            if early is None:
                first_plans(state)
            else:
                state.offer(early[0])
        sketch_plans(state)
        tables = _first_tables(state)
    except SearchStopped:
        tables = None
    return _result(state, exhausted=state.low > state.cap() if tables is None else close(state, tables))


def _nothing(limit: int, longest: int) -> EngineStatus:
    """What is said where no plan is within the limit."""
    return "infeasible" if limit >= longest else "no_better"


def _result(state: EngineState, exhausted: bool) -> EngineResult:
    """The answer; with `exhausted` nothing is left within the cap."""
    cuts, nodes = (*state.given, *state.learnt), state.limits.nodes
    if exhausted and state.best_time is not None:
        return EngineResult(state.best_time, state.best, state.best_time, "optimal", nodes, cuts)
    if exhausted:
        return EngineResult(state.limit + 1, None, None, _nothing(state.limit, state.longest), nodes, cuts)
    low = state.low if state.best_time is None else min(state.low, state.best_time)
    status: EngineStatus = "unknown" if state.best is None else "feasible"
    if low == state.best_time:
        status = "optimal"
    return EngineResult(low, state.best, state.best_time, status, nodes, cuts)


def _make_tables(state: EngineState, limit: int) -> Tables | None:
    """Tables of everything useful within the limit; None when some group can hold nothing."""
    rows = [row_of(cut, state.problem.p2p) for cut in state.known]
    groups = state.chain.groups
    wanted: list[Int64 | None] = [None for _ in groups]
    if len(groups[0].pieces) > 1:  # with several pieces there are many items, most of them hopeless
        items = [state.maker.coarse(group, limit) for group in groups]
        if not all(len(each.choice) for each in items):
            return None
        coarse: Tables | None = Tables(state.problem, state.chain, items)
        while coarse is not None and len(coarse.rows) < len(rows):
            done = len(coarse.rows)
            coarse.add(rows[done : done + max(FIRST_ROWS, done)])
            coarse = coarse.narrowed(limit)
        if coarse is None:
            return None
        wanted = [each.choice for each in coarse.items]
    made = []
    for group, choices in zip(groups, wanted, strict=True):
        outlined = None
        if choices is not None and state.many_pieces:
            outlined = state.maker.outlined(group, limit, choices)
        made.append(outlined or state.maker.make(group, limit, choices, state.limits))
        if not len(made[-1].choice):
            return None
    tables = Tables(state.problem, state.chain, made)
    tables.add(rows)
    return tables


def _balanced_time(problem: StageProblem) -> int:
    """Work of one rank if all had the same, without recomputation: where to begin to look."""
    fast = [min(s.forward + s.input_grad + s.weight_grad for s in kind.strategies) for kind in problem.tables[0]]
    work = sum(fast[kind] for kind in problem.layers)
    for stages in (problem.virtual_stages[:1], problem.virtual_stages[-1:]):
        work += sum(s.ends.forward + s.ends.input_grad + s.ends.weight_grad for s in stages)
    return problem.num_microbatches * work // len(problem.ranks)


def _first_tables(state: EngineState) -> Tables | None:
    """Tables of everything up to a limit at which a plan is known, after raising the bound to what was refuted.

    None: nothing is left, or stopped.
    """
    balanced = _balanced_time(state.problem)
    steps = [int(balanced * step) for step in LIMIT_STEPS]
    for limit in [*(step for step in steps if state.low <= step < state.cap()), state.cap()]:
        if limit < state.low or (state.best_time is not None and limit < state.cap()):
            continue
        if state.limits.reached():
            return None
        tables = _make_tables(state, limit)
        if tables is None:
            state.raise_bound(limit + 1)
            continue
        verdict = _find_plan(state, tables, limit)
        if verdict is False:
            state.raise_bound(limit + 1)
            continue
        if state.best_time is None and limit < state.cap():
            continue
        if limit < state.cap():  # annealing may go beyond the limit; what it reached bounds the rest
            tables = _make_tables(state, state.cap())
        if tables is None:
            state.raise_bound(state.cap() + 1)
            return None
        return tables.within(state.cap())
    return None


def _find_plan(state: EngineState, tables: Tables, limit: int) -> bool | None:
    """Plans within the limit: by annealing, or else the first one of a walk. False: there is none."""
    if np.any(tables.after[0, -1, : len(tables.rows)] > tables.scales * limit):
        return False
    anneal(state, tables)
    if state.best_time is not None:
        return True
    allowed = Limits(state.limits.deadline, state.limits.nodes + FIRST_PLAN_NODES, state.limits.stop)
    allowed.nodes = state.limits.nodes
    decision = state.decision(tables)
    verdict = decision.run(limit, allowed, lambda: state.best_time, first_only=True)
    state.limits.nodes = allowed.nodes
    state.learn(decision.learnt)
    if verdict:
        anneal(state, tables)
    return verdict
