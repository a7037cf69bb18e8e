"""Benchmark room: the engine alone on the family of hard stage problems, and a second proof of its optima."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

from prism_cp.benchmark.family import FAMILY, FamilyCase, family_problem
from prism_cp.benchmark.machine import machine, versions
from prism_cp.benchmark.tables import grid, origin_lines
from prism_cp.engine import solve_with_engine
from prism_cp.errors import UsageError
from prism_cp.second_proof import prove_no_plan

HEADER = ("case", "schedule", "status", "time", "bound", "gap %", "wall s", "cpu s")
PROVED = ("optimal", "infeasible")
NO_PLAN = "no plan"


@dataclass(frozen=True)
class CaseRow:
    """One solved case; times of plans and bounds in time units.

    Attributes
    ----------
    wall_s, cpu_s : float
        The engine alone: tables are made before, compiled code is loaded before.
    second_proof : str or None
        What CP-SAT over columns says of plans faster than the optimum; None when not asked. Of the engine it knows the
        paths it learnt, and nothing else.
    """

    name: str
    schedule: str
    vpp: int
    status: str
    pipeline_time: int | None
    lower_bound: int
    wall_s: float
    cpu_s: float
    second_proof: str | None

    @property
    def gap(self) -> float | None:
        """Relative to the plan; None without one."""
        if self.pipeline_time is None:
            return None
        return (self.pipeline_time - self.lower_bound) / max(1, self.pipeline_time)


def chosen_cases(parts: Sequence[str]) -> list[FamilyCase]:
    """Cases whose names contain one of `parts`; all without any.

    Raises
    ------
    UsageError
        Some part is in no name.
    """
    for part in parts:
        if not any(part in case.name for case in FAMILY):
            names = ", ".join(case.name for case in FAMILY)
            raise UsageError(f"--filter: {part!r} is in no name (accepted: parts of {names})")
    return [case for case in FAMILY if not parts or any(part in case.name for part in parts)]


def measure_cases(
    cases: Sequence[FamilyCase], time_limit_s: float, second_proof_s: float | None, say: Callable[[str], None]
) -> tuple[CaseRow, ...]:
    """Solve every case once; the first one is solved once more before, so that compiled code is loaded."""
    if cases:
        say(f"warming up on {cases[0].name}")
        solve_with_engine(family_problem(cases[0]), deadline=time.monotonic() + time_limit_s)
    rows = []
    for number, case in enumerate(cases, 1):
        row = _measure(case, time_limit_s, second_proof_s)
        proof = "" if row.second_proof is None else f"; second proof: {row.second_proof}"
        say(f"{number}/{len(cases)}  {row.name}: {row.status}, {row.wall_s:.1f} s{proof}")
        rows.append(row)
    return tuple(rows)


def _measure(case: FamilyCase, time_limit_s: float, second_proof_s: float | None) -> CaseRow:
    problem = family_problem(case)
    wall, cpu = time.monotonic(), time.process_time()
    result = solve_with_engine(problem, deadline=wall + time_limit_s)
    wall_s, cpu_s = time.monotonic() - wall, time.process_time() - cpu
    verdict = None
    if second_proof_s is not None:
        verdict = "not asked (no optimum)"
        if result.status == "optimal":
            second = prove_no_plan(problem, result.lower_bound - 1, result.cuts, time_limit_s=second_proof_s)
            verdict = f"open after {second.wall_s:.0f} s: {second.reason}"
            if second.status == "no_plan":
                verdict = f"{NO_PLAN}, {second.wall_s:.1f} s ({second.columns:,} columns, {second.solves} solves)"
            elif second.status == "plan":
                verdict = "REFUTED: there is one"
    return CaseRow(
        case.name,
        case.schedule,
        case.vpp,
        result.status,
        result.pipeline_time,
        result.lower_bound,
        round(wall_s, 3),
        round(cpu_s, 3),
        verdict,
    )


def cases_markdown(rows: Sequence[CaseRow], command: str, time_limit_s: float) -> str:
    """The table as Markdown, with what the times of every schedule are, the command, machine and versions below."""
    proofs = any(row.second_proof is not None for row in rows)
    header = (*HEADER, "second proof: time <= optimum - 1" if proofs else "proved")
    lines = ["# Stage problems", "", *grid(header, (_cells(row, proofs) for row in rows)), "", *_by_schedule(rows), ""]
    lines += [
        f"Made with `{command}`.",
        f"One process, at most {time_limit_s:g} s a case. Wall and processor time of the engine alone: integer tables "
        "are made and compiled code is loaded before. Time and bound count the time unit of the instance; optimal: "
        "they are equal integers.",
        "",
        *origin_lines(),
    ]
    return "\n".join(lines) + "\n"


def cases_json(rows: Sequence[CaseRow], command: str, time_limit_s: float, second_proof_s: float | None) -> str:
    """The same as indented JSON."""
    content = {"command": command, "time_limit_s": time_limit_s, "second_proof_s": second_proof_s}
    data = [asdict(row) | {"gap": row.gap} for row in rows]
    return json.dumps(content | {"machine": machine(), "versions": versions(), "rows": data}, indent=1) + "\n"


def _cells(row: CaseRow, proofs: bool) -> tuple[str, ...]:
    gap = "-" if row.gap is None else f"{100 * row.gap:.3f}"
    time_cell = "-" if row.pipeline_time is None else f"{row.pipeline_time:,}"
    verdict = (row.second_proof or "-") if proofs else ("yes" if row.status in PROVED else "no")
    return (
        row.name,
        row.schedule,
        row.status,
        time_cell,
        f"{row.lower_bound:,}",
        gap,
        f"{row.wall_s:.1f}",
        f"{row.cpu_s:.1f}",
        verdict,
    )


def _by_schedule(rows: Sequence[CaseRow]) -> list[str]:
    """Median and longest wall time of every schedule and vpp."""
    walls: dict[str, list[CaseRow]] = {}
    for row in rows:
        walls.setdefault(f"{row.schedule}, vpp {row.vpp}", []).append(row)
    return [
        f"- {name}: {sum(row.status in PROVED for row in group)} of {len(group)} proved, wall time median "
        f"{statistics.median(row.wall_s for row in group):.1f} s, longest {max(row.wall_s for row in group):.1f} s"
        f"{_proved_twice(group)}"
        for name, group in walls.items()
    ]


def _proved_twice(group: Sequence[CaseRow]) -> str:
    """How many of the optima have a second proof, where that was asked for."""
    if all(row.second_proof is None for row in group):
        return ""
    return f"; proved a second time: {sum((row.second_proof or '').startswith(NO_PLAN) for row in group)}"
