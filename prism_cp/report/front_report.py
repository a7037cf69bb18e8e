"""Report room: a front as table, JSON and CSV, and in words what is proved about it."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

from rich.console import Console
from rich.table import Table

from prism_cp.plan import Plan
from prism_cp.report.numbers import count, gap, percent, seconds
from prism_cp.report.plan_report import layout_text
from prism_cp.search.front import GIB, Axis, Front, FrontPoint

SCHEMA_VERSION = 1
TITLES: dict[Axis, str] = {"memory": "memory GiB", "devices": "devices", "gbs": "gbs"}
COLUMNS = (
    "value", "override", "status", "proved", "on_front", "step_time_s", "bound_s", "gap", "tokens_per_s", "mfu",
    "needs_gib", "optimal_down_to", "layout", "reason", "wall_s",
)  # fmt: skip


def front_rows(front: Front) -> list[dict[str, Any]]:
    """One mapping a point with the keys of `COLUMNS`, largest value first."""
    on_front = {point.value for point in front.pareto()}
    points = sorted(front.points.values(), key=lambda point: -point.value)
    return [_row(front, point, point.value in on_front) for point in points]


def _row(front: Front, point: FrontPoint, on_front: bool) -> dict[str, Any]:
    plan, needs = point.plan, front.needs_bytes(point)

    def of_plan(name: str) -> Any:
        return None if plan is None else getattr(plan, name)

    return {
        "value": point.value,
        "override": front.override(point.value),
        "status": point.status,
        "proved": point.proved,
        "on_front": on_front,
        "step_time_s": of_plan("step_time_s"),
        "bound_s": of_plan("bound_s"),
        "gap": of_plan("gap"),
        "tokens_per_s": of_plan("tokens_per_s"),
        "mfu": of_plan("mfu"),
        "needs_gib": None if needs is None else needs / GIB,
        # The same plan is optimal for every cap it fits under.
        "optimal_down_to": needs if front.axis == "memory" and point.proved else None,
        "layout": plan.layout.model_dump() if plan is not None and plan.layout is not None else None,
        "reason": point.reason,
        "wall_s": point.wall_s,
    }


def front_json(front: Front, *, complete: bool) -> str:
    """Versioned JSON text; `complete` is false after a stop."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "instance_name": front.base.name,
        "axes": ["time", front.axis],
        "value": {"memory": "bytes of device memory", "devices": "devices", "gbs": "sequences per step"}[front.axis],
        "complete": complete,
        "points": front_rows(front),
        "open": [
            {"from": front.bytes_for(gap.low), "to": front.bytes_for(gap.high)}
            for gap in (front.gaps() if front.axis == "memory" else [])
        ],
        "skipped": front.skipped,
        "notes": front_notes(front),
    }
    return json.dumps(document, indent=2)


def front_csv(front: Front) -> str:
    """Comma-separated values with a header; the layout is one text column."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row, point in zip(front_rows(front), _points(front), strict=True):
        text = _layout(point.plan)
        writer.writerow({key: "" if value is None else value for key, value in {**row, "layout": text}.items()})
    return stream.getvalue()


def print_front(front: Front, console: Console, *, complete: bool) -> None:
    """Title, one row a point, and what is proved."""
    name = {"memory": "memory per device", "devices": "number of devices", "gbs": "sequences per step"}[front.axis]
    suffix = "" if complete else " (stopped)"
    console.print(f"{front.base.name}: step time against {name}{suffix}", markup=False, style="bold")
    table = Table()
    table.add_column("", no_wrap=True)
    numbers = [TITLES[front.axis], "step time", "tokens/s", "MFU", "needs GiB"]
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("status", no_wrap=True)
    table.add_column("layout", overflow="fold")
    for row, point in zip(front_rows(front), _points(front), strict=True):
        table.add_row(
            "*" if row["on_front"] else "",
            value_text(front.axis, point.value),
            seconds(row["step_time_s"]) if row["step_time_s"] is not None else "-",
            count(row["tokens_per_s"]) if row["tokens_per_s"] is not None else "-",
            percent(row["mfu"]) if row["mfu"] is not None else "-",
            f"{row['needs_gib']:,.2f}" if row["needs_gib"] is not None else "-",
            status_text(point),
            _layout(point.plan) or point.reason,
        )
    console.print(table)
    console.print("* on the front: no point is faster without costing more in the other direction")
    for note in front_notes(front):
        console.print(note, markup=False, soft_wrap=True)


def value_text(axis: Axis, value: int) -> str:
    """A value of the varied field as people read it."""
    return f"{value / GIB:,.3f}" if axis == "memory" else f"{value:,}"


def status_text(point: FrontPoint) -> str:
    """Whether it is proved, and the gap otherwise."""
    if point.proved:
        return "infeasible" if point.objective is None else "optimal"
    if point.plan is None or point.plan.gap is None:
        return "unknown"
    return f"gap {gap(point.plan.gap)}"


def front_notes(front: Front) -> list[str]:
    """Sentences on what the points prove and what stays open."""
    notes = list(_memory_notes(front) if front.axis == "memory" else [])
    if front.axis == "devices":
        notes += _device_notes(front)
    unproved = sum(not point.proved for point in front.points.values())
    if unproved:
        notes.append(f"{unproved} of {len(front.points)} points are not proved.")
    if front.skipped:
        notes.append(f"{len(front.skipped)} values contradict the instance and were skipped, first {front.skipped[0]}")
    return notes


def _memory_notes(front: Front) -> list[str]:
    proved = [p for p in front.points.values() if p.proved and p.objective is not None]
    if not proved:
        return []
    notes = ["Every proved plan is optimal for all memory sizes from what it needs up to its own."]
    infeasible = max((p.value for p in front.points.values() if p.proved and p.objective is None), default=None)
    least = min(front.needs_bytes(point) or 0 for point in proved)
    if infeasible is not None:
        notes.append(
            f"Nothing fits into {infeasible / GIB:,.3f} GiB or less; something fits into {least / GIB:,.3f} GiB."
        )
    gaps = front.gaps()
    if not gaps:
        notes.append("The front is complete: no memory size is left open.")
    else:
        told = ", ".join(
            f"{front.bytes_for(gap.low) / GIB:,.3f} to {front.bytes_for(gap.high) / GIB:,.3f}" for gap in gaps[:4]
        )
        left = len(gaps) - 4
        more = f" and {left} more {'range' if left == 1 else 'ranges'}" if left > 0 else ""
        notes.append(f"Open (between the step times around it): {told}{more} GiB; --points asks for more.")
    return notes


def _device_notes(front: Front) -> list[str]:
    fitting = [point.value for point in front.points.values() if point.objective is not None]
    if not fitting:
        return []
    fewest = min(fitting)
    smaller = [point for point in front.points.values() if point.value < fewest]
    text = f"Fewest devices that fit, of the numbers tried: {fewest:,}."
    if smaller and all(point.proved for point in smaller):
        text += (
            f" With {', '.join(f'{point.value:,}' for point in _points(front) if point.value < fewest)} nothing fits."
        )
    return [text]


def _points(front: Front) -> list[FrontPoint]:
    return sorted(front.points.values(), key=lambda point: -point.value)


def _layout(plan: Plan | None) -> str:
    return layout_text(plan.layout) if plan is not None and plan.layout is not None else ""
