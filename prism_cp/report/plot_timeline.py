"""Report room: the pipeline timeline as bars, one row a rank; long runs are shown at their two ends."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from prism_cp.pipeline import OpType
from prism_cp.report.plot import QUIET_COLOUR, TEXT_COLOUR
from prism_cp.report.timeline import Timeline

Place = tuple[float, float, float, float]  # left, bottom, width, height, as shares of the figure
FORWARD, WHOLE_BACKWARD, INPUT_GRAD, WEIGHT_GRAD = "#4c84c4", "#58a367", "#58a367", "#e0a13b"
COLOURS = {
    OpType.FORWARD: FORWARD,
    OpType.BACKWARD: WHOLE_BACKWARD,
    OpType.INPUT_GRAD: INPUT_GRAD,
    OpType.WEIGHT_GRAD: WEIGHT_GRAD,
    OpType.OVERLAPPED_FORWARD: FORWARD,
    OpType.OVERLAPPED_BACKWARD: WHOLE_BACKWARD,
}
ENDS_COLOUR = "#a7b0ba"  # head, tail, barrier
WAITING_COLOUR = "#f1f4f6"
BAR_HEIGHT = 0.86
FEW_MICROBATCHES = 16  # a run as short as this is shown whole
SHOWN_AT_EITHER_END = 6
GAP = 0.012  # of the figure's width, between the two ends of a cut run
INCHES_PER_CHARACTER = 0.062


def draw_timeline(figure: Figure, timeline: Timeline, place: Place, microbatches: int | None = None) -> None:
    """Draw the run into `place` (left, bottom, width, height of the figure); in two panels when it is cut."""
    layout, plan = timeline.layout, timeline.plan
    kept = microbatches
    if kept is None and layout.num_microbatches > FEW_MICROBATCHES:
        kept = SHOWN_AT_EITHER_END + layout.pp // 4
    cut = None if kept is None else timeline.cut(kept)
    end = timeline.pipeline_time + timeline.barrier
    scale, unit = time_scale(end * plan.time_unit_s)
    factor = plan.time_unit_s / scale
    left, bottom, width, height = place
    if cut is None:
        spans, widths = [(0, end)], [width]
    else:
        spans = [(0, cut.first_end), (cut.last_start, end)]
        shares = [span_end - start for start, span_end in spans]
        widths = [(width - GAP) * share / sum(shares) for share in shares]
    for index, ((start, stop), panel_width) in enumerate(zip(spans, widths, strict=True)):
        axes = figure.add_axes((left, bottom, panel_width, height))
        left += panel_width + GAP
        _draw_span(figure, axes, timeline, start, stop, factor)
        axes.set_ylabel("rank" if index == 0 else "")
        if index:
            axes.tick_params(labelleft=False)
            axes.spines["left"].set_visible(False)
        else:
            axes.set_title(_title(timeline, spans), pad=8)
        axes.set_xlabel(unit)


def _title(timeline: Timeline, spans: list[tuple[int, int]]) -> str:
    title = f"Pipeline: {timeline.layout.schedule}, {timeline.layout.num_microbatches} micro-batches"
    if len(spans) > 1:
        hidden = spans[1][0] - spans[0][1]
        share = hidden / (timeline.pipeline_time + timeline.barrier)
        title += f"; its two ends, {100 * share:.0f} % of the step between them is not shown"
    return title


def _draw_span(figure: Figure, axes: Axes, timeline: Timeline, start: int, stop: int, factor: float) -> None:
    """Bars of everything that runs between two moments."""
    num_ranks = timeline.layout.pp
    axes.set_xlim(start * factor, stop * factor)
    axes.set_ylim(num_ranks - 0.5, -0.5)
    bars: dict[tuple[float, float, float], list[tuple[float, float, int]]] = defaultdict(list)
    labels: list[tuple[float, int, str, str]] = []
    position = axes.get_position()
    inches = figure.get_figwidth() * position.width / ((stop - start) * factor)
    row_inches = figure.get_figheight() * position.height / num_ranks
    shades = stage_shades(timeline)
    for rank, run in enumerate(timeline.ranks):
        costs = timeline.plan.ranks[rank]
        last = int(run.end[-1])
        end = timeline.pipeline_time
        for left, right in ((0, costs.head), (last, last + costs.tail), (end, end + timeline.barrier)):
            if right > start and left < stop and right > left:
                bars[to_rgb(ENDS_COLOUR)].append((left * factor, right * factor, rank))
        inside = np.flatnonzero((run.end > start) & (run.start < stop))
        columns = (run.op_type, run.virtual_stage, run.microbatch, run.start, run.end)
        for op_type, stage, microbatch, begin, finish in zip(*(c[inside].tolist() for c in columns), strict=True):
            colour = _shaded(COLOURS[OpType(op_type)], shades[stage])
            left, right = max(begin, start) * factor, min(finish, stop) * factor
            bars[colour].append((left, right, rank))
            text = str(microbatch)
            if (right - left) * inches >= INCHES_PER_CHARACTER * len(text) + 0.02 and row_inches >= 0.16:
                labels.append(((left + right) / 2, rank, text, _readable_on(colour)))
    axes.set_facecolor(WAITING_COLOUR)
    for colour, rows in bars.items():
        axes.add_collection(_rectangles(rows, colour, line=0.5 if row_inches > 0.12 else 0.2))
    for x, rank, text, text_colour in labels:
        axes.text(x, rank, text, ha="center", va="center", fontsize=7, color=text_colour, clip_on=True)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=24, integer=True, min_n_ticks=1))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=max(3, round(position.width * 14)), steps=[1, 2, 5, 10]))
    axes.tick_params(axis="y", length=0)
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _rectangles(rows: list[tuple[float, float, int]], colour: tuple[float, ...], line: float) -> PolyCollection:
    half = BAR_HEIGHT / 2
    corners = [
        ((left, rank - half), (right, rank - half), (right, rank + half), (left, rank + half))
        for left, right, rank in rows
    ]
    return PolyCollection(corners, facecolors=[colour], edgecolors="white", linewidths=line)


def stage_shades(timeline: Timeline) -> list[float]:
    """How much lighter than the op's colour each virtual stage is drawn, 0 to below 1.

    The pieces that a rank holds after its first one get lighter step by step.
    """
    stages = timeline.plan.virtual_stages
    seen: dict[int, int] = {}
    places = []
    for stage in stages:
        places.append(seen.get(stage.rank, 0))
        seen[stage.rank] = places[-1] + 1
    most = max(seen.values())
    return [0.0 if most == 1 else 0.55 * place / (most - 1) for place in places]


def _shaded(colour: str, lighter: float) -> tuple[float, float, float]:
    red, green, blue = (channel + (1 - channel) * lighter for channel in to_rgb(colour))
    return red, green, blue


def _readable_on(colour: tuple[float, float, float]) -> str:
    """White on dark colours, dark on light ones."""
    red, green, blue = colour
    return "white" if 0.299 * red + 0.587 * green + 0.114 * blue < 0.6 else TEXT_COLOUR


def timeline_legend(figure: Figure, timeline: Timeline, corner: tuple[float, float]) -> None:
    """What the colours mean, above the timeline's right end."""
    used = {OpType(int(op_type)) for run in timeline.ranks for op_type in np.unique(run.op_type)}
    split = OpType.INPUT_GRAD in used
    handles = [Patch(color=FORWARD, label="forward")]
    handles.append(Patch(color=WHOLE_BACKWARD, label="backward, or input gradient" if split else "backward"))
    if split:
        handles.append(Patch(color=WEIGHT_GRAD, label="weight gradient"))
    if max(stage_shades(timeline)) > 0:
        text = "lighter: other direction" if len(timeline.chains) > 1 else "lighter: later pieces of the rank"
        handles.append(Patch(color=_shaded(FORWARD, 0.55), label=text))
    handles += [Patch(color=ENDS_COLOUR, label="optimizer, reductions"), Patch(color=WAITING_COLOUR, label="waiting")]
    figure.legend(
        handles=handles, loc="lower right", bbox_to_anchor=corner, ncols=len(handles), fontsize=8, handlelength=1.0,
        handleheight=1.0, columnspacing=1.2, handletextpad=0.5, borderaxespad=0.2, labelcolor=QUIET_COLOUR,
    )  # fmt: skip


def time_scale(longest_s: float) -> tuple[float, str]:
    """Seconds per displayed unit, and the unit's name, for values up to `longest_s`."""
    return (1.0, "seconds") if longest_s >= 2 else (1e-3, "milliseconds") if longest_s >= 2e-3 else (1e-6, "us")
