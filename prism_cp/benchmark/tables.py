"""Benchmark room: measured rows, and how they are written as Markdown and JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

from prism_cp.benchmark.machine import machine, versions
from prism_cp.benchmark.points import Point
from prism_cp.benchmark.process import Run, run_solve


@dataclass(frozen=True)
class Row:
    """One measured point; the counts and values are those of the last run.

    Attributes
    ----------
    opened : int
        Layouts that were not ended by the bounds over all layouts: solved, proved no better, or left open.
    solved : int
        Layouts whose own optimum is known.
    walls_s, cpus_s, peaks_gib : tuple of float
        One entry a run.
    bound_s, step_time_s : float or None
        Proven lower bound and best plan, seconds; None when there is none.
    """

    name: str
    arguments: tuple[str, ...]
    status: str
    proved: bool
    layouts: int
    opened: int
    solved: int
    walls_s: tuple[float, ...]
    cpus_s: tuple[float, ...]
    peaks_gib: tuple[float, ...]
    bound_s: float | None
    step_time_s: float | None

    @property
    def wall_s(self) -> float:
        """Median over the runs."""
        return statistics.median(self.walls_s)

    @property
    def cpu_s(self) -> float:
        """Median over the runs."""
        return statistics.median(self.cpus_s)

    @property
    def peak_gib(self) -> float:
        """Largest over the runs."""
        return max(self.peaks_gib)


@dataclass(frozen=True)
class Table:
    """All rows of one benchmark and how they came about."""

    command: str
    repeats: int
    workers: int
    rows: tuple[Row, ...]


def measure(
    points: Sequence[Point], repeats: int, options: Sequence[str], say: Callable[[str], None]
) -> tuple[Row, ...]:
    """Run every point `repeats` times; the first point runs once more before, so that compiled kernels are cached.

    Raises
    ------
    SolveFailed
        A process printed no plan.
    """
    if points:
        say(f"warming up on {points[0].name}")
        run_solve([*points[0].arguments, *options])
    rows = []
    for number, point in enumerate(points, 1):
        runs = [run_solve([*point.arguments, *options]) for _ in range(repeats)]
        row = _row(point, runs)
        say(f"{number}/{len(points)}  {point.name}: {row.status}, {row.wall_s:.1f} s, {row.peak_gib:.2f} GiB")
        rows.append(row)
    return tuple(rows)


def _row(point: Point, runs: Sequence[Run]) -> Row:
    plan = runs[-1].plan
    search = plan["search"]
    return Row(
        point.name,
        point.arguments,
        plan["status"],
        plan["proved"],
        search["layouts_total"],
        search["solved"] + search["no_better"] + search["open"],
        search["solved"],
        tuple(round(run.wall_s, 3) for run in runs),
        tuple(round(run.cpu_s, 3) for run in runs),
        tuple(round(run.peak_gib, 4) for run in runs),
        plan["bound_s"],
        plan["step_time_s"],
    )


HEADER = ("layouts", "opened", "solved", "wall s", "cpu s", "peak GiB", "bound s", "incumbent s", "proved")


def markdown(table: Table, title: str, first_column: str) -> str:
    """The table as Markdown, with the command that makes it again, machine and versions below."""
    lines = [f"# {title}", "", *grid((first_column, *HEADER), map(_cells, table.rows)), ""]
    lines += [
        f"Made with `{table.command}`.",
        "Wall and processor time: whole process, interpreter start included, median of "
        f"{table.repeats} run{'s' if table.repeats > 1 else ''} after one warm-up run of the first row; peak memory: "
        "largest resident set of one process. Where the two times differ much, the machine was busy.",
        "Opened: layouts not ended by the bounds over all layouts; solved: those whose own optimum is known. "
        "Proved: bound and incumbent are equal integers, or every layout is proved infeasible.",
        "",
        *origin_lines(),
    ]
    return "\n".join(lines) + "\n"


def origin_lines() -> list[str]:
    """Machine and versions, as the last lines of a table's file."""
    facts = machine()
    memory = f", {facts['memory_gib']} GiB" if "memory_gib" in facts else ""
    return [
        f"Machine: {facts['processor']}, {facts['cores']} cores{memory}, {facts['system']}.",
        "Versions: " + ", ".join(f"{name} {text}" for name, text in versions().items()) + ".",
    ]


def as_json(table: Table) -> str:
    """The table with every single run, as indented JSON."""
    content = {"command": table.command, "repeats": table.repeats, "workers": table.workers}
    rows = [asdict(row) | {"wall_s": row.wall_s, "cpu_s": row.cpu_s, "peak_gib": row.peak_gib} for row in table.rows]
    return json.dumps(content | {"machine": machine(), "versions": versions(), "rows": rows}, indent=1) + "\n"


def _cells(row: Row) -> tuple[str, ...]:
    counts = (f"{count:,}" for count in (row.layouts, row.opened, row.solved))
    verdict = "yes" if row.proved else "no"
    if row.status == "infeasible":
        verdict += " (infeasible)"
    times = (_seconds(row.bound_s), _seconds(row.step_time_s))
    return (row.name, *counts, f"{row.wall_s:.1f}", f"{row.cpu_s:.1f}", f"{row.peak_gib:.2f}", *times, verdict)


def grid(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Markdown rows; the first and the last column are text, the others numbers."""
    rule = "|---|" + "---:|" * (len(header) - 2) + "---|"
    return [f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(cells)} |" for cells in rows)]


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"
