"""Report room: how a rank's memory rises and falls while the pipeline runs, from the exact tables."""

from __future__ import annotations

from prism_cp.breakdown import ExactTables, TableSource
from prism_cp.check import plan_assignment
from prism_cp.errors import PlanError
from prism_cp.pipeline import OpType
from prism_cp.pipeline.schedules.base import FORWARDS
from prism_cp.report.timeline import RankRun, Timeline
from prism_cp.stage_problem import rank_memories, structure_errors

Curve = list[tuple[int, int]]  # (moment in time units, memory units from then on)


def memory_curves(timeline: Timeline, tables: TableSource | None = None) -> list[Curve]:
    """Memory of every rank over time, in memory units.

    A micro-batch's activations count from the start of its forward to the end of its backward; where that is split, to
    the start of the input gradient, and from there what is deferred until the weight gradient ends. Transients as in
    the plan: the largest of the virtual stages with a live micro-batch. During the head the optimizer steps.

    Parameters
    ----------
    tables
        Where the layout's tables come from; None: from the formulas, exactly.

    Raises
    ------
    PlanError
        The virtual stages do not hold the instance's layers.
    """
    plan = timeline.plan
    problem = (tables or ExactTables())(plan.instance, timeline.layout.layout()).problem
    try:
        assignment = plan_assignment(plan.virtual_stages, problem)
    except ValueError as error:
        raise PlanError("virtual_stages", str(error)) from error
    errors = structure_errors(problem, assignment)
    if errors:
        raise PlanError("virtual_stages", errors[0])
    changes = [
        _live_changes(
            run, [index for index, stage in enumerate(plan.virtual_stages) if stage.rank == rank], plan.ranks[rank].head
        )
        for rank, run in enumerate(timeline.ranks)
    ]
    distinct = [list(dict.fromkeys(live for _, live in steps)) for steps in changes]
    totals = {(row.rank, row.live): row.total for row in rank_memories(problem, assignment, distinct)}
    curves = []
    for rank, steps in enumerate(changes):
        head = plan.ranks[rank].head
        start = [(0, totals[rank, ()])] if head else []  # no live vector: the optimizer's step
        curves.append([*start, *((moment, totals[rank, live]) for moment, live in steps)])
    return curves


def _live_changes(run: RankRun, stages: list[int], head: int) -> list[tuple[int, tuple[int, ...]]]:
    """(moment from the end of the head on, live micro-batches of the rank's virtual stages from then on).

    Counts as in `live_counts`, always with both halves.
    """
    position = {stage: column for column, stage in enumerate(stages)}
    live = [0] * (2 * len(stages))
    steps = {head: tuple(live)}
    for index, op_type in enumerate(run.op_type.tolist()):
        whole = position[int(run.virtual_stage[index])]
        deferred = len(stages) + whole
        if op_type in FORWARDS or op_type == OpType.INPUT_GRAD:
            if op_type in FORWARDS:
                live[whole] += 1
            else:
                live[whole] -= 1
                live[deferred] += 1
            steps[int(run.start[index])] = tuple(live)
        else:
            live[deferred if op_type == OpType.WEIGHT_GRAD else whole] -= 1
            steps[int(run.end[index])] = tuple(live)
    return list(steps.items())
