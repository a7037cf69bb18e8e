"""The CP-SAT model of one layout's stage problem: variables, constraints and objective put together."""

from __future__ import annotations

from collections.abc import Sequence

from ortools.sat.python import cp_model

from prism_cp.cp.constraints.chain import post_chain
from prism_cp.cp.constraints.cuts import post_cuts
from prism_cp.cp.constraints.memory import post_memory
from prism_cp.cp.constraints.times import post_times
from prism_cp.cp.exact import LiveVectors
from prism_cp.cp.objective import post_objective
from prism_cp.cp.variables import StageVariables, create_variables
from prism_cp.pipeline import PathCut
from prism_cp.stage_problem import Assignment, StageProblem, stage_times


class ModelInvalidError(RuntimeError):
    """CP-SAT refuses the model: numbers too large, or a mistake of ours. Never mistaken for an unsolved model."""


class StageModel:
    """One stage problem as a CP-SAT model.

    Parameters
    ----------
    problem : StageProblem
        Dominated strategies are best removed before.
    live_vectors
        Pareto-maximal live vectors per rank.
    cuts
        Paths posted from the start.
    time_limit : int
        Largest pipeline time of interest, in time units.
    """

    def __init__(
        self, problem: StageProblem, live_vectors: LiveVectors, cuts: Sequence[PathCut], time_limit: int
    ) -> None:
        self.problem = problem
        self.model = cp_model.CpModel()
        self.variables: StageVariables = create_variables(self.model, problem, time_limit)
        post_chain(self.model, problem, self.variables)
        post_memory(self.model, problem, self.variables, live_vectors)
        post_times(self.model, problem, self.variables)
        self.add_cuts(cuts)
        post_objective(self.model, self.variables)

    def add_cuts(self, cuts: Sequence[PathCut]) -> None:
        """Post further paths."""
        post_cuts(self.model, cuts, self.variables, self.problem.p2p)

    def bound_time(self, low: int, high: int) -> None:
        """Restrict the pipeline time, in time units."""
        self.model.add_linear_constraint(self.variables.pipeline_time, low, high)

    def hint(self, assignment: Assignment) -> None:
        """Suggest a plan, in place of any former suggestion."""
        self.model.clear_hints()
        times = stage_times(self.problem, assignment)
        pairs = list(zip(self.variables.boundaries, assignment.boundaries, strict=True))
        for piece, rows in zip(self.variables.counts, assignment.counts, strict=True):
            for row, values in zip(piece, rows, strict=True):
                pairs += zip(row, values, strict=True)
        for variables, values in (
            (self.variables.forward, times.forward),
            (self.variables.input_grad, times.input_grad),
            (self.variables.weight_grad, times.weight_grad),
            (self.variables.tail, times.tail),
        ):
            pairs += zip(variables, values, strict=True)
        for variable, value in pairs:
            if isinstance(variable, cp_model.IntVar):
                self.model.add_hint(variable, value)

    def validate(self) -> None:
        """Raise when CP-SAT would call the model invalid.

        Raises
        ------
        ModelInvalidError
            With the solver's explanation.
        """
        text = self.model.validate()
        if text:
            raise ModelInvalidError(text)
        if self.model.proto.has_floating_point_objective():
            raise ModelInvalidError("the objective has floating-point coefficients")
