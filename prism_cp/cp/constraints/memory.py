"""Memory of every rank: one row per Pareto-maximal live vector, one for the optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ortools.sat.python import cp_model

from prism_cp.cp.exact import LiveVectors
from prism_cp.cp.variables import Expression, StageVariables
from prism_cp.stage_problem import StageProblem, StrategyCosts, live_counts

Slack = Callable[[int, str], Expression]  # (rank, "live (3, 2)" or "optimizer step") -> memory the row may overshoot


def no_slack(_rank: int, _row: str) -> Expression:
    """Rows hold as they are."""
    return 0


def post_memory(
    model: cp_model.CpModel,
    problem: StageProblem,
    variables: StageVariables,
    live_vectors: LiveVectors,
    slack: Slack = no_slack,
) -> None:
    """Static + fixed + buffers + live activations + the largest transient fit; so does the optimizer step."""
    for rank, costs in enumerate(problem.ranks):
        stages = [index for index, stage in enumerate(problem.virtual_stages) if stage.rank == rank]
        buffers = _buffers(model, problem, variables, rank, stages)
        transients: dict[tuple[int, ...], Expression] = {}
        for live in live_vectors[rank]:
            counts = list(zip(stages, *live_counts(live, len(stages)), strict=True))
            used = tuple(index for index, whole, deferred in counts if whole + deferred)
            if used not in transients:
                transients[used] = _largest_transient(model, problem, variables, used)
            terms = [buffers, transients[used], costs.fixed]
            for index, whole, deferred in counts:
                terms.append(_stage_memory(problem, variables, index, whole, deferred))
            row = f"live {tuple(live)}"
            model.add(sum(terms) <= costs.capacity + slack(rank, row)).with_name(f"memory rank {rank} {row}")
        terms = [buffers, costs.fixed, *(_optimizer_memory(problem, variables, index) for index in stages)]
        model.add(sum(terms) <= costs.capacity + slack(rank, "optimizer step")).with_name(
            f"memory rank {rank} optimizer step"
        )


def _stage_memory(
    problem: StageProblem, variables: StageVariables, index: int, whole: int, deferred: int
) -> Expression:
    """Static memory of a virtual stage and what it holds for its live micro-batches."""
    stage = problem.virtual_stages[index]
    names, weights = [], []
    for kind, row in enumerate(variables.counts[stage.piece]):
        costs = problem.tables[stage.table][kind]
        for count, strategy in zip(row, costs.strategies, strict=True):
            names.append(count)
            weights.append(costs.static + whole * strategy.activation + deferred * costs.deferred)
    own = stage.ends.static + whole * stage.ends.activation + deferred * stage.ends.deferred
    return cp_model.LinearExpr.weighted_sum(names, weights) + own


def _optimizer_memory(problem: StageProblem, variables: StageVariables, index: int) -> Expression:
    """Static memory of a virtual stage and what exists only while the optimizer steps."""
    stage = problem.virtual_stages[index]
    total: Any = stage.ends.static + stage.ends.optimizer_step
    for kind, costs in enumerate(problem.tables[stage.table]):
        total = total + (costs.static + costs.optimizer_step) * variables.layers(stage.piece, kind)
    return total


def _largest_transient(
    model: cp_model.CpModel, problem: StageProblem, variables: StageVariables, stages: Sequence[int]
) -> Expression:
    """Largest transient of the given virtual stages: the ends' plus one step per larger value that is in use.

    Each step's literal is forced up when a strategy that needs it is used; steps form a chain.
    """
    floor = max((problem.virtual_stages[index].ends.transient for index in stages), default=0)
    users: dict[int, list[tuple[Expression, StrategyCosts]]] = {}
    for index in stages:
        stage = problem.virtual_stages[index]
        for kind, row in enumerate(variables.counts[stage.piece]):
            for count, strategy in zip(row, problem.tables[stage.table][kind].strategies, strict=True):
                if strategy.transient > floor and not isinstance(count, int):
                    users.setdefault(strategy.transient, []).append((count, strategy))
    total: Expression = floor
    below, previous = floor, None
    for value in sorted(users):
        literal = model.new_bool_var(f"transient {value} on virtual stages {tuple(stages)}")
        if previous is not None:
            model.add_implication(literal, previous)
        for count, _ in users[value]:
            model.add(count == 0).only_enforce_if(~literal)
        total = total + (value - below) * literal
        below, previous = value, literal
    return total


def _buffers(
    model: cp_model.CpModel, problem: StageProblem, variables: StageVariables, rank: int, stages: Sequence[int]
) -> Expression:
    """Buffers the rank pays once when it holds what needs them."""
    total: Expression = 0
    literals: dict[frozenset[int], Any] = {}
    for buffer in problem.buffers:
        if not buffer.memory:
            continue
        if buffer.virtual_stages.intersection(stages):
            total = total + buffer.memory
            continue
        counts = [
            count
            for piece in {problem.virtual_stages[index].piece for index in stages}
            for kind in sorted(buffer.kinds)
            for count in variables.counts[piece][kind]
            if not isinstance(count, int)
        ]
        if not counts:
            continue
        if buffer.kinds not in literals:
            literal = model.new_bool_var(f"rank {rank} holds kinds {sorted(buffer.kinds)}")
            model.add(cp_model.LinearExpr.sum(counts) == 0).only_enforce_if(~literal)
            literals[buffer.kinds] = literal
        total = total + buffer.memory * literals[buffer.kinds]
    return total
