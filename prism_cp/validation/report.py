"""Report: a summary as text, and the files of a results folder."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from prism_cp.validation.residuals import READING, RESIDUALS
from prism_cp.validation.statistics import ErrorStatistics
from prism_cp.validation.summary import Group, OutOfMemory, Summary
from prism_cp.validation.validate import Prediction

_QUANTITIES = (
    ("step_time", "Step time"),
    ("memory", "Memory"),
    ("steady_memory", "Memory between steps"),
    ("flops", "Model FLOPs per token"),
)
_COLUMNS = ("rows", "skipped", "n", "bias", "mean", "median", "p95", "max")


def rows_csv(found: Sequence[Prediction]) -> str:
    """One line a row: its columns and the predicted ones; files with other columns are widened."""
    rows = [item.columns() for item in found]
    names = list(dict.fromkeys(name for row in rows for name in row))
    predicted = [name for name in names if name.startswith("predicted_") or name in ("profile", "skipped")]
    names = [name for name in names if name not in predicted] + predicted
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def as_json(found: Sequence[Prediction], summary: Summary, command: str) -> str:
    """Rows and summary as JSON; errors are fractions."""
    data: dict[str, Any] = {
        "command": command,
        "rows": [item.columns() for item in found],
        "summary": summary.as_dict(),
    }
    return json.dumps(data, indent=1, ensure_ascii=False) + "\n"


def summary_text(summary: Summary, *, groups: Sequence[str] = ("family", "source", "model", "precision")) -> str:
    """Tables of the summary in Markdown."""
    share = 100 * summary.skipped / summary.rows
    lines = [f"{summary.rows} rows, {summary.skipped} skipped ({share:.1f} %).", ""]
    for key in groups:
        for field, title in _QUANTITIES:
            lines += _table(f"{title} by {key}", field, summary.groups[key])
    lines += _rankings(summary)
    lines += _margins(summary) + _out_of_memory(summary.out_of_memory)
    if summary.reasons:
        lines += ["### Skipped", "", "| source | rows | reason |", "|---|---|---|"]
        lines += [f"| {source} | {count} | {_cell(reason)} |" for source, reason, count in summary.reasons]
        lines.append("")
    return "\n".join(lines)


def _table(title: str, field: str, groups: Sequence[Group]) -> list[str]:
    shown = [(group, getattr(group, field)) for group in groups if getattr(group, field) is not None]
    if not shown:
        return []
    head = ["", *(_COLUMNS)]
    lines = [f"### {title}", "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for group, errors in shown:
        cells = [_cell(group.name), str(group.rows), str(group.skipped), *_figures(errors)]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _figures(errors: ErrorStatistics) -> list[str]:
    percent = [f"{100 * value:.2f} %" for value in (errors.mean, errors.median, errors.p95, errors.largest)]
    return [str(errors.count), f"{100 * errors.bias:+.2f} %", *percent]


def _rankings(summary: Summary) -> list[str]:
    if not summary.rankings:
        return []
    lines = ["### Ranking inside sections (pairs that differ by more than 2 %)", ""]
    lines += ["| section | rows | pairs | in order | Spearman | regret |", "|---|---|---|---|---|---|"]
    for item in summary.rankings:
        order = f"{100 * item.ordered / item.pairs:.1f} %" if item.pairs else "-"
        correlation = "-" if item.spearman is None else f"{item.spearman:.2f}"
        cells = [
            _cell(item.section),
            str(item.count),
            str(item.pairs),
            order,
            correlation,
            f"{100 * item.regret:.1f} %",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    pairs, ordered = (sum(getattr(item, name) for item in summary.rankings) for name in ("pairs", "ordered"))
    if pairs:
        lines.append(f"| all | | {pairs} | {100 * ordered / pairs:.1f} % | | |")
    return [*lines, ""]


def _margins(summary: Summary) -> list[str]:
    if not summary.margins:
        return []
    lines = ["### Memory predicted too low, by profile (share of the measured), and the margin plans keep", ""]
    lines += ["| profile | n | p95 | p99 | largest | margin |", "|---|---|---|---|---|---|"]
    for item in summary.margins:
        low = item.under_prediction
        shares = [f"{100 * value:.2f} %" for value in (low.p95, low.p99, low.largest, item.margin)]
        lines.append(f"| {_cell(item.profile)} | {low.count} | {' | '.join(shares)} |")
    return [*lines, ""]


def _out_of_memory(found: OutOfMemory) -> list[str]:
    if not found.rows:
        return []
    return [
        f"Runs out of memory: {found.rows}, of which {found.predicted} are predicted not to fit, and "
        f"{found.predicted_with_margin} would not be planned with the margin. Runs that fitted: {found.ran}, of which "
        f"{found.refused} are predicted not to fit, and {found.refused_with_margin} would not be planned.",
        "",
    ]


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def page(summary: Summary, command: str, pictures: Sequence[str]) -> str:
    """The committed table: how it was made, every figure, and the pictures."""
    lines = ["# Predicted against measured", "", f"Made by `{command}`.", "", READING, ""]
    lines.append(summary_text(summary))
    lines += ["## Where the errors are", "", RESIDUALS, ""]
    lines += [f"![{name}]({name})" for name in pictures]
    return "\n".join(lines) + "\n"
