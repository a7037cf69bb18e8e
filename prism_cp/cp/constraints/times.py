"""Stage times are linear in the strategy counts; a rank's tail is what gradient reduction cannot hide."""

from __future__ import annotations

from typing import Any

from ortools.sat.python import cp_model

from prism_cp.cp.variables import StageVariables
from prism_cp.stage_problem import StageProblem


def post_times(model: cp_model.CpModel, problem: StageProblem, variables: StageVariables) -> None:
    """Define forward, input_grad and weight_grad per virtual stage, head (affine) and tail (a maximum) per rank."""
    heads: list[Any] = [rank.head for rank in problem.ranks]
    exposed: list[Any] = [0 for _ in problem.ranks]
    for index, stage in enumerate(problem.virtual_stages):
        table, ends = problem.tables[stage.table], stage.ends
        counts = [count for row in variables.counts[stage.piece] for count in row]
        costs = [(kind, strategy) for kind in table for strategy in kind.strategies]
        for variable, own, weights in (
            (variables.forward[index], ends.forward, [s.forward for _, s in costs]),
            (variables.input_grad[index], ends.input_grad, [s.input_grad for _, s in costs]),
            (variables.weight_grad[index], ends.weight_grad, [s.weight_grad for _, s in costs]),
        ):
            model.add(variable == cp_model.LinearExpr.weighted_sum(counts, weights) + own)
        heads[stage.rank] += cp_model.LinearExpr.weighted_sum(counts, [kind.head for kind, _ in costs]) + ends.head
        weights = [kind.reduce - strategy.hideable for kind, strategy in costs]
        exposed[stage.rank] += cp_model.LinearExpr.weighted_sum(counts, weights) + ends.reduce - ends.hideable
    for rank, costs_of_rank in enumerate(problem.ranks):
        variables.head[rank] = heads[rank]
        model.add(variables.tail[rank] >= costs_of_rank.last_bucket)
        model.add(variables.tail[rank] >= exposed[rank])
