"""Report room: the figure of a plan, assembled from the timeline, memory and time panels."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from prism_cp.plan import Plan
from prism_cp.report.numbers import gib, seconds
from prism_cp.report.plan_report import figures_line, headline, layout_text
from prism_cp.report.plot import QUIET_COLOUR
from prism_cp.report.plot_timeline import Place, draw_timeline, time_scale, timeline_legend
from prism_cp.report.timeline import Timeline, plan_timeline

WIDTH_INCHES = 14.0
ROW_INCHES = 0.30  # a rank's row in the timeline
MOST_TIMELINE_INCHES = 7.0
MEMORY_COLOURS = {
    "weights": "#274c77",
    "gradients": "#5a87b5",
    "optimizer": "#a3c4dc",
    "activations": "#e09f3e",
    "transient": "#f2cc8f",
    "buffers": "#b8a9c9",
    "fixed": "#c5ccd3",
}
CAPACITY_COLOUR = "#a4243b"
TIME_COLOURS = {
    "forward": "#4c84c4",
    "backward": "#58a367",
    "recomputation": "#c4603f",
    "optimizer, gather": "#8e9aa6",
    "gradient reduction": "#b9c2cb",
    "waiting": "#eef1f4",
}


def plan_figure(plan: Plan, microbatches: int | None = None) -> Figure:
    """Timeline above, memory and time of every rank below."""
    timeline = plan_timeline(plan)
    pp = timeline.layout.pp
    rows = min(MOST_TIMELINE_INCHES, max(1.3, ROW_INCHES * pp))
    bars = min(4.2, max(2.0, 0.17 * pp + 0.9))
    header, footer = 1.1, 0.85
    between = 1.15
    height = header + rows + between + bars + footer
    figure = Figure(figsize=(WIDTH_INCHES, height))

    def place(left: float, bottom_inches: float, width: float, height_inches: float) -> Place:
        return left, bottom_inches / height, width, height_inches / height

    left, right = 0.055, 0.985
    figure.text(left, 1 - 0.30 / height, headline(plan), fontsize=14, fontweight="bold", va="center")
    figure.text(left, 1 - 0.58 / height, layout_text(timeline.layout), fontsize=9.5, color=QUIET_COLOUR, va="center")
    figure.text(right, 1 - 0.30 / height, figures_line(plan), fontsize=9.5, color=QUIET_COLOUR, va="center", ha="right")
    bottom = footer + bars + between
    draw_timeline(figure, timeline, place(left, bottom, right - left, rows), microbatches)
    timeline_legend(figure, timeline, (right, (bottom + rows + 0.04) / height))
    memory = figure.add_axes(place(left, footer, 0.42, bars))
    draw_memory(figure, memory, plan)
    times = figure.add_axes(place(left + 0.42 + 0.075, footer, right - left - 0.42 - 0.075, bars))
    draw_times(figure, times, timeline)
    return figure


def draw_memory(figure: Figure, axes: Axes, plan: Plan) -> None:
    """Stacked memory of every rank at its fullest moment, against the capacity."""
    positions = range(len(plan.ranks))
    base = [0.0] * len(plan.ranks)
    for name, colour in MEMORY_COLOURS.items():
        sizes = [getattr(rank.memory_gib, name) for rank in plan.ranks]
        if name == "fixed":  # what rounding up to memory units added is far below a pixel
            sizes = [size + rank.memory_gib.rounding for size, rank in zip(sizes, plan.ranks, strict=True)]
        if not any(size > 0 for size in sizes):
            continue
        axes.barh(positions, sizes, left=base, height=0.78, color=colour, label=name, linewidth=0)
        base = [total + size for total, size in zip(base, sizes, strict=True)]
    capacity = plan.ranks[0].memory_gib.capacity
    axes.axvline(capacity, color=CAPACITY_COLOUR, linewidth=1.4)
    axes.annotate(
        f"capacity {gib(capacity)}", (capacity, 1), (0, 4), xycoords=("data", "axes fraction"),
        textcoords="offset points", color=CAPACITY_COLOUR, fontsize=8, ha="right", va="bottom",
    )  # fmt: skip
    _rank_axis(axes, len(plan.ranks))
    axes.set_xlim(0, capacity * 1.03)
    axes.set_title("Memory at the fullest moment", pad=16)
    axes.set_xlabel("GiB")
    _legend_below(figure, axes)


def draw_times(figure: Figure, axes: Axes, timeline: Timeline) -> None:
    """Where every rank spends the step, stacked to the pipeline time."""
    ranks, unit = timeline.plan.ranks, timeline.plan.time_unit_s
    again = [rank.time_s.recomputation or 0.0 for rank in ranks]
    rows = {
        "forward": [rank.time_s.forward for rank in ranks],
        "backward": [rank.time_s.backward - more for rank, more in zip(ranks, again, strict=True)],
        "recomputation": again,
        "optimizer, gather": [rank.time_s.head for rank in ranks],
        "gradient reduction": [rank.time_s.tail for rank in ranks],
        "waiting": [rank.time_s.bubble for rank in ranks],
    }
    scale, name = time_scale(timeline.pipeline_time * unit)
    positions, base = range(len(ranks)), [0.0] * len(ranks)
    for label, values in rows.items():
        if not any(value > 0 for value in values):
            continue
        scaled = [value / scale for value in values]
        colour = TIME_COLOURS[label]
        axes.barh(positions, scaled, left=base, height=0.78, color=colour, label=label, linewidth=0)
        base = [total + value for total, value in zip(base, scaled, strict=True)]
    waiting = [rank.time_s.bubble / (timeline.pipeline_time * unit) for rank in ranks]
    if len(ranks) <= 40:
        for position, share, end in zip(positions, waiting, base, strict=True):
            axes.text(end, position, f" {100 * share:.0f} %", va="center", fontsize=7.5, color=QUIET_COLOUR)
    _rank_axis(axes, len(ranks))
    axes.set_xlim(0, max(base) * 1.05)
    mean = sum(waiting) / len(waiting)
    title = (
        f"Time of a step: {seconds(timeline.pipeline_time * unit)} of pipeline, {100 * mean:.1f} % waiting on average"
    )
    axes.set_title(title, pad=16)
    axes.set_xlabel(name)
    _legend_below(figure, axes)


def _rank_axis(axes: Axes, num_ranks: int) -> None:
    axes.set_ylim(num_ranks - 0.5, -0.5)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=16, integer=True, min_n_ticks=1))
    axes.set_ylabel("rank")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", linewidth=0.7)


def _legend_below(figure: Figure, axes: Axes) -> None:
    below = 0.42 / (figure.get_figheight() * axes.get_position().height)
    axes.legend(
        loc="upper left", bbox_to_anchor=(-0.01, -below), ncols=7, fontsize=8, handlelength=1.0, handleheight=1.0,
        columnspacing=1.2, handletextpad=0.5, borderaxespad=0,
    )  # fmt: skip
