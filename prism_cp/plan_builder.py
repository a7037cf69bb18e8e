"""Plan room: turns a search result into a plan.

`plan_figures` is what a layout and an assignment alone imply; the checker calls it again, with the pipeline time of its
own simulator, and compares.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from fractions import Fraction
from importlib import metadata
from typing import Any, Protocol

import prism_cp
from prism_cp.breakdown import ExactTables, Tables, TableSource, rank_plans, strategy_counts, virtual_stage_plans
from prism_cp.formulas.flops import hardware_flops_per_step, model_flops_per_step
from prism_cp.formulas.strategies import strategies_for
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.inputs.load import instance_digest
from prism_cp.pipeline import pipeline_time
from prism_cp.plan import SCHEMA_VERSION, Alternative, Plan, PlanCertificate, PlanLayout, SearchSummary
from prism_cp.result import LayoutOutcome, SearchResult
from prism_cp.stage_problem import Assignment, StageProblem, stage_times

PACKAGES = ("ortools", "highspy", "sympy", "numpy", "numba", "networkx", "pydantic")
WITHOUT_PLAN: dict[str, Any] = {
    "step_time_s": None,
    "tokens_per_s": None,
    "mfu": None,
    "hfu": None,
    "layout": None,
    "pipeline_time": None,
    "barrier": None,
    "p2p": None,
    "virtual_stages": (),
    "ranks": (),
}


class CertificateLike(Protocol):
    """What the builder needs to know of a certificate."""

    @property
    def levels(self) -> tuple[str, ...]:
        """Names of the levels reached."""

    @property
    def details(self) -> Mapping[str, Any]:
        """Facts in JSON's types."""


def build_plan(
    instance: Instance,
    result: SearchResult,
    certificate: CertificateLike | None = None,
    *,
    tables: TableSource | None = None,
) -> Plan:
    """The plan a search result stands for.

    Parameters
    ----------
    instance : Instance
    result : SearchResult
        `objective` and `bound` in time units.
    certificate : optional
        Levels beyond ``bound``, which follows from the integers and is added here when they prove it.
    tables
        Where the best layout's tables come from; None: from the formulas, exactly.
    """
    levels = ["bound"] if result.proved else []
    if certificate is not None:
        levels += [level for level in certificate.levels if level not in levels]
    figures = WITHOUT_PLAN
    best = result.best
    if best is not None:
        assert best.assignment is not None, "a best outcome comes with its assignment"
        best_tables = (tables or ExactTables())(instance, best.layout)
        figures = plan_figures(
            instance, best.layout, best_tables, best.assignment, simulated_time(best_tables.problem, best.assignment)
        )
    statistics = result.statistics
    return Plan.model_validate(
        {
            **claims(result.objective, result.bound, instance.time_unit_s),
            **figures,
            "schema_version": SCHEMA_VERSION,
            "instance_name": instance.name,
            "instance_digest": instance_digest(instance),
            "status": result.status,
            "proved": result.proved,
            "flops_convention": flops_convention(instance),
            "time_unit_s": instance.time_unit_s,
            "memory_unit_bytes": instance.memory_unit_bytes,
            "search": SearchSummary(
                layouts_total=statistics.layouts_total,
                pruned=statistics.pruned,
                no_better=statistics.no_better,
                solved=statistics.solved,
                infeasible=statistics.infeasible,
                open=statistics.open,
                wall_s=statistics.wall_s,
                deterministic_time=statistics.deterministic_time,
                workers=result.workers,
                interrupted=result.interrupted,
            ),
            "certificate": PlanCertificate.model_validate(
                {"levels": levels, "details": dict(certificate.details) if certificate else {}}
            ),
            "versions": versions(),
            "seed": result.seed,
            "top_k": tuple(alternative(outcome, instance.time_unit_s) for outcome in result.others),
            "notes": result.notes,
            "instance": instance,
        }
    )


