"""Benchmark room: a published configuration beside our proved plan, under one cost model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from prism_cp.benchmark.published import PublishedConfiguration
from prism_cp.benchmark.time_terms import TimeTerms, time_terms
from prism_cp.check import check_plan
from prism_cp.check_layout import layout_faults
from prism_cp.errors import ExitCode, PrismError
from prism_cp.estimation.configuration import Configuration
from prism_cp.estimation.estimate import estimate
from prism_cp.estimation.statements import configuration_from_plan
from prism_cp.formulas.strategies import strategies_for
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout, LayoutSpace
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.pipeline import live_vectors
from prism_cp.plan import Plan
from prism_cp.plan_builder import build_plan
from prism_cp.search.options import SearchOptions
from prism_cp.search.solve import solve_instance
from prism_cp.stage_problem import Assignment, rank_memories

GIB = 2**30
SHARE_OF_ITS_LAYOUT = 1 / 3  # of a search's time limit, for the search that has the published layout only


class ComparisonFailed(PrismError):
    """Our plan and the published configuration contradict each other, or our plan does not pass its check."""

    exit_code = ExitCode.CHECK_FAILED


@dataclass(frozen=True)
class PublishedValue:
    """A published configuration under the cost model.

    Attributes
    ----------
    step_time_s : float
    total_gib, capacity_gib, usable_gib : float
        Of the rank that lacks most: what it holds, what a plan may fill, the same without the margin.
    outside : tuple of str
        Why the search could not have chosen it, memory not counted; empty: it could.
    tflops_per_device : float
    terms : TimeTerms
    """

    step_time_s: float
    total_gib: float
    capacity_gib: float
    usable_gib: float
    outside: tuple[str, ...]
    tflops_per_device: float
    terms: TimeTerms

    @property
    def fits(self) -> bool:
        """Whether a plan could be this."""
        return self.total_gib <= self.capacity_gib


@dataclass(frozen=True)
class Comparison:
    """One row: the published configuration, the best plan of its layout, our plan."""

    published: PublishedConfiguration
    value: PublishedValue
    same_layout: Plan
    plan: Plan
    plan_terms: TimeTerms | None
    wall_s: float

    @property
    def ratio(self) -> float | None:
        """Published step time over ours."""
        return self.value.step_time_s / self.plan.step_time_s if self.plan.step_time_s else None


def compare(published: PublishedConfiguration, options: SearchOptions) -> Comparison:
    """Value the published configuration, search for plans, and hold both against each other.

    The search over all layouts starts from the best plan of the published one, so it is never behind it.

    Raises
    ------
    ComparisonFailed
        The published configuration is in the search space, fits, and is faster than the proven bound; or a plan does
        not pass the check.
    """
    value = published_value(published)
    pinned = published.instance.model_copy(update={"layout": _only(published.run.layout, published.instance.layout)})
    limit = options.time_limit_s
    short = replace(options, time_limit_s=None if limit is None else SHARE_OF_ITS_LAYOUT * limit)
    same, start = _solved(pinned, short, ())
    plan, _ = _solved(published.instance, options, start)
    wall_s = same.search.wall_s + plan.search.wall_s
    for bounded in (plan, same):
        least = bounded.bound_s
        # A relative 1e-12 is far below the time unit: both numbers are whole multiples of it.
        if value.fits and not value.outside and least is not None and value.step_time_s < least * (1 - 1e-12):
            raise ComparisonFailed(
                f"{published.name}: the published configuration takes {value.step_time_s} s, less than the proven "
                f"bound of {least} s"
            )
    terms = time_terms(configuration_from_plan(plan)) if plan.layout is not None else None
    return Comparison(published, value, same, plan, terms, wall_s)


def _only(layout: Layout, space: LayoutSpace) -> LayoutSpace:
    """The space of that one layout with any sharding of states; what layers may recompute stays as it is.

    Frameworks differ in what a ZeRO stage means for gradients, so the published one is not held against them.
    """
    return space.pinned_to(layout).model_copy(update={"zero": space.zero})


def _solved(
    instance: Instance, options: SearchOptions, known: Sequence[tuple[Layout, Assignment]]
) -> tuple[Plan, list[tuple[Layout, Assignment]]]:
    """The checked plan, and the same as something another search can start from (nothing without a plan)."""
    result = solve_instance(instance, options, known=known)
    plan = build_plan(instance, result)
    found = check_plan(plan, instance)
    if not found.ok:
        raise ComparisonFailed(f"{instance.name}: {found.findings[0].key}: {found.findings[0].problem}")
    best = result.best
    return plan, [] if best is None or best.assignment is None else [(best.layout, best.assignment)]


def published_value(published: PublishedConfiguration) -> PublishedValue:
    """Step time and memory as a plan would state them, and why the search could not choose the configuration."""
    instance, run = published.instance, published.run
    found = estimate(run)
    problem = build_stage_problem(run.instance, run.layout, CostModel(run.instance))
    vectors = live_vectors(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)
    rows = rank_memories(problem, run.assignment, vectors)
    worst = max(rows, key=lambda row: row.total - row.capacity)
    unit = instance.memory_unit_bytes / GIB
    return PublishedValue(
        step_time_s=found.iteration_s,
        total_gib=worst.total * unit,
        capacity_gib=worst.capacity * unit,
        usable_gib=found.usable_gib,
        outside=tuple(_outside(instance, run)),
        tflops_per_device=found.tflops_per_device,
        terms=time_terms(run),
    )


def _outside(instance: Instance, run: Configuration) -> list[str]:
    reasons = [f"{field}: {text}" for field, text in layout_faults(instance, run.layout)]
    for index, kind in enumerate(run.instance.model.chain_kinds):
        allowed = {strategy.name for strategy in strategies_for(kind, instance)}
        names = [strategy.name for strategy in strategies_for(kind, run.instance)]
        used = {name for row in run.assignment.counts for name, count in zip(names, row[index], strict=True) if count}
        reasons += [f"recompute: {name} is not searched" for name in sorted(used - allowed)]
    return reasons


def measure_published(
    rows: Sequence[PublishedConfiguration], options: SearchOptions, say: Callable[[str], None]
) -> list[Comparison]:
    """Compare all, one after the other."""
    found = []
    for number, published in enumerate(rows, 1):
        row = compare(published, options)
        say(f"{number}/{len(rows)}  {published.name}: {row.plan.status}, {row.wall_s:.1f} s")
        found.append(row)
    return found
