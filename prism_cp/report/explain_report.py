"""Report room: the explanation of a plan, and of an instance without one, as text and as plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Console

from prism_cp.plan import Plan
from prism_cp.report.critical_path import path_in_words, stated_critical_path
from prism_cp.report.infeasible import LayoutShortage
from prism_cp.report.numbers import gib, percent, seconds
from prism_cp.report.plan_report import (
    alternatives_table,
    certificate_line,
    headline,
    layout_text,
    search_line,
    why_lost,
)

if TYPE_CHECKING:
    from prism_cp.search.relaxations import Relaxation

TERM_TEXTS = {
    "static": "weights, gradients and optimizer states",
    "activation": "activations of live micro-batches",
    "transient": "temporary memory of a backward pass",
    "optimizer step": "temporary memory of the optimizer step",
    "buffers": "shared buffers",
    "fixed": "context, communicators and workspaces",
}


def print_plan_explanation(plan: Plan, console: Console) -> None:
    """What bounds the step time, how full the ranks are, and why every further layout lost."""
    console.print(headline(plan), markup=False, style="bold")
    if plan.layout is not None:
        console.print("Layout  " + layout_text(plan.layout), markup=False, soft_wrap=True)
        console.print()
        console.print("What bounds the step time", style="bold")
        for sentence in path_in_words(stated_critical_path(plan)):
            console.print(f"  {sentence}", markup=False, soft_wrap=True)
        console.print()
        console.print("What bounds memory", style="bold")
        console.print(f"  {tightest_rank(plan)}", markup=False)
        console.print()
    console.print(search_line(plan), markup=False)
    console.print(certificate_line(plan), markup=False)
    if plan.top_k:
        console.print(alternatives_table(plan))


def plan_explanation(plan: Plan) -> dict[str, Any]:
    """The same as plain values."""
    explained = plan.layout is not None
    path = stated_critical_path(plan) if explained else None
    return {
        "instance_name": plan.instance_name,
        "status": plan.status,
        "proved": plan.proved,
        "step_time_s": plan.step_time_s,
        "critical_path": path.as_json() if path else None,
        "critical_path_text": path_in_words(path) if path else None,
        "memory_text": tightest_rank(plan) if explained else None,
        "alternatives": [
            {
                "layout": other.layout.model_dump(),
                "ending": other.ending,
                "lower_bound_s": other.lower_bound_s,
                "best_s": other.best_s,
                "why_it_lost": why_lost(other, plan),
            }
            for other in plan.top_k
        ],
    }


def tightest_rank(plan: Plan) -> str:
    """The rank with the least head-room, and what fills it."""
    rank = min(plan.ranks, key=lambda one: one.memory_gib.headroom)
    memory = rank.memory_gib
    terms = {
        "activations": memory.activations,
        "optimizer states": memory.optimizer,
        "weights": memory.weights,
        "gradients": memory.gradients,
        "temporary memory": memory.transient,
        "shared buffers": memory.buffers,
        "context, communicators and workspaces": memory.fixed,
    }
    largest = max(terms, key=lambda name: terms[name])
    return (
        f"rank {rank.rank} is fullest: {gib(memory.total)} of {gib(memory.capacity)} GiB "
        f"({gib(memory.headroom)} free, besides a margin of {percent(plan.instance.profile.memory_margin)}); "
        f"most of it, {percent(terms[largest] / memory.total)}, is {largest}"
    )


def print_infeasible(
    name: str, closest: list[LayoutShortage], relaxations: list[Relaxation], time_unit_s: float, console: Console
) -> None:
    """Which rank lacks what in the layouts that come closest, and the changes that help."""
    console.print(f"{name}: Proved infeasible: nothing fits", style="bold", markup=False)
    for shortage in closest[:3]:
        console.print()
        console.print("Closest layout  " + layout_text(shortage.layout), markup=False, soft_wrap=True)
        for rank in shortage.ranks:
            console.print(f"  {rank_sentence(rank.rank, rank.term, rank.short_gib, rank.memory_gib)}", markup=False)
    console.print()
    if not relaxations:
        console.print("No single change that was tried makes it fit.")
        return
    console.print("Changes that make it fit, fastest plan first (each solved)", style="bold")
    for relaxation in relaxations:
        text = f"  --set {' --set '.join(relaxation.change.split())}: {relaxation_sentence(relaxation, time_unit_s)}"
        console.print(text, markup=False, soft_wrap=True)


def rank_sentence(rank: int, term: str, short_gib: float, memory_gib: dict[str, float]) -> str:
    """One rank's shortage in words."""
    return (
        f"rank {rank} is {gib(short_gib)} GiB short: it needs {gib(memory_gib['total'])} of "
        f"{gib(memory_gib['capacity'])} GiB at least{_margin_text(memory_gib['margin'])}, most of it "
        f"{TERM_TEXTS.get(term, term)}"
    )


def _margin_text(margin_gib: float) -> str:
    return f" (a margin of {gib(margin_gib)} GiB is kept free)" if margin_gib else ""


def relaxation_sentence(relaxation: Relaxation, time_unit_s: float) -> str:
    """What a change gives."""
    result = relaxation.result
    assert result.objective is not None
    proof = "proved" if result.proved else "not proved optimal"
    return f"{relaxation.description}; step time {seconds(result.objective * time_unit_s)} ({proof})"


def infeasible_explanation(
    name: str, closest: list[LayoutShortage], relaxations: list[Relaxation], time_unit_s: float
) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "instance_name": name,
        "status": "infeasible",
        "proved": True,
        "closest_layouts": [shortage.as_json() for shortage in closest],
        "relaxations": [
            {
                "change": relaxation.change,
                "description": relaxation.description,
                "step_time_s": None
                if relaxation.result.objective is None
                else relaxation.result.objective * time_unit_s,
                "proved": relaxation.result.proved,
            }
            for relaxation in relaxations
        ],
    }
