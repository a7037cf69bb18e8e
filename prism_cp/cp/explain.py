"""Why a stage problem has no plan: which rank lacks how much memory, and which term is to blame."""

from __future__ import annotations

from typing import Any, NamedTuple

from ortools.sat.python import cp_model

from prism_cp.cp.constraints.chain import post_chain
from prism_cp.cp.constraints.memory import post_memory
from prism_cp.cp.exact import is_feasible, live_vectors
from prism_cp.cp.model import ModelInvalidError
from prism_cp.cp.variables import create_variables
from prism_cp.stage_problem import Assignment, RankMemory, StageProblem, rank_memories


class Shortage(NamedTuple):
    """One rank that is over its capacity in the plan that overshoots least.

    Attributes
    ----------
    rank : int
        -1: not memory, but the least and most layers of the pieces contradict each other.
    term : str
        The largest part of the memory of the worst row: ``static``, ``activation``, ``transient``, ``buffers`` or
        ``fixed``; ``optimizer step`` when the row is the optimizer step and its temporary memory is the largest part.
    short_by : int
        Missing memory, in memory units.
    row : RankMemory or None
        The rank's worst row in full.
    """

    rank: int
    term: str
    short_by: int
    row: RankMemory | None


def least_overshoot(
    problem: StageProblem, *, deterministic_limit: float | None = 30.0, seed: int = 0
) -> tuple[int, Assignment | None]:
    """The plan whose worst rank overshoots its capacity least, then whose overshoots add up to least.

    Returns
    -------
    (proven lower bound on the worst overshoot in memory units, plan); the plan is None when the least and most layers
    of the pieces allow no partition at all.
    """
    worst = _minimise(problem, None, deterministic_limit, seed)
    if worst is None:
        return 0, None
    bound, reached, assignment = worst
    total = _minimise(problem, reached, deterministic_limit, seed)
    return bound, assignment if total is None else total[2]


def _minimise(
    problem: StageProblem, allowed: int | None, deterministic_limit: float | None, seed: int
) -> tuple[int, int, Assignment] | None:
    """Minimise the worst overshoot (`allowed` None), or the sum of overshoots that are each at most `allowed`.

    Returns (bound, value, plan). Times do not matter and are not modelled.
    """
    model = cp_model.CpModel()
    variables = create_variables(model, problem, 0)
    post_chain(model, problem, variables)
    highest = _largest_memory(problem)
    overshoot: dict[int, Any] = {}
    for rank in range(len(problem.ranks)):
        overshoot[rank] = model.new_int_var(0, highest if allowed is None else allowed, f"overshoot of rank {rank}")
    post_memory(model, problem, variables, live_vectors(problem), lambda rank, _row: overshoot[rank])
    if allowed is None:
        worst = model.new_int_var(0, highest, "worst overshoot")
        model.add_max_equality(worst, list(overshoot.values()))
        model.minimize(worst)
    else:
        model.minimize(cp_model.LinearExpr.sum(list(overshoot.values())))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers, solver.parameters.random_seed = 1, seed
    if deterministic_limit is not None:
        solver.parameters.max_deterministic_time = deterministic_limit
    code = solver.solve(model)
    if code == cp_model.MODEL_INVALID:
        raise ModelInvalidError(model.validate())
    if code == cp_model.INFEASIBLE:
        return None
    if code == cp_model.UNKNOWN:
        raise TimeoutError(f"no partition of the chain was found within a deterministic time of {deterministic_limit}")
    value = max((int(solver.value(v)) for v in overshoot.values()), default=0)
    return int(solver.response_proto.inner_objective_lower_bound), value, variables.extract(solver)


def explain_infeasible(problem: StageProblem, *, deterministic_limit: float | None = 30.0) -> list[Shortage]:
    """Which ranks are short of memory in the plan that comes closest to fitting, worst first.

    Returns
    -------
    list of Shortage
        Empty when some plan fits. The first entry's `short_by` is the least that the worst rank can be short by
        (proved, unless the effort limit was met).
    """
    _, assignment = least_overshoot(problem, deterministic_limit=deterministic_limit)
    if assignment is None:
        return [Shortage(-1, "layers", 0, None)]
    if is_feasible(problem, assignment):
        return []
    worst: dict[int, RankMemory] = {}
    for row in rank_memories(problem, assignment, live_vectors(problem)):
        held = worst.get(row.rank)
        if held is None or row.total - row.capacity > held.total - held.capacity:
            worst[row.rank] = row
    shortages = [
        Shortage(rank, _largest_term(row), row.total - row.capacity, row)
        for rank, row in worst.items()
        if row.total > row.capacity
    ]
    return sorted(shortages, key=lambda shortage: (-shortage.short_by, shortage.rank))


def _largest_term(row: RankMemory) -> str:
    terms = {
        "static": row.static,
        "activation": row.activation,
        "transient" if row.live else "optimizer step": row.transient,
        "buffers": row.buffers,
        "fixed": row.fixed,
    }
    return max(terms, key=lambda name: terms[name])


def _largest_memory(problem: StageProblem) -> int:
    """No rank can need more than this."""
    live = max((sum(vector) for vectors in live_vectors(problem) for vector in vectors), default=0)
    kinds = [kind for table in problem.tables for kind in table]
    layer = max(
        kind.static + kind.optimizer_step + live * kind.deferred + max(s.transient for s in kind.strategies)
        for kind in kinds
    )
    ends = sum(
        stage.ends.static + stage.ends.optimizer_step + live * stage.ends.deferred + stage.ends.transient
        for stage in problem.virtual_stages
    )
    copies = len(problem.virtual_stages)
    buffers = sum(buffer.memory for buffer in problem.buffers)
    return copies * len(problem.layers) * layer + ends + buffers + max(rank.fixed for rank in problem.ranks)
