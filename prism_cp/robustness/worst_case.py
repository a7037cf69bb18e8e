"""Robustness room: the largest step time of one plan over a range of loads, bounded from both sides, and its memory.

Step time is not always monotone in the load. The time of every kernel and token exchange is: padding to tiles and waves
makes a grouped product's time proportional to ``sqrt(x * ceil(x))`` for x waves, everything else is affine or constant
in the token copies. But what hides behind computation shrinks when computation grows. So over loads from a to b

- a forward ``L + max(0, gather - w * L)`` is convex in its launch time L, which is monotone: it is at most the larger
  of its values at a and b;
- an input gradient without sharded gradients or parameters is ``max(kernels, floor - weight gradients)``, the larger
  of a rising and a falling function: the same holds. ZeRO-2 and ZeRO-3 add what the whole backward does not hide,
  which falls: it is at most its value at a. A whole backward, input and weight gradient together, is convex like a
  forward; rounding its two parts apart adds at most one unit;
- weight gradients, activations and the transients of layers rise; the exposed gather of parameters and the transient
  of the embedding fall: at most the larger of the two ends;
- gradient reduction can hide under no less than the backward at a, with what sharding exposes at b.

With every table entry replaced by such a bound and rounded as always, the schedule's longest path and the memory rows
are at least those of every load between a and b, because both are monotone in the entries. Ranges are halved where that
bound is above what was met, until it is not, or until there are `MOST_RANGES`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from math import ceil
from typing import Any

from prism_cp.formulas.tables import LayerCosts, LayoutCosts
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.integer_tables import CostModel, build_stage_problem, stage_problem_of_costs
from prism_cp.pipeline import get_schedule, live_vectors
from prism_cp.plan_builder import simulated_time
from prism_cp.robustness.load_range import at_load
from prism_cp.stage_problem import Assignment, StageProblem, rank_memories

MOST_RANGES = 32
Simulate = Callable[[StageProblem, Assignment], int]


class LoadTables:
    """Formulas of one instance under any load, kept by load."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._models: dict[float, CostModel] = {}

    def model(self, load: float) -> CostModel:
        """All formulas under a load."""
        if load not in self._models:
            self._models[load] = CostModel(at_load(self.instance, load))
        return self._models[load]

    def problem(self, layout: Layout, load: float) -> StageProblem:
        """The exact stage problem of a layout under a load."""
        model = self.model(load)
        return build_stage_problem(model.instance, layout, model)

    def upper_problem(self, layout: Layout, low: float, high: float) -> StageProblem:
        """A stage problem none of whose costs is below that of any load from `low` to `high` (see the module)."""
        model = self.model(low)
        ends = [self.model(load).evaluate_exact(layout) for load in (low, high)]
        whole = ends
        if layout.zero > 1:  # input gradients without what sharding adds
            unsharded = replace(layout, zero=1)
            whole = [self.model(load).evaluate_exact(unsharded) for load in (low, high)]
        schedule, unit = get_schedule(layout.schedule), Fraction(str(self.instance.time_unit_s))
        kinds, hiding = [], []
        for at_low, at_high, whole_low, whole_high in zip(*(costs.kinds for costs in (*ends, *whole)), strict=True):
            rows = zip(
                at_low.input_grad_s, at_high.input_grad_s, whole_low.input_grad_s, whole_high.input_grad_s, strict=True
            )
            grads = [(max(w0, w1) + (b0 - w0), w0 + (b1 - w1)) for b0, b1, w0, w1 in rows]
            larger = _larger(at_low, at_high)
            uppers = [most for most, _ in grads]
            if not schedule.splits_backward:
                whole_backwards = zip(
                    *(_backward(costs) for costs in (at_low, at_high)), larger.weight_grad_s, strict=True
                )
                apart = [
                    (ceil(max(one, other) / unit) + 1 - ceil(weight_grad / unit)) * unit
                    for one, other, weight_grad in whole_backwards
                ]
                uppers = [min(pair) for pair in zip(uppers, apart, strict=True)]
            kinds.append(replace(larger, input_grad_s=uppers))
            hiding.append(replace(at_low, input_grad_s=[least for _, least in grads]))
        most = replace(
            ends[0],
            kinds=kinds,
            embedding=_larger(ends[0].embedding, ends[1].embedding),
            head=_larger(ends[0].head, ends[1].head),
            buffers=[
                (max(one[0], other[0]), *one[1:]) for one, other in zip(ends[0].buffers, ends[1].buffers, strict=True)
            ],
            fixed_bytes=max(costs.fixed_bytes for costs in ends),
        )
        upper = self._rounded(layout, model, most)
        hidden = self._rounded(layout, model, replace(ends[0], kinds=hiding))
        tables = tuple(
            replace(
                kind,
                strategies=tuple(
                    replace(strategy, hideable=least.hideable)
                    for strategy, least in zip(kind.strategies, lower.strategies, strict=True)
                ),
            )
            for kind, lower in zip(upper.tables[0], hidden.tables[0], strict=True)
        )
        return replace(upper, tables=(tables,))

    @staticmethod
    def _rounded(layout: Layout, model: CostModel, costs: LayoutCosts[Any]) -> StageProblem:
        return stage_problem_of_costs(model.instance, layout, model, costs)


