"""Positions a rank's piece can have within the time of interest, each with the least work it then has."""

from __future__ import annotations

from collections.abc import Sequence

from ortools.sat.python import cp_model

from prism_cp.cp.partition import Piece
from prism_cp.cp.variables import StageVariables

TABLE_LIMIT = 3_000  # longer tables cost more than they prune


def post_pieces(model: cp_model.CpModel, variables: StageVariables, pieces: Sequence[Sequence[Piece]]) -> None:
    """Tie both boundaries of every piece, and its least work, to one row of a table; implied by all other rows."""
    for index, table in enumerate(pieces):
        if len(table) > TABLE_LIMIT:
            continue
        if not table:
            model.add_bool_or([])
            continue
        work = model.new_int_var_from_domain(
            cp_model.Domain.from_values([piece.work for piece in table]), f"least work {index}"
        )
        start, end = variables.boundaries[index] + 0, variables.boundaries[index + 1] + 0
        model.add_allowed_assignments([start, end, work], [(p.start, p.end, p.work) for p in table])
        own = variables.forward[index] + variables.input_grad[index] + variables.weight_grad[index]
        model.add(own >= work)
