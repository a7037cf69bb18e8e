"""Command line room: ``prism-cp check``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prism_cp.cli.options import JsonOption, SetOption, instance_from_options
from prism_cp.cli.output import data_console, print_json
from prism_cp.errors import ExitCode

EXAMPLES = (
    "Examples:\n\n"
    "prism-cp check plan.json instances/moe/deepseek-v3-2048xh800.yaml\n\n"
    "prism-cp check plan.json job.yaml --set cluster.num_devices=1024 --json"
)


def check(
    plan: Annotated[Path, typer.Argument(help="Plan file (JSON) written by `prism-cp solve`.")],
    instance: Annotated[Path, typer.Argument(help="The instance it was made for (YAML).")],
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Recompute a plan's legality, memory and time from its instance, without any solver."""
    from prism_cp.plan import read_plan

    read = read_plan(plan)
    chosen = instance_from_options(instance, set_, None, None, None, None, None)

    if read.robust is not None:  # such a plan is stated at one end of its range of loads
        from prism_cp.robustness.load_range import at_load

        chosen = at_load(chosen, read.instance.job.expert_load)
    from prism_cp.check import check_plan
    from prism_cp.report.check_report import check_as_json, print_check

    report = check_plan(read, chosen)
    if json:
        print_json(check_as_json(report, read))
    else:
        print_check(report, read, data_console())
    raise typer.Exit(int(ExitCode.PROVED if report.ok else ExitCode.CHECK_FAILED))
