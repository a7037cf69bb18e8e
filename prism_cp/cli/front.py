"""Command line room: ``prism-cp front``."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism_cp.cli.options import (
    ClusterOption,
    GapOption,
    GbsOption,
    JsonOption,
    ModelOption,
    ProfileOption,
    QuietOption,
    SeedOption,
    SeqLenOption,
    SetOption,
    WorkersOption,
    instance_from_options,
    search_options,
)
from prism_cp.cli.output import check_out, data_console, message_console, print_json, write_whole
from prism_cp.errors import ExitCode, InstanceError, UsageError

if TYPE_CHECKING:
    from prism_cp.inputs.instance import Instance
    from prism_cp.search.front import Axis, Front, FrontPoint
    from prism_cp.search.front_file import FrontFile
    from prism_cp.search.options import SearchOptions

EXAMPLES = (
    "Examples:\n\n"
    "prism-cp front job.yaml --axes time,memory --points 20 --out front.svg\n\n"
    "prism-cp front job.yaml --axes time,memory --values 80,64,48,40 --json\n\n"
    "prism-cp front job.yaml --axes time,devices --resume front.jsonl --csv front.csv"
)
AXES: dict[str, Axis] = {"time,memory": "memory", "time,devices": "devices", "time,gbs": "gbs"}
DEFAULT_POINTS: dict[Axis, int] = {"memory": 12, "devices": 12, "gbs": 7}
GIB = 2**30
LARGEST_VALUE = 2**53


def front(
    instance: Annotated[Path | None, typer.Argument(help="Instance file (YAML).", show_default=False)] = None,
    axes: Annotated[str, typer.Option("--axes", help="time,memory or time,devices or time,gbs.")] = "time,memory",
    points: Annotated[
        str | None,
        typer.Option("--points", metavar="N", help="Solve at most N; 'all' for every one.  [default: 12, gbs 7]"),
    ] = None,
    values: Annotated[
        str | None,
        typer.Option("--values", metavar="V,V,…", help="Solve these: GiB per device, devices, or sequences per step."),
    ] = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    gbs: GbsOption = None,
    seq_len: SeqLenOption = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
    csv: Annotated[Path | None, typer.Option("--csv", help="Also write the points as comma-separated values.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Also draw the front: .svg, .png or .html.")] = None,
    resume: Annotated[
        Path | None,
        typer.Option("--resume", metavar="FILE", help="Keep solved points here, and go on from them next time."),
    ] = None,
    time_limit: Annotated[float | None, typer.Option("--time-limit", metavar="SECONDS", help="For each point.")] = None,
    gap: GapOption = 0.0,
    workers: WorkersOption = None,
    seed: SeedOption = 0,
    quiet: QuietOption = False,
) -> None:
    """Solve a family of instances: step time against memory, devices or batch size, each point proved."""
    axis = parse_axes(axes)
    options = search_options(time_limit, gap, workers, seed, 0)
    most_points = parse_points(points, axis)
    chosen = None if values is None else parse_values(values, axis)
    if chosen is not None and points is not None:
        raise UsageError("--points and --values exclude each other (accepted: one of them)")
    suffix = _checked_outputs(out, csv)

    def load(overrides: Sequence[str]) -> Instance:
        return instance_from_options(instance, [*(set_ or []), *overrides], model, cluster, gbs, seq_len, profile)

    load(())  # errors of the instance itself come first, and before heavy imports
    from prism_cp.cli.running import GentleStop
    from prism_cp.report.front_report import front_csv, front_json, print_front
    from prism_cp.search.front import Front
    from prism_cp.search.front_file import FrontFile

    store = None if resume is None else FrontFile(resume)
    family = Front(load, axis, chosen, most_points)
    with GentleStop():  # from the first search until the points are written and shown
        code, complete = solve_front(family, options, store, quiet=quiet)
        try:
            if csv is not None:
                write_whole(csv, front_csv(family), "--csv")
            if out is not None and suffix is not None and family.points:
                from prism_cp.report.plot_front import front_picture

                write_whole(out, front_picture(family, suffix))
        finally:  # a full disk does not cost the answer
            if json:
                print_json(front_json(family, complete=complete))
            else:
                print_front(family, data_console(), complete=complete)
    raise typer.Exit(int(code))


# -- options -----------------------------------------------------------------------------------------------------------


def parse_axes(text: str) -> Axis:
    """The varied value that ``--axes`` names."""
    axis = AXES.get(text.replace(" ", "").lower())
    if axis is None:
        raise UsageError(f"--axes: {text!r} (accepted: {' or '.join(AXES)})")
    return axis


def parse_points(text: str | None, axis: Axis) -> int | None:
    """How many points to solve at most; None for every one."""
    if text is None:
        return DEFAULT_POINTS[axis]
    if text.strip().lower() == "all":
        return None
    if not text.strip().isdecimal() or not 1 <= int(text[:20]) <= 1_000_000:
        raise UsageError(f"--points: {text!r} (accepted: 1 or more, or all)")
    return int(text)


def parse_values(text: str, axis: Axis) -> list[int]:
    """Positive values, memory in bytes."""
    accepted = "GiB above 0" if axis == "memory" else "whole numbers of at least 1"
    found = []
    for part in text.split(","):
        try:
            value = round(float(part) * GIB) if axis == "memory" else int(part)
        except (ValueError, OverflowError):  # not a number; infinite
            value = 0
        if not 1 <= value <= LARGEST_VALUE or not math.isfinite(value):
            raise UsageError(f"--values: {part.strip()!r} (accepted: {accepted}, separated by commas)")
        found.append(value)
    return found


def _checked_outputs(out: Path | None, csv: Path | None) -> str | None:
    """The picture's format; everything that can be refused early is."""
    if csv is not None:
        check_out(csv, "--csv")
    if out is None:
        return None
    from prism_cp.report.plot import picture_format, require_matplotlib

    suffix = picture_format(out)
    check_out(out)
    require_matplotlib()
    return suffix