def _backward(costs: LayerCosts[Any]) -> list[Any]:
    """Input and weight gradient together, by strategy."""
    return [sum(pair) for pair in zip(costs.input_grad_s, costs.weight_grad_s, strict=True)]


def _larger(one: LayerCosts[Any], other: LayerCosts[Any]) -> LayerCosts[Any]:
    """Entry by entry the larger cost."""

    def larger(a: Any, b: Any) -> Any:
        return [max(pair) for pair in zip(a, b, strict=True)] if isinstance(a, list) else max(a, b)

    return LayerCosts(**{name: larger(getattr(one, name), getattr(other, name)) for name in _FIELDS})


_FIELDS = tuple(LayerCosts.__dataclass_fields__)


@dataclass(frozen=True)
class WorstCase:
    """Step time of one plan over a range of loads, in time units (pipeline time plus barrier).

    Attributes
    ----------
    loads
        Ends of the ranges that were bounded one by one.
    at_least
        The largest step time at any of these loads.
    at_most
        No load between them has a larger one; None where it is not shown that the plan fits at all of them.
    """

    loads: tuple[float, ...]
    at_least: int
    at_most: int | None


def step_time(problem: StageProblem, assignment: Assignment, simulate: Simulate = simulated_time) -> int:
    """Pipeline time plus barrier, in time units."""
    return simulate(problem, assignment) + problem.barrier


def headroom(problem: StageProblem, assignment: Assignment) -> int:
    """Free memory of the fullest rank at its fullest moment, in memory units; negative: it does not fit."""
    vectors = live_vectors(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)
    return min(row.capacity - row.total for row in rank_memories(problem, assignment, vectors))


def bounded_by(
    tables: LoadTables,
    layout: Layout,
    assignment: Assignment,
    loads: Sequence[float],
    simulate: Simulate = simulated_time,
) -> WorstCase:
    """The worst case as the ranges between the given loads (rising) bound it."""
    at_least = max(step_time(tables.problem(layout, load), assignment, simulate) for load in loads)
    uppers = [_range_bound(tables, layout, assignment, low, high, simulate) for low, high in pairwise(loads)]
    fits = all(upper is not None for upper in uppers)
    return WorstCase(tuple(loads), at_least, max(upper or 0 for upper in uppers) if fits else None)


def _range_bound(
    tables: LoadTables, layout: Layout, assignment: Assignment, low: float, high: float, simulate: Simulate
) -> int | None:
    """Upper bound on the step time between two loads; None where memory's bound exceeds the capacity."""
    problem = tables.upper_problem(layout, low, high)
    return step_time(problem, assignment, simulate) if headroom(problem, assignment) >= 0 else None


def worst_case(
    tables: LoadTables, layout: Layout, assignment: Assignment, loads: Sequence[float], most: int = MOST_RANGES
) -> WorstCase:
    """The worst case over the range that `loads` (rising) spans, ranges halved as long as that can help."""
    times = {load: step_time(tables.problem(layout, load), assignment) for load in loads}
    bounds = {pair: _range_bound(tables, layout, assignment, *pair, simulated_time) for pair in pairwise(loads)}
    fits_at_ends = all(headroom(tables.problem(layout, load), assignment) >= 0 for load in loads)
    while fits_at_ends and len(bounds) < most:
        at_least = max(times.values())
        open_ranges = [pair for pair, upper in bounds.items() if upper is None or upper > at_least]
        if not open_ranges:
            break
        low, high = max(open_ranges, key=lambda pair: (bounds[pair] is None, bounds[pair] or 0))
        middle = (low + high) / 2
        if not low < middle < high:
            break
        problem = tables.problem(layout, middle)
        if headroom(problem, assignment) < 0:
            break
        times[middle] = step_time(problem, assignment)
        del bounds[low, high]
        for pair in ((low, middle), (middle, high)):
            bounds[pair] = _range_bound(tables, layout, assignment, *pair, simulated_time)
    fits = fits_at_ends and all(upper is not None for upper in bounds.values())
    at_most = max(upper or 0 for upper in bounds.values()) if fits else None
    return WorstCase(tuple(sorted(times)), max(times.values()), at_most)
