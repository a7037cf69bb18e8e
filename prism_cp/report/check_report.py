"""Report room: what the checker found, as text and as JSON."""

from __future__ import annotations

import json

from rich.console import Console

from prism_cp.check import CheckReport
from prism_cp.plan import Plan
from prism_cp.report.plan_report import headline


def print_check(report: CheckReport, plan: Plan, console: Console) -> None:
    """Verdict, what was recomputed, and every finding."""
    console.print(headline(plan), markup=False)
    console.print("Recomputed: " + ", ".join(report.checks), markup=False)
    if report.ok:
        console.print("Check passed: everything the plan states follows from its instance.", style="green")
        return
    console.print(f"Check failed, {len(report.findings)} findings:", style="red")
    for finding in report.findings:
        console.print(f"  {finding}", markup=False, soft_wrap=True)


def check_as_json(report: CheckReport, plan: Plan) -> str:
    """The same as JSON text."""
    return json.dumps(
        {
            "ok": report.ok,
            "instance_name": plan.instance_name,
            "checks": list(report.checks),
            "findings": [{"key": finding.key, "problem": finding.problem} for finding in report.findings],
        },
        indent=2,
    )
