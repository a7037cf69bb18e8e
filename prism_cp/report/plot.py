"""Report room: a plan as one picture: pipeline timeline, memory and time of every rank. Needs matplotlib."""

from __future__ import annotations

import html
import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from prism_cp.errors import UsageError
from prism_cp.plan import Plan
from prism_cp.report.numbers import count, gib, percent, seconds
from prism_cp.report.plan_report import headline, layers_text, layout_text, recomputation_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = (".svg", ".png", ".html")
PNG_DOTS_PER_INCH = 130
TEXT_COLOUR, QUIET_COLOUR, GRID_COLOUR = "#1f2933", "#66727f", "#dde3e9"
STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans", "Verdana", "Arial", "Helvetica", "sans-serif"],
    "font.size": 9,
    "axes.edgecolor": GRID_COLOUR,
    "axes.labelcolor": QUIET_COLOUR,
    "axes.titlecolor": TEXT_COLOUR,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "text.color": TEXT_COLOUR,
    "xtick.color": QUIET_COLOUR,
    "ytick.color": QUIET_COLOUR,
    "grid.color": GRID_COLOUR,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: it can be searched, and files are small
    "svg.hashsalt": "prism_cp",  # the same plan gives the same file
}


def picture_format(path: Path) -> str:
    """The format a file name asks for: its suffix, one of `FORMATS`.

    Raises
    ------
    UsageError
        The suffix is another one, or missing.
    """
    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        problem = f"suffix {path.suffix!r}" if path.suffix else "no suffix"
        raise UsageError(f"--out: {path}: {problem} (accepted: a file name ending in {', '.join(FORMATS)})")
    return suffix


def require_matplotlib() -> None:
    """Raise UsageError, saying what to install, when matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise UsageError(
            "pictures need matplotlib, which is not installed (accepted: after `pip install 'prism_cp[plot]'`, "
            "or `pip install matplotlib`)"
        ) from error


def plan_picture(plan: Plan, suffix: str, microbatches: int | None = None) -> bytes:
    """A plan's picture as the content of a file.

    Parameters
    ----------
    suffix
        One of `FORMATS`.
    microbatches
        How many micro-batches of a long run to show at either end; None: a readable number.

    Raises
    ------
    UsageError
        matplotlib is not installed.
    PlanError
        The plan holds no layout, or contradicts itself.
    """
    require_matplotlib()
    from prism_cp.report.plot_plan import plan_figure

    with drawing():
        figure = plan_figure(plan, microbatches)
        if suffix == ".html":
            tables = _facts(plan) + _stage_rows(plan)
            return page(headline(plan), rendered(figure, ".svg").decode(), tables).encode()
        return rendered(figure, suffix)


@contextmanager
def drawing() -> Iterator[None]:
    """The context in which figures are made and rendered: our style, whatever the user's own settings are."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def rendered(figure: Figure, suffix: str) -> bytes:
    """A figure as SVG or PNG. Figures are never shown, so no display is needed."""
    stream = io.BytesIO()
    if suffix == ".svg":
        figure.savefig(stream, format="svg", metadata={"Date": None})
    else:
        figure.savefig(stream, format="png", dpi=PNG_DOTS_PER_INCH, metadata={"Software": None})
    return stream.getvalue()


PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.5 "DejaVu Sans", Verdana, Arial, sans-serif; color: #1f2933; margin: 2rem auto; max-width: 1500px;
       padding: 0 1rem; }}
svg {{ width: 100%; height: auto; }}
table {{ border-collapse: collapse; margin: 1rem 0; font-size: 13px; }}
th, td {{ padding: .25rem .8rem; border-bottom: 1px solid #dde3e9; text-align: left; vertical-align: top; }}
th {{ color: #66727f; font-weight: normal; }}
td.number, th.number {{ text-align: right; font-variant-numeric: tabular-nums; }}
</style>
</head>
<body>
{picture}
{tables}
</body>
</html>
"""


def page(title: str, svg: str, tables: str) -> str:
    """A self-contained page: the picture, and tables below it."""
    picture = svg[svg.index("<svg") :]  # without XML declaration and doctype
    return PAGE.format(title=html.escape(title), picture=picture, tables=tables)


def html_table(header: list[str], rows: list[list[str]], numbers: int) -> str:
    """A table whose last `numbers` columns are numbers."""
    first_number = len(header) - numbers

    def line(cells: list[str], tag: str) -> str:
        columns = (
            f'<{tag} class="number">{html.escape(cell)}</{tag}>'
            if index >= first_number
            else f"<{tag}>{html.escape(cell)}</{tag}>"
            for index, cell in enumerate(cells)
        )
        return "<tr>" + "".join(columns) + "</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    return f"<table>\n{line(header, 'th')}\n{body}\n</table>"


def _facts(plan: Plan) -> str:
    assert plan.layout is not None
    facts = [
        ["layout", layout_text(plan.layout)],
        ["step time", f"{seconds(plan.step_time_s)} (at least {seconds(plan.bound_s)}: {plan.status})"],
        ["throughput", f"{count(plan.tokens_per_s)} tokens/s, MFU {percent(plan.mfu)}, HFU {percent(plan.hfu)}"],
        ["layouts", f"{plan.search.layouts_total:,} admissible, search took {plan.search.wall_s:.1f} s"],
        ["certificate", ", ".join(plan.certificate.levels) or "none"],
    ]
    return html_table(["", plan.instance_name], facts, 0)


def _stage_rows(plan: Plan) -> str:
    rows = []
    for index, stage in enumerate(plan.virtual_stages):
        times = [stage.forward, stage.input_grad, stage.weight_grad]
        rows.append(
            [str(index), str(stage.rank), layers_text(stage), recomputation_text(stage)]
            + [f"{time * plan.time_unit_s * 1e3:,.3f}" for time in times]
            + [gib(plan.ranks[stage.rank].memory_gib.total)]
        )
    header = ["stage", "rank", "layers", "recomputation", "F ms", "B ms", "W ms", "rank's memory GiB"]
    return html_table(header, rows, 4)
