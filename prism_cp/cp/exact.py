"""The exact side of the solver room: live vectors, cuts, and the true value of a plan, from the pipeline room."""

from __future__ import annotations

from collections.abc import Sequence

from prism_cp.pipeline import PathCut, Simulation, simulate
from prism_cp.pipeline import live_vectors as schedule_live_vectors
from prism_cp.pipeline import static_cuts as schedule_static_cuts
from prism_cp.stage_problem import Assignment, StageProblem, rank_memories, stage_times, structure_errors

LiveVectors = Sequence[Sequence[Sequence[int]]]


def live_vectors(problem: StageProblem) -> LiveVectors:
    """Pareto-maximal live vectors of every rank."""
    return schedule_live_vectors(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)


def static_cuts(problem: StageProblem) -> list[PathCut]:
    """The schedule's proved path families, valid for every plan."""
    return schedule_static_cuts(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)


def evaluate(problem: StageProblem, assignment: Assignment) -> Simulation:
    """Simulate the schedule on the assignment's exact stage times; memory is not looked at."""
    times = stage_times(problem, assignment)
    return simulate(
        problem.schedule,
        problem.pp,
        problem.vpp,
        problem.num_microbatches,
        times.forward,
        times.input_grad,
        times.weight_grad,
        times.head,
        times.tail,
        times.p2p,
    )


def is_feasible(problem: StageProblem, assignment: Assignment) -> bool:
    """Whether the assignment is a partition of the chain and fits every rank's memory."""
    if structure_errors(problem, assignment):
        return False
    return all(row.total <= row.capacity for row in rank_memories(problem, assignment, live_vectors(problem)))


def cut_value(problem: StageProblem, cut: PathCut, assignment: Assignment) -> int:
    """Length of one path under an assignment."""
    times = stage_times(problem, assignment)
    return cut.value(times.forward, times.input_grad, times.weight_grad, times.head, times.tail, times.p2p)
