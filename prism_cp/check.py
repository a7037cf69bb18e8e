"""Check room: recomputes a finished plan from the instance alone; knows nothing of how it was found.

Nothing here imports the constraint model or the search. Legality is decided by `check_layout`, memory and stage times
by the exact formulas, the pipeline time by the plain reference simulator, live micro-batches by replaying op orders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prism_cp.breakdown import ExactTables, TableSource
from prism_cp.check_claims import claim_findings
from prism_cp.check_findings import Finding, differences
from prism_cp.check_layout import layout_faults
from prism_cp.check_robust import robust_findings
from prism_cp.errors import PlanError
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.inputs.load import instance_digest
from prism_cp.pipeline import get_schedule
from prism_cp.pipeline.reference import reference_pipeline_time
from prism_cp.pipeline.schedules import OpType
from prism_cp.plan import Alternative, Plan, PlanLayout, VirtualStagePlan
from prism_cp.plan_builder import WITHOUT_PLAN, plan_figures
from prism_cp.stage_problem import Assignment, StageProblem, rank_memories, stage_times, structure_errors

NOT_CHECKABLE: dict[str, str] = {
    "search.wall_s": "provenance",
    "search.deterministic_time": "provenance",
    "search.workers": "provenance",
    "search.interrupted": "provenance",
    "versions": "provenance",
    "seed": "provenance",
    "notes": "free text of the search",
    "top_k.*.reason": "free text of the search",
    "certificate.details": "what the certifying solvers reported",
}
"""Fields that nothing in plan and instance determines, with the reason; `*` stands for any position.

Besides, naming another legal layout in a `top_k` entry that has no plan of its own makes another claim, which only a
solver could refute.
"""


@dataclass(frozen=True)
class CheckReport:
    """All findings of a check, and what was looked at."""

    findings: tuple[Finding, ...]
    checks: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether the plan is right."""
        return not self.findings


def check_plan(plan: Plan, instance: Instance, *, tables: TableSource | None = None) -> CheckReport:
    """Recompute everything a plan states.

    Parameters
    ----------
    tables
        Where a layout's tables come from; None: from the formulas, exactly.

    Raises
    ------
    PlanError
        The plan is consistent, but of another instance.
    """
    tables = tables or ExactTables()
    digest = instance_digest(instance)
    own_digest = instance_digest(plan.instance)
    if digest not in (plan.instance_digest, own_digest):
        raise PlanError(
            "instance_digest",
            f"the plan is of instance {plan.instance_name!r} ({plan.instance_digest[:16]}…)",
            f"a plan of instance {instance.name!r} ({digest[:16]}…)",
        )
    findings = list(differences(plan.instance_digest, digest, "instance_digest"))
    findings += differences(plan.instance.model_dump(), instance.model_dump(), "instance")
    findings += differences(plan.instance_name, instance.name, "instance_name")
    findings += claim_findings(plan, instance)
    checks = ["instance", "claims", "search counts"]
    if plan.layout is None:
        found = {key: getattr(plan, key) for key in WITHOUT_PLAN}
        findings += differences(found, WITHOUT_PLAN, "")
        if plan.robust is not None:
            findings.append(Finding("robust", "is stated without a plan"))
    else:
        findings += _layout_findings(plan, plan.layout, instance, tables)
        checks += ["layout", "partition", "stage times", "memory", "pipeline time"]
        checks += ["range of loads"] if plan.robust is not None else []
    for index, other in enumerate(plan.top_k):
        findings += _alternative_findings(plan, other, instance, tables, f"top_k.{index}")
        if other.layout in (plan.layout, *(earlier.layout for earlier in plan.top_k[:index])):
            findings.append(Finding(f"top_k.{index}.layout", "is listed before"))
    checks += [f"{len(plan.top_k)} further layouts"]
    return CheckReport(tuple(findings), tuple(checks))


# -- the plan proper ---------------------------------------------------------------------------------------------------


