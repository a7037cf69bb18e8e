"""Benchmark room: the comparison with published configurations as Markdown and JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from prism_cp.benchmark.compare_published import Comparison
from prism_cp.benchmark.machine import machine, versions
from prism_cp.benchmark.tables import grid, origin_lines
from prism_cp.benchmark.time_terms import TimeTerms
from prism_cp.plan import Plan, PlanLayout
from prism_cp.report.numbers import gap, gib, percent
from prism_cp.report.plan_report import layout_text

HEADER = (
    "configuration", "published s", "TFLOP/s", "measured s", "TFLOP/s", "needs GiB", "of GiB", "best of its layout s",
    "our plan s", "published / ours", "proved",
)  # fmt: skip
TERMS = ("host", "communication", "waiting", "recomputation", "kernels")
READING = """Both sides of a row are of the same model, devices, batch and framework profile, and valued by the same
cost model in the same run. *Published*: the configuration as published, stage by stage. *Measured*: what the source
states (~: from its TFLOP/s). *Needs* and *of*: memory of the rank that lacks most, against what a plan may fill (after
the margin). *Best of its layout*: our stages, recomputation and sharding of states in the published layout, within
memory. *Our plan*: every layout, every schedule, `vpp` up to 2 or as published, searched from that plan on. *Proved*:
bound and plan are equal integers, else the gap.

A plan that is much faster here than a configuration that experts tuned is first of all a statement about the cost
model; the second table says which of its terms makes the difference."""
TERMS_READING = """Seconds of the step, left out of the model one after the other: *host*: launches and synchronisation
of the host; *communication*: what is then exposed of it; *waiting*: pipeline ranks for each other; *recomputation*;
*kernels*: the rest. Host time of mixtures of experts is the least certain of them (see validation.md)."""


def published_markdown(rows: Sequence[Comparison], command: str, time_limit_s: float | None) -> str:
    """The tables, what differs in every row, sources, and the command that makes it again."""
    lines = ["# Published configurations", "", READING, "", *grid(HEADER, map(_cells, rows)), ""]
    lines += _model_errors(rows)
    header = ("step", *(f"{name} s" for name in TERMS), "schedule")
    lines += ["## Where the step goes", "", TERMS_READING, "", *grid(header, _term_rows(rows)), "", "## Row by row", ""]
    for row in rows:
        lines += _details(row)
    limit = (
        ""
        if time_limit_s is None
        else f" The search of a row may take {time_limit_s:g} s, the one of its layout a third of that."
    )
    seconds = sum(row.wall_s for row in rows)
    lines += [f"Made with `{command}` in {seconds:.0f} s of search.{limit}", "", *origin_lines()]
    return "\n".join(lines) + "\n"


def _model_errors(rows: Sequence[Comparison]) -> list[str]:
    """How far the model is from the measured step times of these rows."""
    known = [(row.value.step_time_s, row.published.measured_step_s) for row in rows]
    errors = [abs(modelled / measured - 1) for modelled, measured in known if measured is not None]
    if not errors:
        return []
    mean = percent(sum(errors) / len(errors))
    return [f"Modelled against measured step time of the published configurations: {mean} mean absolute error.", ""]


def _cells(row: Comparison) -> tuple[str, ...]:
    published, value, plan = row.published, row.value, row.plan
    measured = published.measured
    tflops = "-" if measured.tflops_per_device is None else f"{measured.tflops_per_device:.0f}"
    return (
        published.name,
        _seconds(value.step_time_s),
        f"{value.tflops_per_device:.0f}",
        _measured(row),
        tflops,
        gib(value.total_gib),
        gib(value.capacity_gib),
        _best(row.same_layout),
        _seconds(plan.step_time_s),
        "-" if row.ratio is None else f"{row.ratio:.3f}",
        _proof(plan),
    )


def _measured(row: Comparison) -> str:
    """Published seconds of a step; about, where they follow from TFLOP/s in the source's own counting."""
    measured = row.published.measured
    if row.published.measured_step_s is None and measured.tflops_per_device is not None:
        return f"~{row.value.step_time_s * row.value.tflops_per_device / measured.tflops_per_device:.3f}"
    return _seconds(row.published.measured_step_s)


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _best(plan: Plan) -> str:
    if plan.step_time_s is None:
        return "nothing fits" if plan.status == "infeasible" else "none found"
    return _seconds(plan.step_time_s) + ("" if plan.proved else f" (gap {gap(plan.gap)})")


