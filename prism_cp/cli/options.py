"""Command line room: options that several commands share, and their checks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism_cp.errors import UsageError

if TYPE_CHECKING:
    from prism_cp.inputs.instance import Instance
    from prism_cp.search.options import SearchOptions

SetOption = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUE", help="Override a value of the instance, e.g. layout.tp=8; a list allows several."
    ),
]
ModelOption = Annotated[str | None, typer.Option("--model", help="Catalogue name, or a HuggingFace config.json.")]
ClusterOption = Annotated[str | None, typer.Option("--cluster", help="Devices x catalogue cluster, e.g. 64xh100.")]
GbsOption = Annotated[int | None, typer.Option("--gbs", help="Sequences per step.")]
SeqLenOption = Annotated[int | None, typer.Option("--seq-len", help="Tokens per sequence.")]
ProfileOption = Annotated[str | None, typer.Option("--profile", help="Framework profile, e.g. megatron.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Write JSON to standard output instead of tables.")]
TopOption = Annotated[int, typer.Option("--top", metavar="K", help="How many further layouts to report.")]
TimeLimitOption = Annotated[
    float | None,
    typer.Option("--time-limit", metavar="SECONDS", help="Stop then, with the best plan and its gap."),
]
GapOption = Annotated[float, typer.Option("--gap", help="Relative gap that is good enough; 0 asks for a proof.")]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", help="Solves at the same time.  [default: as many as cores]")
]
SeedOption = Annotated[int, typer.Option("--seed", help="With one worker, the same seed gives the same plan.")]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="No progress on standard error.")]


def instance_from_options(
    path: Path | None,
    overrides: list[str] | None,
    model: str | None,
    cluster: str | None,
    gbs: int | None,
    seq_len: int | None,
    profile: str | None,
) -> Instance:
    """The instance that a command's options describe."""
    if path is None and None in (model, cluster, gbs, seq_len):
        raise UsageError("no instance (accepted: INSTANCE, or all of --model --cluster --gbs --seq-len)")
    from prism_cp.inputs.load import load_instance

    return load_instance(path, overrides or (), model=model, cluster=cluster, gbs=gbs, seq_len=seq_len, profile=profile)


def search_options(time_limit: float | None, gap: float, workers: int | None, seed: int, top: int) -> SearchOptions:
    """Checked search options."""
    if time_limit is not None and not (time_limit > 0 and math.isfinite(time_limit)):
        raise UsageError(f"--time-limit: {time_limit} (accepted: seconds above 0)")
    if not 0 <= gap < 1:
        raise UsageError(f"--gap: {gap} (accepted: 0 up to, not including, 1)")
    if workers is not None and workers < 1:
        raise UsageError(f"--workers: {workers} (accepted: 1 or more)")
    if not 0 <= seed < 2**31:
        raise UsageError(f"--seed: {seed} (accepted: 0 to 2147483647)")
    if top < 0:
        raise UsageError(f"--top: {top} (accepted: 0 or more)")
    from prism_cp.search.options import SearchOptions

    return SearchOptions(time_limit_s=time_limit, gap=gap, workers=workers or usable_cores(), seed=seed, top_k=top)


def usable_cores() -> int:
    """Cores this process may run on."""
    import os

    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