# -- solving -----------------------------------------------------------------------------------------------------------


def solve_front(
    family: Front, options: SearchOptions, store: FrontFile | None, *, quiet: bool
) -> tuple[ExitCode, bool]:
    """Solve point after point until nothing is left to ask or the user stops; (exit code, whether it is complete)."""
    console = message_console()
    if store is not None and store.other_versions and not quiet:
        console.print(f"{store.path}: {store.other_versions} points of another version are solved again", markup=False)
    while (value := family.next_value()) is not None:
        instance = family.instance_at(value)
        point = _stored(store, value, instance, options.gap)
        faults: list[str] = []
        if point is None:
            solved = solve_point(family, value, instance, options, quiet=quiet)
            if solved is None:
                stopped = ExitCode.STOPPED_WITH_INCUMBENT if family.points else ExitCode.INTERRUPTED
                return stopped, False
            point, faults = solved
            if store is not None and not faults:
                store.append(point)
            source = f"solved in {point.wall_s:.1f} s"
        else:
            source = f"from {store.path}" if store is not None else ""
        family.add(point)
        if not quiet:
            console.print(_point_line(family, point, source), markup=False, soft_wrap=True)
        if faults:
            for fault in faults:
                console.print(f"check failed: {fault}", style="red", markup=False)
            return ExitCode.CHECK_FAILED, False
    return _exit_code(family, options.gap), True


def _stored(store: FrontFile | None, value: int, instance: Instance, gap: float) -> FrontPoint | None:
    """The stored point of an instance, if it is as good as asked for."""
    from prism_cp.inputs.load import instance_digest

    point = None if store is None else store.get(instance_digest(instance))
    if point is None or not _good(point, gap):
        return None
    return replace(point, value=value)  # the same instance may belong to a front of another axis, too


def _good(point: FrontPoint, gap: float) -> bool:
    """Whether a point is proved, or within the gap that is good enough."""
    return point.proved or (point.plan is not None and point.plan.gap is not None and point.plan.gap <= gap)


def solve_point(
    family: Front, value: int, instance: Instance, options: SearchOptions, *, quiet: bool
) -> tuple[FrontPoint, list[str]] | None:
    """One point and the checker's objections to it; None when the user stopped the search."""
    from prism_cp.cli.running import search
    from prism_cp.cli.solve import checked_plan
    from prism_cp.inputs.load import instance_digest
    from prism_cp.search.front import FrontPoint

    digest, started = instance_digest(instance), time.monotonic()
    try:
        result = search(instance, options, quiet=quiet, known=family.known_for(value))
    except InstanceError as error:
        # No layout divides: for this member of the family that is an answer, for all of it an error.
        if error.key != "layout" or not family.points:
            raise
        return FrontPoint(value, digest, None, str(error), time.monotonic() - started), []
    if result.interrupted:
        return None
    plan, faults = checked_plan(instance, result, certify=False, time_limit_s=None)
    best = result.best
    known = None if best is None or best.assignment is None else (best.layout, best.assignment)
    return FrontPoint(value, digest, plan, "", time.monotonic() - started, known), faults


def _point_line(family: Front, point: FrontPoint, source: str) -> str:
    from prism_cp.report.front_report import TITLES, status_text, value_text
    from prism_cp.report.numbers import seconds

    step = "" if point.plan is None or point.plan.step_time_s is None else f", {seconds(point.plan.step_time_s)}"
    return f"{TITLES[family.axis]} {value_text(family.axis, point.value)}: {status_text(point)}{step}, {source}"


def _exit_code(family: Front, gap: float) -> ExitCode:
    """As for one solve: everything proved (or close enough), nothing fits anywhere, or something was left open."""
    points = family.points.values()
    if any(not _good(point, gap) for point in points):
        fits = any(point.objective is not None for point in points)
        return ExitCode.STOPPED_WITH_INCUMBENT if fits else ExitCode.STOPPED_WITHOUT
    return ExitCode.PROVED if any(point.objective is not None for point in points) else ExitCode.INFEASIBLE
