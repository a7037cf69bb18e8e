"""The simulator against a start-time model in CP-SAT, written from the definition of a schedule alone."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from ortools.sat.python import cp_model

from prism_cp.pipeline import OpType, get_schedule, pipeline_time
from tests.pipeline.runs import VARIANTS, Run, plain_run, runs


def least_makespan(run: Run) -> int:
    """Every op has a start; an overlapped pair is one interval; the pipeline time is minimised."""
    schedule = get_schedule(run.schedule)
    sizes = run.sizes[1:]
    model = cp_model.CpModel()
    horizon = run.num_microbatches * (sum(run.forward) + sum(run.input_grad) + sum(run.weight_grad) + 4 * run.p2p)
    horizon = horizon * 2 + max(run.head) + max(run.tail)
    time = model.new_int_var(0, 2 * horizon, "pipeline time")
    ranks = [rank for rank, _ in schedule.virtual_stages(*sizes[:2])]
    begin: dict[tuple[str, int, int], cp_model.IntVar] = {}
    finish: dict[tuple[str, int, int], cp_model.IntVar] = {}
    for rank, order in enumerate(schedule.orders(*sizes)):
        ops = [(OpType(op), stage, microbatch) for op, stage, microbatch in order.tolist()]
        before: cp_model.LinearExprT = run.head[rank]
        while ops:
            block = [ops.pop(0)]
            if block[0][0] == OpType.OVERLAPPED_FORWARD:
                block.append(ops.pop(0))
            lengths = [_length(run, *op[:2]) for op in block]
            start, end = (model.new_int_var(0, 2 * horizon, "") for _ in range(2))
            for length in lengths:
                model.add(end >= start + length)
            factor = schedule.overlap_factor if len(block) == 2 else 1
            model.add(factor.denominator * (end - start) >= factor.numerator * sum(lengths))
            model.add(start >= before)
            for op, stage, microbatch in block:
                for result in _results(op):
                    begin[result, stage, microbatch], finish[result, stage, microbatch] = start, end
            before = end
        model.add(time >= before + run.tail[rank])
    for (result, stage, microbatch), start in begin.items():
        if result != "F":
            model.add(start >= finish["F" if result == "B" else "B", stage, microbatch])
    for chain in schedule.chains(*sizes[:2]):
        for left, right in pairwise(chain):
            delay = run.p2p if ranks[left] != ranks[right] else 0
            for (result, stage, microbatch), start in begin.items():
                if result == "F" and stage == right:
                    model.add(start >= finish["F", left, microbatch] + delay)
                if result == "B" and stage == left:
                    model.add(start >= finish["B", right, microbatch] + delay)
    model.minimize(time)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return int(solver.objective_value)


def _results(op: OpType) -> str:
    return {
        OpType.FORWARD: "F",
        OpType.OVERLAPPED_FORWARD: "F",
        OpType.BACKWARD: "B",
        OpType.OVERLAPPED_BACKWARD: "B",
        OpType.INPUT_GRAD: "B",
        OpType.WEIGHT_GRAD: "W",
    }[op]


def _length(run: Run, op: OpType, stage: int) -> int:
    forward, input_grad, weight_grad = run.forward[stage], run.input_grad[stage], run.weight_grad[stage]
    if op in (OpType.FORWARD, OpType.OVERLAPPED_FORWARD):
        return forward
    if op == OpType.WEIGHT_GRAD:
        return weight_grad
    return input_grad if op == OpType.INPUT_GRAD else input_grad + weight_grad


@given(runs())
@settings(max_examples=60, deadline=None)
def test_any_schedule(run: Run) -> None:
    assert least_makespan(run) == pipeline_time(*run.sizes, *run.times)


@given(runs(names=VARIANTS))
@settings(max_examples=40, deadline=None)
def test_schedules_with_pairs_and_groups(run: Run) -> None:
    assert least_makespan(run) == pipeline_time(*run.sizes, *run.times)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), min_size=1, max_size=6), st.integers(1, 12))
@settings(max_examples=60, deadline=None)
def test_1f1b_is_never_slower_than_its_slowest_stage_everywhere(stages: list[tuple[int, int]], m: int) -> None:
    """Times only ever help when they shrink: (m + pp - 1) of the largest forward and of the largest backward."""
    forward, backward = [f for f, _ in stages], [b for _, b in stages]
    time = pipeline_time(*plain_run("1f1b", m, forward, backward).sizes, *plain_run("1f1b", m, forward, backward).times)
    assert time <= (m + len(stages) - 1) * (max(forward) + max(backward))
    assert time >= max(m * (f + b) for f, b in stages)
