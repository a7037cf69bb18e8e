"""Second proof room: the CP-SAT model that chooses strategies where it is settled what every piece holds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from ortools.sat.python import cp_model

from prism_cp.pipeline import PathCut
from prism_cp.second_proof.component_costs import ComponentCosts
from prism_cp.stage_problem import Assignment, StageProblem

Int64 = NDArray[np.int64]


class StrategyModel:
    """How many layers of every piece use each strategy, within the memory of every rank and the room of every path.

    Parameters
    ----------
    costs : sequence of ComponentCosts
        Of every component.
    held : sequence of int64 arrays [pieces]
        Content of every piece of every component.
    target
        Longest pipeline time, time units.
    """

    def __init__(
        self, problem: StageProblem, costs: Sequence[ComponentCosts], held: Sequence[Int64], target: int
    ) -> None:
        self.problem, self.model, self.fits = problem, cp_model.CpModel(), True
        self._target = target
        self._layers: dict[int, list[int]] = {}
        self._counts: dict[int, list[list[cp_model.IntVar]]] = {}
        self._uses: dict[int, list[list[cp_model.IntVar]]] = {}
        self._head = [0] * len(problem.ranks)
        self._tail = [self.model.new_constant(0) for _ in problem.ranks]
        for each, content in zip(costs, held, strict=True):
            for k, piece in enumerate(each.component.pieces):
                self._add_piece(piece, each.contents[k][content[k]].tolist())
            self._keep_memory(each, content)
            self._add_ends(each, content)

    def _add_piece(self, piece: int, layers: list[int]) -> None:
        self._layers[piece], self._counts[piece], self._uses[piece] = layers, [], []
        for kind, n in enumerate(layers):
            strategies = self.problem.tables[0][kind].strategies
            counts = [self.model.new_int_var(0, n, "") for _ in strategies]
            self.model.add(sum(counts) == n)
            uses = [self.model.new_bool_var("") for _ in strategies]
            for count, used in zip(counts, uses, strict=True):
                self.model.add(count == 0).only_enforce_if(~used)
            self._counts[piece].append(counts)
            self._uses[piece].append(uses)

    def _sum(self, stage: int, name: str) -> cp_model.LinearExpr:
        """Sum of a cost of strategies over the layers of a virtual stage."""
        own = self.problem.virtual_stages[stage]
        counts = [count for each in self._counts[own.piece] for count in each]
        costs = [getattr(s, name) for kind in self.problem.tables[own.table] for s in kind.strategies]
        return cp_model.LinearExpr.weighted_sum(counts, costs)

    def _keep_memory(self, costs: ComponentCosts, content: Int64) -> None:
        """Activations and the largest transient stay within the room of every memory row."""
        room = costs.memory_room(content)
        if room is None:
            self.fits = False
            return
        for (_, alive), left in zip(costs.rows, room.tolist(), strict=True):
            used = cp_model.LinearExpr.weighted_sum(
                [self._sum(stage, "activation") for stage in alive], [whole for whole, _ in alive.values()]
            )
            for stage, (whole, waiting) in alive.items():
                if not whole + waiting:
                    continue
                own = self.problem.virtual_stages[stage]
                self.model.add(used + own.ends.transient <= left)
                for kind, uses in zip(self.problem.tables[own.table], self._uses[own.piece], strict=True):
                    for strategy, literal in zip(kind.strategies, uses, strict=True):
                        self.model.add(used + strategy.transient <= left).only_enforce_if(literal)
            self.model.add(used <= left)

    def _add_ends(self, costs: ComponentCosts, content: Int64) -> None:
        """Time before a rank's first forward, and after its last backward what is not hidden of the reduction."""
        heads, reduces = costs.heads(content)
        ends_hide = costs.ends_hide().tolist()
        for r, rank in enumerate(costs.component.ranks):
            self._head[rank] = int(heads[r])
            bucket, reduce = self.problem.ranks[rank].last_bucket, int(reduces[r])
            own = [stage for _, stage, _ in costs.stages() if self.problem.virtual_stages[stage].rank == rank]
            hidden = cp_model.LinearExpr.sum([self._sum(stage, "hideable") for stage in own])
            self._tail[rank] = self.model.new_int_var(bucket, max(bucket, reduce), "")
            self.model.add(self._tail[rank] + hidden >= reduce - ends_hide[r])

    def forbid_longer(self, cuts: Sequence[PathCut]) -> None:
        """Post paths: none takes longer than the target."""
        names = "forward", "input_grad", "weight_grad"
        times = [[self._sum(i, name) for name in names] for i in range(len(self.problem.virtual_stages))]
        ends = [stage.ends for stage in self.problem.virtual_stages]
        fixed = [(end.forward, end.input_grad, end.weight_grad) for end in ends]
        for cut in cuts:
            room = cut.scale * self._target - cut.p2p * self.problem.p2p
            room -= sum(weight * head for weight, head in zip(cut.head, self._head, strict=True))
            terms: list[cp_model.LinearExprT] = []
            weights: list[int] = []
            for i, own in enumerate(zip(cut.forward, cut.input_grad, cut.weight_grad, strict=True)):
                room -= sum(weight * end for weight, end in zip(own, fixed[i], strict=True))
                terms += times[i]
                weights += own
            terms += self._tail
            weights += cut.tail
            self.model.add(cp_model.LinearExpr.weighted_sum(terms, weights) <= room)

    def plan(self, solver: cp_model.CpSolver) -> Assignment:
        """The plan of a solution."""
        pieces = range(self.problem.num_pieces)
        sizes = [sum(self._layers[piece]) for piece in pieces]
        counts = tuple(
            tuple(tuple(solver.value(count) for count in own) for own in self._counts[piece]) for piece in pieces
        )
        return Assignment(tuple(np.append(0, np.cumsum(sizes)).tolist()), counts)