def _layout_findings(plan: Plan, layout: PlanLayout, instance: Instance, tables: TableSource) -> Iterator[Finding]:
    """Legality, partition, memory and times of the plan itself."""
    yield from differences(layout.edp, layout.layout().edp, "layout.edp")
    faults = layout_faults(instance, layout.layout())
    yield from (Finding(f"layout.{field}", text) for field, text in faults)
    if faults:
        return
    layout_tables = tables(instance, layout.layout())
    problem = layout_tables.problem
    try:
        assignment = plan_assignment(plan.virtual_stages, problem)
    except ValueError as error:
        yield Finding("virtual_stages", str(error))
        return
    structure = [Finding("virtual_stages", text) for text in structure_errors(problem, assignment)]
    yield from structure
    if structure:
        return
    yield from (Finding("ranks", text) for text in memory_faults(problem, assignment))
    figures = plan_figures(instance, layout.layout(), layout_tables, assignment, _reference_time(problem, assignment))
    yield from differences({key: getattr(plan, key) for key in figures}, figures, "")
    if plan.robust is not None:
        yield from robust_findings(plan, plan.robust, instance, assignment, _reference_time)


def plan_assignment(stages: tuple[VirtualStagePlan, ...], problem: StageProblem) -> Assignment:
    """Boundaries and counts as a plan's virtual stages state them; ValueError when they cannot be read."""
    if len(stages) != len(problem.virtual_stages):
        raise ValueError(f"{len(stages)} virtual stages, the schedule has {len(problem.virtual_stages)}")
    sizes: dict[int, int] = {}
    counts: dict[int, tuple[tuple[int, ...], ...]] = {}
    for index, stage in enumerate(stages):
        row = _counts(stage, problem, index)
        if stage.piece in counts and (counts[stage.piece], sizes[stage.piece]) != (row, stage.layers.count):
            raise ValueError(f"two virtual stages hold piece {stage.piece} with different layers or strategies")
        counts[stage.piece], sizes[stage.piece] = row, stage.layers.count
    if sorted(sizes) != list(range(problem.num_pieces)):
        raise ValueError(f"pieces {sorted(sizes)}, expected 0..{problem.num_pieces - 1}")
    boundaries = [0]
    for piece in range(problem.num_pieces):
        boundaries.append(boundaries[-1] + sizes[piece])
    return Assignment(tuple(boundaries), tuple(counts[piece] for piece in range(problem.num_pieces)))


def _counts(stage: VirtualStagePlan, problem: StageProblem, index: int) -> tuple[tuple[int, ...], ...]:
    kinds = problem.tables[0]
    unknown = set(stage.strategies) - {kind.kind for kind in kinds}
    if unknown:
        raise ValueError(f"stage {index}: unknown layer kind {min(unknown)!r}")
    rows = []
    for kind in kinds:
        named = stage.strategies.get(kind.kind, {})
        unknown = set(named) - {strategy.name for strategy in kind.strategies}
        if unknown:
            raise ValueError(f"stage {index}: {min(unknown)!r} is no strategy that {kind.kind} layers may use")
        rows.append(tuple(named.get(strategy.name, 0) for strategy in kind.strategies))
    return tuple(rows)