def _proof(plan: Plan) -> str:
    if plan.proved:
        return "yes" if plan.status == "optimal" else "yes (nothing fits)"
    return "no" if plan.gap is None else f"gap {gap(plan.gap)}"


def _term_rows(rows: Sequence[Comparison]) -> list[tuple[str, ...]]:
    lines = []
    for row in rows:
        schedule = row.published.run.layout.schedule
        lines.append((f"{row.published.name}, published", *_terms(row.value.terms), schedule))
        if row.plan_terms is not None and row.plan.layout is not None:
            lines.append((f"{row.published.name}, ours", *_terms(row.plan_terms), row.plan.layout.schedule))
    return lines


def _terms(terms: TimeTerms) -> tuple[str, ...]:
    return tuple(_seconds(getattr(terms, f"{name}_s")) for name in TERMS)


def _details(row: Comparison) -> list[str]:
    published, value, plan = row.published, row.value, row.plan
    lines = [f"### {published.name}", "", f"- Published: {layout_text(PlanLayout.of(published.run.layout))}"]
    lines.append(f"- Ours: {layout_text(plan.layout) if plan.layout is not None else plan.status}")
    if not value.fits:
        short = value.total_gib - value.capacity_gib
        without = value.total_gib - value.usable_gib
        how = "fits without the margin" if without <= 0 else f"{gib(without)} GiB without the margin"
        lines.append(f"- The published configuration does not fit in modelled memory: {gib(short)} GiB short, {how}.")
    lines += [f"- Outside of the search space: {reason}." for reason in value.outside]
    difference = _largest_difference(row)
    if difference:
        lines.append(difference)
    lines += [f"- {text[:1].upper()}{text[1:]}." for text in published.differs]
    return [*lines, f"- Source: {published.source.strip().rstrip('.')}.", ""]


def _largest_difference(row: Comparison) -> str | None:
    """Which term our plan saves most of, as a sentence."""
    if row.plan_terms is None or row.plan.step_time_s is None:
        return None
    saved = {name: getattr(row.value.terms, f"{name}_s") - getattr(row.plan_terms, f"{name}_s") for name in TERMS}
    total = row.value.step_time_s - row.plan.step_time_s
    if total <= 0:
        return f"- Ours takes {percent(-total / row.value.step_time_s)} longer: it keeps to the memory."
    order = sorted(saved, key=lambda name: -saved[name])
    told = ", ".join(f"{name} {saved[name]:+.3f} s" for name in order)
    return f"- Ours is {total:.3f} s shorter; saved: {told}."


def published_json(rows: Sequence[Comparison], command: str, time_limit_s: float | None) -> str:
    """The same as plain values, with the layouts in full."""
    content: dict[str, Any] = {"command": command, "time_limit_s": time_limit_s}
    content |= {"machine": machine(), "versions": versions(), "rows": [_as_json(row) for row in rows]}
    return json.dumps(content, indent=1) + "\n"


def _as_json(row: Comparison) -> dict[str, Any]:
    value = asdict(row.value)
    return {
        "name": row.published.name,
        "source": row.published.source,
        "differs": row.published.differs,
        "measured": row.published.measured.model_dump() | {"step_time_s": row.published.measured_step_s},
        "published": value | {"fits": row.value.fits, "layout": PlanLayout.of(row.published.run.layout).model_dump()},
        "best_of_its_layout": _plan_as_json(row.same_layout),
        "ours": _plan_as_json(row.plan) | {"terms": None if row.plan_terms is None else asdict(row.plan_terms)},
        "ratio": row.ratio,
        "wall_s": row.wall_s,
    }


def _plan_as_json(plan: Plan) -> dict[str, Any]:
    return {
        "status": plan.status,
        "proved": plan.proved,
        "step_time_s": plan.step_time_s,
        "bound_s": plan.bound_s,
        "gap": plan.gap,
        "layout": None if plan.layout is None else plan.layout.model_dump(),
        "wall_s": plan.search.wall_s,
    }
