"""Report room: an estimate as tables for people, and as JSON for programs."""

from __future__ import annotations

import json
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from prism_cp.estimation.configuration import Configuration
from prism_cp.estimation.estimate import Estimate
from prism_cp.plan import PlanLayout
from prism_cp.report.numbers import count, gib, percent, seconds
from prism_cp.report.plan_report import layout_text

TERMS = (
    "weights", "gradients", "optimizer", "activations", "transient", "buffers", "workspace", "received", "deferred",
    "gradient copy", "step temporary", "unsplit blocks",
)  # fmt: skip


def print_estimate(configuration: Configuration, found: Estimate, console: Console) -> None:
    """Headline, layout, memory and time of every pipeline rank."""
    instance = configuration.instance
    console.print(f"{instance.name}: step time {seconds(found.iteration_s)}", markup=False, style="bold")
    console.print(
        f"{count(found.tokens_per_s_per_device)} tokens/s and {found.tflops_per_device:.4g} model TFLOP/s on each of "
        f"{instance.cluster.num_devices:,} x {instance.cluster.device.name}",
        markup=False,
    )
    console.print(_fit_line(found), markup=False)
    console.print()
    console.print("Layout  " + layout_text(PlanLayout.of(configuration.layout)), markup=False, soft_wrap=True)
    console.print(memory_table(found))
    console.print(terms_table(found))
    console.print(time_table(found))


def _fit_line(found: Estimate) -> str:
    verdict = "fits" if found.fits_with_margin else "fits only without the margin" if found.fits else "does not fit"
    return (
        f"Fullest rank {gib(found.needed_gib)} GiB with driver and communicators, {gib(found.needed_with_margin_gib)} "
        f"with a margin of {percent(found.memory_margin)}: {verdict} in {gib(found.usable_gib)} usable GiB"
    )


def memory_table(found: Estimate) -> Table:
    """One row per pipeline rank: allocated between steps, peak and its phase, and what the allocator does not see."""
    table = Table(title="Memory (GiB)", title_justify="left")
    for column in ("rank", "between steps", "peak"):
        table.add_column(column, justify="right")
    table.add_column("peak in")
    table.add_column("driver and communicators", justify="right")
    for rank in found.ranks:
        table.add_row(str(rank.rank), gib(rank.steady_gib), gib(rank.peak_gib), rank.phase, gib(rank.outside_gib))
    return table


def terms_table(found: Estimate) -> Table:
    """One row per pipeline rank: what its peak consists of; terms that no rank has are left out."""
    terms = [term for term in TERMS if any(term in rank.breakdown_gib for rank in found.ranks)]
    table = Table(title="Terms of the peak (GiB)", title_justify="left")
    for column in ("rank", *terms):
        table.add_column(column, justify="right")
    for rank in found.ranks:
        table.add_row(str(rank.rank), *(gib(rank.breakdown_gib.get(term, 0.0)) for term in terms))
    return table


def time_table(found: Estimate) -> Table:
    """One row per pipeline rank: where the step goes."""
    table = Table(title="Time of one step (s)", title_justify="left")
    columns = ("rank", "forward", "backward", "recomputation", "optimizer and gather", "exposed reduction", "bubble")
    for column in columns:
        table.add_column(column, justify="right", overflow="fold")
    for rank, times in enumerate(found.rank_times):
        again = "-" if times.recomputation is None else f"{times.recomputation:.4g}"
        share = f"{times.bubble:.4g} ({percent(times.bubble / found.iteration_s)})"
        table.add_row(
            str(rank), f"{times.forward:.4g}", f"{times.backward:.4g}", again, f"{times.head:.4g}", f"{times.tail:.4g}",
            share,
        )  # fmt: skip
    return table


def estimate_as_json(configuration: Configuration, found: Estimate) -> str:
    """Everything of an estimate, with the layout and the placement it is about."""
    content = {
        "name": configuration.instance.name,
        "layout": PlanLayout.of(configuration.layout).model_dump(),
        "boundaries": configuration.assignment.boundaries,
        "steady_gib": found.steady_gib,
        "peak_gib": found.peak_gib,
        "needed_gib": found.needed_gib,
        "needed_with_margin_gib": found.needed_with_margin_gib,
        "memory_margin": found.memory_margin,
        "usable_gib": found.usable_gib,
        "fits": found.fits,
        "fits_with_margin": found.fits_with_margin,
        "iteration_s": found.iteration_s,
        "tokens_per_s_per_device": found.tokens_per_s_per_device,
        "tflops_per_device": found.tflops_per_device,
        "barrier_s": found.barrier_s,
        "ranks": [asdict(rank) for rank in found.ranks],
        "rank_times_s": [times.model_dump() for times in found.rank_times],
    }
    return json.dumps(content, indent=2)