def _reference_time(problem: StageProblem, assignment: Assignment) -> int:
    times = stage_times(problem, assignment)
    return reference_pipeline_time(
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


def memory_faults(problem: StageProblem, assignment: Assignment) -> list[str]:
    """Every moment at which a rank holds more than its capacity, as sentences, in memory units."""
    return [
        f"rank {row.rank} holds {row.total} of {row.capacity} memory units "
        + (f"with live micro-batches {list(row.live)}" if row.live else "in the optimizer step")
        for row in rank_memories(problem, assignment, replayed_live_vectors(problem))
        if row.total > row.capacity
    ]


def replayed_live_vectors(problem: StageProblem) -> list[list[tuple[int, ...]]]:
    """Every combination of live micro-batches that each rank's op order passes through, dominated ones included.

    Counts as in `live_counts`.
    """
    schedule = get_schedule(problem.schedule)
    orders = schedule.orders(problem.pp, problem.vpp, problem.num_microbatches)
    vectors = []
    for rank, order in enumerate(orders):
        held = [index for index, stage in enumerate(problem.virtual_stages) if stage.rank == rank]
        position = {index: column for column, index in enumerate(held)}
        live, deferred, seen = [0] * len(held), [0] * len(held), set()
        for op_type, stage, _ in order.tolist():
            if op_type in (OpType.FORWARD, OpType.OVERLAPPED_FORWARD):
                live[position[stage]] += 1
            elif op_type == OpType.INPUT_GRAD:
                live[position[stage]] -= 1
                deferred[position[stage]] += 1
            # While an op runs nothing it frees is free yet.
            seen.add((*live, *deferred) if schedule.splits_backward else tuple(live))
            if op_type in (OpType.BACKWARD, OpType.OVERLAPPED_BACKWARD):
                live[position[stage]] -= 1
            elif op_type == OpType.WEIGHT_GRAD:
                deferred[position[stage]] -= 1
        vectors.append(sorted(seen, reverse=True))
    return vectors


# -- further layouts ---------------------------------------------------------------------------------------------------


def _alternative_findings(
    plan: Plan, other: Alternative, instance: Instance, tables: TableSource, key: str
) -> Iterator[Finding]:
    """A further layout is legal, its plan is worth what is said, and its ending fits the claim."""
    layout, unit = other.layout.layout(), instance.time_unit_s
    yield from differences(other.layout.edp, layout.edp, f"{key}.layout.edp")
    yield from differences(other.lower_bound_s, other.lower_bound * unit, f"{key}.lower_bound_s")
    yield from differences(other.best_s, None if other.best is None else other.best * unit, f"{key}.best_s")
    if other.best is not None:
        if other.lower_bound > other.best:
            yield Finding(f"{key}.lower_bound", f"{other.lower_bound} is above its best value {other.best}")
        if plan.objective is None or other.best < plan.objective:
            yield Finding(f"{key}.best", f"{other.best} is better than the plan's {plan.objective}")
        if other.ending == "infeasible":
            yield Finding(f"{key}.ending", "'infeasible' although a plan is known")
    if other.ending == "solved" and other.best != other.lower_bound:
        yield Finding(f"{key}.ending", f"'solved' with best {other.best} and lower bound {other.lower_bound}")
    if other.ending not in ("infeasible", "open") and plan.objective is None:
        yield Finding(f"{key}.ending", f"{other.ending!r} without an incumbent")
    if other.ending == "open" and plan.proved:
        yield Finding(f"{key}.ending", "'open' in a proved result")
    if plan.bound is not None and other.ending != "infeasible" and other.lower_bound < plan.bound:
        yield Finding(f"{key}.lower_bound", f"{other.lower_bound} is below the bound {plan.bound} over all layouts")
    faults = layout_faults(instance, layout)
    yield from (Finding(f"{key}.layout.{field}", text) for field, text in faults)
    if not faults:
        yield from _alternative_value(other, layout, instance, tables, key)


def _alternative_value(
    other: Alternative, layout: Layout, instance: Instance, tables: TableSource, key: str
) -> Iterator[Finding]:
    """Its known plan, simulated again."""
    given = [other.best is not None, other.boundaries is not None, other.counts is not None]
    if any(given) and not all(given):
        yield Finding(f"{key}.best", "best, boundaries and counts belong together")
    if other.boundaries is None or other.counts is None:
        return
    problem = tables(instance, layout).problem
    assignment = Assignment(other.boundaries, other.counts)
    errors = structure_errors(problem, assignment) or memory_faults(problem, assignment)
    yield from (Finding(f"{key}.counts", text) for text in errors)
    if not errors:
        yield from differences(other.best, _reference_time(problem, assignment) + problem.barrier, f"{key}.best")
