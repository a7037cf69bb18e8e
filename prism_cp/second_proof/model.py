"""Second proof room: the CP-SAT model that chooses one column per component."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from prism_cp.second_proof.columns import Columns, Items
from prism_cp.second_proof.components import Component
from prism_cp.stage_problem import StageProblem

Int64 = NDArray[np.int64]


class ColumnModel:
    """Exactly one column per component; together their contents make up the chain; no path takes longer than allowed.

    Parameters
    ----------
    contents : sequence of int64 arrays [contents, kinds]
        Of every piece.
    columns : sequence of Items or Columns
        Of every component.
    """

    def __init__(
        self,
        problem: StageProblem,
        components: Sequence[Component],
        contents: Sequence[Int64],
        columns: Sequence[Items | Columns],
    ) -> None:
        self.model = cp_model.CpModel()
        self.choose = [[self.model.new_bool_var("") for _ in range(len(each.layers))] for each in columns]
        for literals in self.choose:
            self.model.add_exactly_one(literals)
        prefix = np.array(problem.prefix_counts, np.int64)
        positions = [tuple(row) for row in np.unique(prefix.T, axis=0).tolist()]
        before: list[cp_model.LinearExprT] = [0] * problem.num_kinds
        held: dict[int, list[cp_model.LinearExprT]] = {}
        for component, each, literals in zip(components, columns, self.choose, strict=True):
            for k, piece in enumerate(component.pieces):
                counts = contents[piece][each.content[:, k]]
                held[piece] = [
                    cp_model.LinearExpr.weighted_sum(literals, counts[:, kind].tolist())
                    for kind in range(problem.num_kinds)
                ]
        for piece in range(problem.num_pieces):
            after = [
                self.model.new_int_var(0, int(prefix[kind, -1]), f"until[{piece},{kind}]")
                for kind in range(problem.num_kinds)
            ]
            for kind in range(problem.num_kinds):
                self.model.add(after[kind] == before[kind] + held[piece][kind])
            if piece == problem.num_pieces - 1:
                for kind in range(problem.num_kinds):
                    self.model.add(after[kind] == int(prefix[kind, -1]))
            elif problem.num_kinds > 1:
                self.model.add_allowed_assignments(after, positions)
            before = list(after)

    def forbid_longer(self, values: Sequence[Int64], room: Int64) -> None:
        """Post paths: the sum of the chosen columns' shares stays within the room.

        Parameters
        ----------
        values : sequence of int64 arrays [columns, paths]
        room : int64 array [paths]
        """
        least = [each.min(axis=0) for each in values]
        left = room - sum(least)
        for x in range(len(room)):
            literals, weights = [], []
            for own, each, low in zip(self.choose, values, least, strict=True):
                more = each[:, x] - low[x]
                for i in np.flatnonzero(more).tolist():
                    literals.append(own[i])
                    weights.append(int(more[i]))
            self.model.add(cp_model.LinearExpr.weighted_sum(literals, weights) <= int(left[x]))

    def forbid_contents(
        self, columns: Sequence[Items | Columns], settled: Sequence[tuple[tuple[int, ...], ...]]
    ) -> None:
        """Exclude combinations of what the pieces of all components hold."""
        for held in settled:
            literals = [
                own[i]
                for own, each, content in zip(self.choose, columns, held, strict=True)
                for i in np.flatnonzero(np.all(each.content == np.array(content), axis=1))
            ]
            self.model.add(sum(literals) < len(held))
