"""Strategies that can never be needed are dropped before a stage problem is solved, and put back afterwards."""

from __future__ import annotations

from dataclasses import dataclass, replace

from prism_cp.pipeline import get_schedule
from prism_cp.stage_problem import Assignment, StageProblem, StrategyCosts


@dataclass(frozen=True)
class Reduction:
    """A stage problem without dominated strategies.

    Attributes
    ----------
    problem : StageProblem
        The smaller problem; its optimum equals the original's.
    kept : tuple of tuple of int
        ``kept[kind]``: original indices of the strategies that stay.
    better : tuple of tuple of int
        ``better[kind][strategy]``: position in `kept` of the strategy that replaces an original one.
    """

    problem: StageProblem
    kept: tuple[tuple[int, ...], ...]
    better: tuple[tuple[int, ...], ...]
    original: StageProblem

    def restore(self, assignment: Assignment) -> Assignment:
        """The same plan with the original problem's strategy indices."""
        counts = []
        for piece in assignment.counts:
            rows = []
            for kind, row in enumerate(piece):
                full = [0] * len(self.original.tables[0][kind].strategies)
                for index, n in zip(self.kept[kind], row, strict=True):
                    full[index] = n
                rows.append(tuple(full))
            counts.append(tuple(rows))
        return Assignment(assignment.boundaries, tuple(counts))

    def reduce(self, assignment: Assignment) -> Assignment:
        """A plan of the original problem with every dominated strategy exchanged for the better one."""
        counts = []
        for piece in assignment.counts:
            rows = []
            for kind, row in enumerate(piece):
                small = [0] * len(self.kept[kind])
                for index, n in enumerate(row):
                    small[self.better[kind][index]] += n
                rows.append(tuple(small))
            counts.append(tuple(rows))
        return Assignment(assignment.boundaries, tuple(counts))


def remove_dominated(problem: StageProblem) -> Reduction:
    """Drop every strategy that another one of the same kind beats or equals in all that matters.

    Notes
    -----
    A strategy is beaten when times and memory are no larger and the reduction can hide no less. Where a rank has one
    virtual stage and its backward is not split, every path that reaches the rank's tail passes at least one of its
    backwards, so a loss of hiding is already made good when the backward shrinks by as much.
    """
    ranks = [stage.rank for stage in problem.virtual_stages]
    compensates = len(set(ranks)) == len(ranks) and not get_schedule(problem.schedule).splits_backward
    kept, better = [], []
    for kind in range(problem.num_kinds):
        options = [table[kind].strategies for table in problem.tables]
        indices = range(len(options[0]))

        def beats(a: int, b: int, options: list[tuple[StrategyCosts, ...]] = options) -> bool:
            return all(_no_worse(row[a], row[b], compensates) for row in options)

        survivors: list[int] = []
        for index in indices:
            # of two equal strategies the first stays
            if not any(beats(other, index) and (other < index or not beats(index, other)) for other in indices):
                survivors.append(index)
        kept.append(tuple(survivors))
        better.append(
            tuple(
                next(position for position, s in enumerate(survivors) if beats(s, index))
                if index not in survivors
                else survivors.index(index)
                for index in indices
            )
        )
    tables = tuple(
        tuple(
            replace(costs, strategies=tuple(costs.strategies[i] for i in kept[kind]))
            for kind, costs in enumerate(table)
        )
        for table in problem.tables
    )
    return Reduction(problem.replace(tables=tables), tuple(kept), tuple(better), problem)


def _no_worse(a: StrategyCosts, b: StrategyCosts, compensates: bool) -> bool:
    if (
        a.forward > b.forward
        or a.input_grad > b.input_grad
        or a.weight_grad > b.weight_grad
        or a.activation > b.activation
        or a.transient > b.transient
    ):
        return False
    saved = b.input_grad + b.weight_grad - a.input_grad - a.weight_grad if compensates else 0
    return b.hideable - a.hideable <= saved
