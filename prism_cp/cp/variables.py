"""The decision variables of one stage problem, and how a plan is read back from them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ortools.sat.python import cp_model

from prism_cp.stage_problem import Assignment, StageProblem

Expression = Any  # an int, an IntVar or a linear expression: CP-SAT treats them alike


@dataclass
class StageVariables:
    """Variables of one stage problem.

    Attributes
    ----------
    boundaries : list, ``num_pieces + 1``
        Positions in the chain; the ends are ints.
    counts : nested list ``[piece][kind][strategy]``
        Layers of a kind that use a strategy.
    forward, input_grad, weight_grad : list per virtual stage, in time units
    head, tail : list per rank, in time units
    pipeline_time : IntVar
        At least every posted path; the objective.
    """

    boundaries: list[Expression]
    counts: list[list[list[Expression]]]
    forward: list[Expression]
    input_grad: list[Expression]
    weight_grad: list[Expression]
    head: list[Expression]
    tail: list[Expression]
    pipeline_time: Expression

    def layers(self, piece: int, kind: int) -> Expression:
        """Layers of a kind in a piece."""
        return cp_model.LinearExpr.sum(self.counts[piece][kind])

    def extract(self, solver: Any) -> Assignment:
        """The plan of a solver (or of a solution callback) that holds a solution."""
        return Assignment(
            tuple(int(solver.value(b)) for b in self.boundaries),
            tuple(tuple(tuple(int(solver.value(n)) for n in row) for row in piece) for piece in self.counts),
        )


def piece_range(problem: StageProblem, piece: int) -> tuple[int, int]:
    """Earliest and latest position at which a piece may start (`num_pieces`: at which the last one ends)."""
    least, most, total = problem.min_layers, problem.max_layers, len(problem.layers)
    return (
        max(sum(least[:piece]), total - sum(most[piece:])),
        min(sum(most[:piece]), total - sum(least[piece:])),
    )


def most_layers(problem: StageProblem, piece: int, prefix: tuple[int, ...]) -> int:
    """Most layers of the kind with this prefix table that the piece can hold wherever it may lie."""
    low, _ = piece_range(problem, piece)
    _, high = piece_range(problem, piece + 1)
    size = problem.max_layers[piece]
    return max(
        (prefix[min(start + size, high)] - prefix[start] for start in range(low, max(low, high) + 1) if start <= high),
        default=0,
    )


def create_variables(model: cp_model.CpModel, problem: StageProblem, time_limit: int) -> StageVariables:
    """Create the variables; `time_limit` (time units) is the largest pipeline time of interest."""
    prefixes = problem.prefix_counts
    boundaries: list[Expression] = []
    for piece in range(problem.num_pieces + 1):
        low, high = piece_range(problem, piece)
        boundaries.append(low if low == high else model.new_int_var(low, max(low, high), f"boundary {piece}"))
        if low > high:
            model.add_bool_or([])  # the least and most layers of the pieces contradict each other
    counts: list[list[list[Expression]]] = []
    for piece in range(problem.num_pieces):
        counts.append([])
        for kind, costs in enumerate(problem.tables[0]):
            most = most_layers(problem, piece, prefixes[kind])
            names = [f"{costs.kind} with {s.name} in piece {piece}" for s in costs.strategies]
            counts[-1].append([model.new_int_var(0, most, name) if most else 0 for name in names])
    stages, ranks = len(problem.virtual_stages), len(problem.ranks)

    def times(name: str, number: int) -> list[Expression]:
        return [model.new_int_var(0, time_limit, f"{name} {index}") for index in range(number)]

    return StageVariables(
        boundaries,
        counts,
        times("forward", stages),
        times("input gradient", stages),
        times("weight gradient", stages),
        [0] * ranks,  # affine in the counts: set where the times are posted
        times("tail", ranks),
        model.new_int_var(0, time_limit, "pipeline time"),
    )
