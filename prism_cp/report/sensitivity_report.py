"""Report room: what each constant may do before a plan's layout stops being optimal, as a table and as plain values."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from prism_cp.inputs.layout import Layout
from prism_cp.report.numbers import percent
from prism_cp.robustness.sensitivity import Probe, Sensitivity, Side

CLAIM = (
    "Factors on one constant at a time; the layout is proved optimal at the probed factors named here, not at every "
    "factor between them."
)


def print_sensitivity(found: list[Sensitivity], layout: Layout, console: Console, *, complete: bool) -> None:
    """One row per constant: how far the layout was proved optimal in both directions, and what wins beyond."""
    table = Table(title="By how much a constant may change while the layout stays optimal", title_justify="left")
    table.add_column("constant")
    table.add_column("value", justify="right")
    for column in ("down", "up", "what changes there"):
        table.add_column(column)
    for one in found:
        constant = one.constant
        value = f"{constant.value:,.4g} {constant.unit}".rstrip()
        beyond = [
            f"x{side.ends_at.factor:g}: {ending(side.ends_at, layout)}"
            for side in (one.down, one.up)
            if side is not None and side.ends_at is not None
        ]
        table.add_row(constant.text, value, side_text(one.down), side_text(one.up), "; ".join(beyond))
    console.print(table)
    console.print(CLAIM, markup=False)
    if not complete:
        console.print("Stopped before every constant was probed.", markup=False)


def side_text(side: Side | None) -> str:
    """How far the layout holds on one side."""
    if side is None:
        return "-"
    if side.ends_at is None:
        return f"{'≤' if side.holds_to < 1 else '≥'} x{side.holds_to:.4g}"
    return "x1 only" if side.holds_to == 1 else f"to x{side.holds_to:.4g}"


def ending(probe: Probe, layout: Layout) -> str:
    """What is known at a probe at which the layout is not proved optimal."""
    if probe.verdict == "unproved":
        return "stopped without a proof"
    if probe.best is None:
        return "nothing fits"
    other = difference(layout, probe.best)
    if not probe.own_fits:
        return f"the layout no longer fits; {other}"
    if probe.own_step_time is None or probe.step_time is None:
        return other
    return f"{other} takes {percent(1 - probe.step_time / probe.own_step_time, 2)} less"


def difference(layout: Layout, other: Layout) -> str:
    """The fields in which another layout differs."""
    fields, theirs = layout.as_dict(), other.as_dict()
    texts = {name: "on" if value is True else "off" if value is False else str(value) for name, value in theirs.items()}
    names = {"num_microbatches": "micro-batches"}
    return ", ".join(f"{names.get(name, name)} {texts[name]}" for name in fields if fields[name] != theirs[name])


def sensitivity_as_json(
    found: list[Sensitivity], *, low: float, high: float, resolution: float, time_unit_s: float, complete: bool
) -> dict[str, Any]:
    """All probes as plain values."""

    def probe(one: Probe) -> dict[str, Any]:
        return {
            "factor": one.factor,
            "verdict": one.verdict,
            "layout": None if one.best is None else one.best.as_dict(),
            "step_time_s": None if one.step_time is None else one.step_time * time_unit_s,
            "own_step_time_s": None if one.own_step_time is None else one.own_step_time * time_unit_s,
            "own_layout_fits": one.own_fits,
        }

    def side(one: Side | None) -> dict[str, Any] | None:
        if one is None:
            return None
        return {"holds_to": one.holds_to, "ends_at": None if one.ends_at is None else one.ends_at.factor}

    return {
        "low": low,
        "high": high,
        "resolution": resolution,
        "claim": CLAIM,
        "complete": complete,
        "constants": [
            {
                "key": one.constant.key,
                "description": one.constant.text,
                "value": one.constant.value,
                "unit": one.constant.unit,
                "down": side(one.down),
                "up": side(one.up),
                "probes": [probe(found) for found in one.probes],
            }
            for one in found
        ],
    }