def claims(objective: int | None, bound: int | None, time_unit_s: float) -> dict[str, Any]:
    """What integers objective and bound say in the plan: themselves, the gap, and the bound in seconds."""
    gap = None
    if objective is not None and bound is not None:
        gap = float(Fraction(objective - bound, objective)) if objective else 0.0
    return {
        "objective": objective,
        "bound": bound,
        "gap": gap,
        "bound_s": None if bound is None else bound * time_unit_s,
    }


def plan_figures(
    instance: Instance, layout: Layout, tables: Tables, assignment: Assignment, pipeline_time: int
) -> dict[str, Any]:
    """The fields of a plan that follow from its layout and assignment (keys of `WITHOUT_PLAN`).

    Parameters
    ----------
    pipeline_time : int
        Simulated length of the schedule, in time units.
    """
    problem, job = tables.problem, instance.job
    step_time_s = (pipeline_time + problem.barrier) * instance.time_unit_s
    peak = peak_flops(instance)
    hardware = hardware_flops_per_step(instance, _strategy_flop_counts(instance, problem, assignment))
    device_seconds = step_time_s * instance.cluster.num_devices
    return {
        "step_time_s": step_time_s,
        "tokens_per_s": job.gbs * job.seq_len / step_time_s,
        "mfu": float(model_flops_per_step(instance)) / (device_seconds * peak) if peak else None,
        "hfu": float(hardware) / (device_seconds * peak) if peak else None,
        "layout": PlanLayout.of(layout),
        "pipeline_time": pipeline_time,
        "barrier": problem.barrier,
        "p2p": problem.p2p,
        "virtual_stages": virtual_stage_plans(problem, assignment),
        "ranks": rank_plans(instance, tables, assignment, pipeline_time),
    }


def simulated_time(problem: StageProblem, assignment: Assignment) -> int:
    """Pipeline time of an assignment, in time units, by the fast simulator."""
    times = stage_times(problem, assignment)
    return int(
        pipeline_time(
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
    )


def peak_flops(instance: Instance) -> float | None:
    """Datasheet FLOP/s of one device in the job's precision; None when the device does not state it."""
    return instance.cluster.device.peak_flops.get(instance.job.precision)


def flops_convention(instance: Instance) -> str:
    """How MFU and HFU are counted, as a sentence."""
    precision = instance.job.precision
    counted = (
        "model FLOPs are three times the forward pass's matrix products and attention (causal attention counts half "
        "the scores; router and vocabulary padding count nothing); hardware FLOPs add what is recomputed"
    )
    peak = peak_flops(instance)
    if peak is None:
        return f"{counted}; not stated, because the device has no peak for {precision}"
    return f"{counted}; peak is {peak:.4g} FLOP/s ({precision}) on each of {instance.cluster.num_devices} devices"


def alternative(outcome: LayoutOutcome, time_unit_s: float) -> Alternative:
    """The plan's record of another layout."""
    return Alternative(
        layout=PlanLayout.of(outcome.layout),
        ending=outcome.ending,
        lower_bound=outcome.lower_bound,
        lower_bound_s=outcome.lower_bound * time_unit_s,
        best=outcome.best,
        best_s=None if outcome.best is None else outcome.best * time_unit_s,
        boundaries=outcome.assignment.boundaries if outcome.assignment else None,
        counts=outcome.assignment.counts if outcome.assignment else None,
        reason=outcome.reason,
    )


def versions() -> dict[str, str]:
    """Versions of this package, Python and the libraries a plan depends on."""
    found = {"prism_cp": prism_cp.__version__, "python": platform.python_version()}
    for package in PACKAGES:
        found[package] = metadata.version(package)
    return found


def _strategy_flop_counts(
    instance: Instance, problem: StageProblem, assignment: Assignment
) -> dict[str, dict[tuple[frozenset[str], bool], int]]:
    """How many layers of each kind recompute what, over the whole model."""
    result = {}
    for kind, counts in strategy_counts(problem, assignment).items():
        known = {strategy.name: strategy for strategy in strategies_for(kind, instance)}
        result[kind] = {(known[name].modules, known[name].full): n for name, n in counts.items()}
    return result
