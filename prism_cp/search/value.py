"""The exact value of a plan: simulated pipeline time plus barrier, after a look at its memory."""

from __future__ import annotations

from prism_cp.pipeline import get_schedule, live_vectors, pipeline_time
from prism_cp.stage_problem import Assignment, StageProblem, rank_memories, stage_times, structure_errors


def plan_value(problem: StageProblem, assignment: Assignment) -> int:
    """Pipeline time plus barrier of an assignment, in time units.

    Raises
    ------
    ValueError
        The assignment is no partition of the chain or does not fit in memory (a fault of whoever made it).
    """
    errors = structure_errors(problem, assignment)
    if errors:
        raise ValueError(errors[0])
    live = live_vectors(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)
    for row in rank_memories(problem, assignment, live):
        if row.total > row.capacity:
            raise ValueError(f"rank {row.rank} needs {row.total} of {row.capacity} memory units")
    times = stage_times(problem, assignment)
    schedule = get_schedule(problem.schedule)
    return problem.barrier + pipeline_time(
        schedule, problem.pp, problem.vpp, problem.num_microbatches,
        times.forward, times.input_grad, times.weight_grad, times.head, times.tail, times.p2p,
    )  # fmt: skip
