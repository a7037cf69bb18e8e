"""Report room: how a plan does over a range of expert loads, as text and a table for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from prism_cp.plan import RobustSummary
from prism_cp.report.numbers import gap, gib, percent, seconds
from prism_cp.report.plan_report import layout_text

NO_FIT = "does not fit"


def print_robust(summary: RobustSummary, time_unit_s: float, console: Console) -> None:
    """Verdict, price, regret and the step times of both plans."""
    console.print(verdict(summary, time_unit_s), markup=False, style="bold")
    for line in comparison_lines(summary, time_unit_s):
        console.print(line, markup=False, soft_wrap=True)
    console.print(load_table(summary))


def verdict(summary: RobustSummary, time_unit_s: float) -> str:
    """What is claimed about the worst case."""
    where = f"Expert load {summary.low:g} … {summary.high:g}"
    if summary.proved:
        return f"{where}: worst case {seconds(summary.worst_case_s)}, proved: no plan has a better one"
    bound = seconds(summary.lower_bound * time_unit_s)
    if summary.worst_case_at_most is None:
        return f"{where}: not shown to fit at all loads; no plan's worst case is below {bound}"
    ratio = 1 - summary.lower_bound / summary.worst_case_at_most if summary.worst_case_at_most else 0.0
    worst = seconds(summary.worst_case_s)
    return f"{where}: worst case at most {worst}, not proved best: bound {bound}, gap {gap(ratio)}"


def comparison_lines(summary: RobustSummary, time_unit_s: float) -> list[str]:
    """Price and regret against the plan that is best at the lowest load."""
    nominal = summary.nominal
    if nominal is None:
        return [f"No plan is known to be best at load {summary.low:g}, so there is no price to state"]
    known = "proved" if nominal.bound == nominal.objective else "not proved"
    best = f"{seconds(nominal.objective * time_unit_s)} ({known})"
    own, last = summary.points[0], summary.points[-1]
    lines = [f"Best at load {summary.low:g}  {layout_text(nominal.layout)}"]
    if summary.price is not None:
        lines.append(
            f"Price   {percent(summary.price, 2)}: this plan takes {seconds(own.step_time_s)} at load {summary.low:g}, "
            f"the best there {best}"
        )
    where = f"at load {summary.high:g}"
    mine = seconds(last.step_time_s)
    if summary.regret is not None:
        other = seconds(last.nominal_step_time_s)
        lines.append(f"Regret  {percent(summary.regret, 2)}: that one takes {other} {where}, this plan {mine}")
    elif last.nominal_headroom_gib is not None and last.nominal_headroom_gib < 0:
        lines.append(f"Regret  that one does not fit {where}: {gib(-last.nominal_headroom_gib)} GiB are missing")
    if summary.adapted is not None and summary.adapted.layout == nominal.layout:
        taken = seconds(summary.adapted.objective * time_unit_s)
        known = "" if summary.adapted_status == "optimal" else "at best known "
        over = percent(summary.adapted_regret, 2)
        lines.append(
            f"        with stages and recomputation chosen anew, its layout takes {known}{taken} {where} ({over} more)"
        )
    elif summary.adapted_status == "infeasible":
        lines.append(f"        whatever is recomputed, its layout does not fit {where} (proved)")
    return lines


def load_table(summary: RobustSummary) -> Table:
    """One row per load: step time and free memory of both plans."""
    table = Table(title="Step time and free GiB (fullest rank)", title_justify="left")
    for column in ("load", "this plan", "free GiB", f"best at load {summary.low:g}", "free GiB"):
        table.add_column(column, justify="right")
    for point in summary.points:
        free = point.nominal_headroom_gib
        table.add_row(
            f"{point.load:g}",
            NO_FIT if point.step_time_s is None else seconds(point.step_time_s),
            gib(point.headroom_gib),
            "" if free is None else NO_FIT if point.nominal_step_time_s is None else seconds(point.nominal_step_time_s),
            "" if free is None else gib(free),
        )
    return table
