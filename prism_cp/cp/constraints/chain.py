"""Pieces are contiguous, and strategy counts add up to the layers a piece holds of every kind."""

from __future__ import annotations

from ortools.sat.python import cp_model

from prism_cp.cp.variables import Expression, StageVariables, piece_range
from prism_cp.stage_problem import StageProblem


def post_chain(model: cp_model.CpModel, problem: StageProblem, variables: StageVariables) -> None:
    """Piece sizes within their limits; counts equal to differences of prefix tables at the boundaries."""
    bounds = variables.boundaries
    for piece in range(problem.num_pieces):
        model.add_linear_constraint(
            bounds[piece + 1] - bounds[piece] + 0, problem.min_layers[piece], problem.max_layers[piece]
        )
    positions = [_prefixes(model, problem, variables, piece) for piece in range(problem.num_pieces + 1)]
    for piece in range(problem.num_pieces):
        for kind in range(problem.num_kinds):
            model.add(variables.layers(piece, kind) == positions[piece + 1][kind] - positions[piece][kind])
    for kind in range(problem.num_kinds):  # redundant, but the linear relaxation profits
        everywhere = [variables.layers(piece, kind) for piece in range(problem.num_pieces)]
        model.add(cp_model.LinearExpr.sum(everywhere) == problem.prefix_counts[kind][-1])


def _prefixes(
    model: cp_model.CpModel, problem: StageProblem, variables: StageVariables, piece: int
) -> list[Expression]:
    """Layers of every kind before a boundary: table lookups, the last kind being what is left."""
    boundary = variables.boundaries[piece]
    low, high = piece_range(problem, piece)
    prefixes: list[Expression] = []
    for kind, table in enumerate(problem.prefix_counts[:-1]):
        window = table[low : high + 1]
        if len(set(window)) <= 1:
            prefixes.append(window[0] if window else 0)
            continue
        prefix = model.new_int_var(window[0], window[-1], f"{problem.tables[0][kind].kind} before boundary {piece}")
        model.add_element(boundary - low, list(window), prefix)
        prefixes.append(prefix)
    return [*prefixes, boundary - sum(prefixes)]
