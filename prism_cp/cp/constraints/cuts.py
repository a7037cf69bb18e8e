"""Every path of the event graph is a lower bound on the pipeline time."""

from __future__ import annotations

from collections.abc import Iterable

from ortools.sat.python import cp_model

from prism_cp.cp.variables import Expression, StageVariables
from prism_cp.pipeline import PathCut


def path_length(cut: PathCut, variables: StageVariables, p2p: int) -> Expression:
    """`cut.scale` times the path's length as a linear expression, in time units."""
    pairs = [
        (variable, coefficient)
        for variables_, coefficients in (
            (variables.forward, cut.forward),
            (variables.input_grad, cut.input_grad),
            (variables.weight_grad, cut.weight_grad),
            (variables.head, cut.head),
            (variables.tail, cut.tail),
        )
        for variable, coefficient in zip(variables_, coefficients, strict=True)
        if coefficient
    ]
    return sum((coefficient * variable for variable, coefficient in pairs), cut.p2p * p2p)


def post_cuts(model: cp_model.CpModel, cuts: Iterable[PathCut], variables: StageVariables, p2p: int) -> None:
    """The pipeline time is at least the length of every given path."""
    for cut in cuts:
        model.add(cut.scale * variables.pipeline_time >= path_length(cut, variables, p2p))
