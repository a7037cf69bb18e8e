"""The objective: the pipeline time, an integer variable, and exact readings of its bounds."""

from __future__ import annotations

from typing import Any

from ortools.sat.python import cp_model

from prism_cp.cp.variables import StageVariables
from prism_cp.stage_problem import EndCosts, StageProblem


def post_objective(model: cp_model.CpModel, variables: StageVariables) -> None:
    """Minimise the pipeline time. Integers only: float objectives can be proved wrongly."""
    model.minimize(variables.pipeline_time)


def proven_bound(solver: cp_model.CpSolver) -> int:
    """The solver's lower bound as an exact integer, not the float that `best_objective_bound` gives."""
    return int(solver.response_proto.inner_objective_lower_bound)


def longest_possible(problem: StageProblem) -> int:
    """A pipeline time no plan exceeds: every operation of every micro-batch after another, all transfers, all ends.

    A path of the event graph visits every operation at most once, starts after one rank's head and ends with one
    rank's tail.
    """
    count = len(problem.layers)
    layer = max(
        (
            s.forward + s.input_grad + s.weight_grad
            for table in problem.tables
            for kind in table
            for s in kind.strategies
        ),
        default=0,
    )
    ends: list[EndCosts] = [stage.ends for stage in problem.virtual_stages]
    copies = max(1, -(-len(problem.virtual_stages) // max(1, problem.num_pieces)))
    once = copies * count * layer + sum(e.forward + e.input_grad + e.weight_grad for e in ends)
    kinds: list[Any] = [kind for table in problem.tables for kind in table]
    outside = sum(rank.head + rank.last_bucket for rank in problem.ranks) + sum(e.head + e.reduce for e in ends)
    outside += copies * count * (max(k.head for k in kinds) + max(k.reduce for k in kinds))
    transfers = 2 * problem.num_microbatches * len(ends) * problem.p2p
    return int(problem.num_microbatches * once + outside + transfers)
