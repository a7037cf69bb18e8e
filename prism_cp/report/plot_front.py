"""Report room: the picture of a front. Needs matplotlib."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from prism_cp.report.front_report import front_notes, value_text
from prism_cp.report.numbers import count, seconds
from prism_cp.report.plot import GRID_COLOUR, QUIET_COLOUR, drawing, html_table, page, rendered, require_matplotlib
from prism_cp.report.plot_timeline import time_scale
from prism_cp.search.front import GIB, Front, FrontPoint

FRONT_COLOUR, OTHER_COLOUR, INFEASIBLE_COLOUR, OPEN_COLOUR = "#2f6db3", "#9fb3c8", "#f6e3e0", "#e3ebf3"
NAMES = {"memory": "memory per device, GiB", "devices": "devices", "gbs": "sequences per step"}


def front_picture(front: Front, suffix: str) -> bytes:
    """A front's picture as the content of a file; `suffix` as for plans.

    Raises
    ------
    UsageError
        matplotlib is not installed.
    """
    require_matplotlib()
    with drawing():
        figure = front_figure(front)
        if suffix != ".html":
            return rendered(figure, suffix)
        title = f"{front.base.name}: step time against {NAMES[front.axis]}"
        return page(title, rendered(figure, ".svg").decode(), _table(front)).encode()


def front_figure(front: Front) -> Figure:
    """Step time (and throughput, for gbs) against the varied value."""
    figure = Figure(figsize=(10.5, 6.2))
    figure.text(0.09, 0.955, f"{front.base.name}: step time against {NAMES[front.axis]}", fontsize=13, weight="bold")
    notes = front_notes(front)
    figure.text(0.09, 0.918, notes[0] if notes else "", fontsize=8.5, color=QUIET_COLOUR)
    if front.axis == "gbs":
        upper = figure.add_axes((0.09, 0.54, 0.885, 0.34))
        lower = figure.add_axes((0.09, 0.10, 0.885, 0.34))
        draw_points(upper, front)
        draw_throughput(lower, front)
    else:
        draw_points(figure.add_axes((0.09, 0.10, 0.885, 0.78)), front)
    return figure


def draw_points(axes: Axes, front: Front) -> None:
    """Step times; for memory as the stairs they prove, with what is open between them and what is infeasible shaded."""
    feasible = [point for point in _ascending(front) if point.objective is not None]
    unit_s = front.base.time_unit_s
    scale, unit = time_scale(max((point.objective or 0 for point in feasible), default=1) * unit_s)
    factor = unit_s / scale
    best = front.pareto()
    for point in feasible:
        x, y = _x(front, point), (point.objective or 0) * factor
        colour = FRONT_COLOUR if point in best else OTHER_COLOUR
        if front.axis == "memory":
            axes.plot((x, point.value / GIB), (y, y), color=colour, linewidth=2.4, solid_capstyle="butt")
        face = colour if point.proved else "white"
        axes.plot(x, y, "o", color=colour, markersize=6, markerfacecolor=face, zorder=3)
    if front.axis == "memory":
        _open_ranges(axes, front, feasible, factor)
    else:
        line = [point for point in feasible if point in best]
        ys = [(point.objective or 0) * factor for point in line]
        axes.plot([point.value for point in line], ys, color=FRONT_COLOUR, linewidth=1, alpha=0.5, zorder=1)
    _value_axis(axes, front)
    axes.set_ylabel(f"step time, {unit}")
    if front.axis != "memory":
        axes.set_ylim(bottom=0)
    axes.set_ylim(top=axes.get_ylim()[1] + 0.08 * (axes.get_ylim()[1] - axes.get_ylim()[0]))
    _label(axes, front, [point for point in feasible if point in best], factor)
    _infeasible(axes, front)


def _open_ranges(axes: Axes, front: Front, feasible: list[FrontPoint], factor: float) -> None:
    """Rectangles between the stairs: there the step time is known to lie between two proved ones."""
    corners = []
    for gap in front.gaps():
        low, high = front.bytes_for(gap.low), front.bytes_for(gap.high)
        slower = [p.objective or 0 for p in feasible if p.proved and p.value <= low]
        faster = [p.objective or 0 for p in feasible if p.proved and p.value >= high]
        if slower and faster:
            bottom, top = max(faster) * factor, min(slower) * factor
            corners.append(((low / GIB, bottom), (high / GIB, bottom), (high / GIB, top), (low / GIB, top)))
    if corners:
        boxes = PolyCollection(
            corners, facecolors=OPEN_COLOUR, linewidths=0, zorder=1, label="open, between proved step times"
        )
        axes.add_collection(boxes)
        axes.legend(loc="upper right", fontsize=8.5, labelcolor=QUIET_COLOUR)


def draw_throughput(axes: Axes, front: Front) -> None:
    """Tokens per second."""
    points = [point for point in _ascending(front) if point.plan is not None and point.plan.tokens_per_s is not None]
    values = [point.plan.tokens_per_s or 0.0 for point in points if point.plan is not None]
    axes.plot([point.value for point in points], values, "o-", color=FRONT_COLOUR, linewidth=1, markersize=6)
    axes.yaxis.set_major_formatter(FuncFormatter(_whole))
    axes.set_ylabel("tokens per second")
    axes.set_ylim(bottom=0)
    _value_axis(axes, front)


def _label(axes: Axes, front: Front, points: list[FrontPoint], factor: float) -> None:
    """Layouts beside the points, except where they would cover each other."""
    placed: list[tuple[float, float]] = []
    for point in points:
        text = _short_layout(point)
        x, y = (point.value / GIB if front.axis == "memory" else float(point.value)), (point.objective or 0) * factor
        across, up = axes.transAxes.inverted().transform(axes.transData.transform((x, y)))
        if any(abs(across - other[0]) < 0.15 and abs(up - other[1]) < 0.035 for other in placed):
            continue
        placed.append((across, up))
        right_half = front.axis != "memory" and across > 0.8
        axes.annotate(
            text, (x, y), (-6 if right_half else 7, 0 if front.axis == "memory" else 9), textcoords="offset points",
            fontsize=7.5, color=QUIET_COLOUR, va="center", ha="right" if right_half else "left", zorder=4,
        )  # fmt: skip


def _short_layout(point: FrontPoint) -> str:
    """The sizes that tell layouts apart at a glance."""
    assert point.plan is not None
    layout = point.plan.layout
    assert layout is not None
    parts = [f"tp {layout.tp}", f"pp {layout.pp}", f"dp {layout.dp}"]
    parts += [f"{name} {size}" for name, size in (("cp", layout.cp), ("ep", layout.ep)) if size > 1]
    return " ".join(parts)


def _infeasible(axes: Axes, front: Front) -> None:
    """Shade the memory sizes into which nothing fits; mark device counts with which nothing fits."""
    values = [point.value for point in front.points.values() if point.proved and point.objective is None]
    if not values:
        return
    if front.axis == "memory":
        axes.axvspan(0, max(values) / GIB, color=INFEASIBLE_COLOUR, linewidth=0, zorder=0)
        axes.text(
            0.008, 0.03, f"nothing fits into {max(values) / GIB:.2f} GiB", transform=axes.transAxes, rotation=90,
            fontsize=8.5, color="#a4243b",
        )  # fmt: skip
    else:
        for value in values:
            axes.plot(value, 0, "x", color="#a4243b", markersize=7, clip_on=False)
        axes.text(0.005, 0.97, "x: nothing fits", transform=axes.transAxes, va="top", fontsize=8.5, color="#a4243b")


def _value_axis(axes: Axes, front: Front) -> None:
    axes.grid(color=GRID_COLOUR, linewidth=0.7)
    axes.set_xlabel(NAMES[front.axis])
    if front.axis == "memory":
        values = [point.value for point in front.points.values()]
        feasible = [_x(front, point) for point in front.points.values() if point.objective is not None]
        right = max(values) / GIB
        least = min(feasible, default=0.0)
        margin = 0.15 * (right - least)
        axes.set_xlim(max(0.0, least - margin), right + margin)
        return
    axes.set_xscale("log", base=2)
    axes.set_xticks([point.value for point in _ascending(front)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(_whole))
    axes.margins(x=0.08)


def _whole(value: float, position: int | None = None) -> str:
    """Tick label."""
    return count(value)


def _ascending(front: Front) -> list[FrontPoint]:
    return sorted(front.points.values(), key=lambda point: point.value)


def _x(front: Front, point: FrontPoint) -> float:
    """Where a feasible point stands: for memory at what its plan needs."""
    return (front.needs_bytes(point) or 0) / GIB if front.axis == "memory" else float(point.value)


def _table(front: Front) -> str:
    from prism_cp.report.front_report import front_rows, status_text

    rows = []
    for row, point in zip(front_rows(front), reversed(_ascending(front)), strict=True):
        layout = point.plan.layout if point.plan is not None else None
        text = ", ".join(f"{name} {value}" for name, value in layout.model_dump().items()) if layout else point.reason
        step = seconds(row["step_time_s"]) if row["step_time_s"] is not None else "-"
        tokens = count(row["tokens_per_s"]) if row["tokens_per_s"] is not None else "-"
        rows.append([status_text(point), text, value_text(front.axis, point.value), step, tokens])
    return html_table(["status", "layout", NAMES[front.axis], "step time", "tokens/s"], rows, 3)
