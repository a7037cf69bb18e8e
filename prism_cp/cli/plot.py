"""Command line room: ``prism-cp plot``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from prism_cp.cli.output import check_out, write_whole
from prism_cp.errors import UsageError

EXAMPLES = (
    "Examples:\n\nprism-cp plot plan.json --out plan.svg\n\nprism-cp plot plan.json --out plan.html --microbatches 12"
)


def plot(
    plan: Annotated[Path, typer.Argument(help="Plan file (JSON) written by `prism-cp solve`.")],
    out: Annotated[Path, typer.Option("--out", help="Picture; its suffix (.svg, .png or .html) says in which format.")],
    microbatches: Annotated[
        int | None,
        typer.Option(
            "--microbatches",
            metavar="N",
            help="Show about N micro-batches at either end of the run.  [default: a readable number]",
        ),
    ] = None,
) -> None:
    """Draw a plan: pipeline timeline, memory of every rank against its capacity, and where the time goes."""
    if microbatches is not None and microbatches < 1:
        raise UsageError(f"--microbatches: {microbatches} (accepted: 1 or more)")
    from prism_cp.report.plot import picture_format, plan_picture, require_matplotlib

    suffix = picture_format(out)
    check_out(out)
    require_matplotlib()
    from prism_cp.plan import read_plan

    write_whole(out, plan_picture(read_plan(plan), suffix, microbatches))
