"""Command line room: ``prism-cp trace``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prism_cp.cli.output import check_out, message_console, write_whole
from prism_cp.errors import UsageError

EXAMPLES = (
    "Examples:\n\n"
    "prism-cp trace plan.json --out trace.json\n\n"
    "prism-cp trace plan.json --out trace.json --microbatches 8"
)


def trace(
    plan: Annotated[Path, typer.Argument(help="Plan file (JSON) written by `prism-cp solve`.")],
    out: Annotated[Path, typer.Option("--out", help="Trace file (JSON); opens in ui.perfetto.dev.")],
    microbatches: Annotated[
        int | None,
        typer.Option(
            "--microbatches",
            metavar="N",
            help="Keep about N micro-batches at either end of the run.  [default: all, up to 20,000 ops]",
        ),
    ] = None,
) -> None:
    """Write the simulated pipeline as a trace: ops, transfers and memory of every rank."""
    if microbatches is not None and microbatches < 1:
        raise UsageError(f"--microbatches: {microbatches} (accepted: 1 or more)")
    check_out(out)
    from prism_cp.plan import read_plan

    read = read_plan(plan)

    from prism_cp.report.trace import trace_json

    text, left_out = trace_json(read, microbatches)
    write_whole(out, text)
    if left_out:
        message_console().print(f"{left_out}; --microbatches N asks for more or fewer", markup=False, soft_wrap=True)
