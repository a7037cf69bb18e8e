"""Command line room: ``prism-cp bench``."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from prism_cp.cli.options import JsonOption, QuietOption, usable_cores
from prism_cp.cli.output import check_out, message_console, write_whole
from prism_cp.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from prism_cp.benchmark.points import Point
    from prism_cp.benchmark.tables import Table

app = typer.Typer(
    help="Measure whole `prism-cp solve` processes, or the engine on single stage problems: times, bound, incumbent; "
    "compare plans with published configurations.",
    epilog="Examples:\n\nprism-cp bench instances --repeats 3 --out results/instances.md\n\n"
    "prism-cp bench instances --family moe --time-limit 60\n\nprism-cp bench growth --out results/growth.md\n\n"
    "prism-cp bench stage-problems --filter vpp2 --second-proof 600\n\n"
    "prism-cp bench published --filter deepseek --time-limit 60",
    no_args_is_help=True,
)
RepeatsOption = Annotated[int, typer.Option("--repeats", help="Runs a row; the table has the median.")]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", help="Solves at the same time in every run.  [default: as many as cores]")
]
LimitOption = Annotated[
    float | None,
    typer.Option("--time-limit", metavar="SECONDS", help="Stop a run then; its row may say `no`."),
]
OutOption = Annotated[
    Path | None, typer.Option("--out", help="Also write the table to this file (.md), and every run beside it (.json).")
]


@app.command("instances")
def instances(
    folder: Annotated[Path, typer.Option("--folder", help="Folder with a sub-folder for every family.")] = Path(
        "instances"
    ),
    family: Annotated[
        list[str] | None, typer.Option("--family", help="Only this family; repeatable.  [default: all but tiny]")
    ] = None,
    repeats: RepeatsOption = 3,
    workers: WorkersOption = None,
    time_limit: LimitOption = None,
    out: OutOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Every instance of a folder: layouts, effort, bound and incumbent."""
    from prism_cp.benchmark.points import instance_points

    words = ["--folder", str(folder)] if folder != Path("instances") else []
    for name in family or ():
        words += ["--family", name]
    points = instance_points(folder, family or ())
    _bench("instances", "Instances", "instance", points, words, repeats, workers, time_limit, out, json, quiet)


@app.command("schedules")
def schedules(
    folder: Annotated[Path, typer.Option("--folder", help="Folder of the shipped instances.")] = Path("instances"),
    repeats: RepeatsOption = 3,
    workers: WorkersOption = None,
    time_limit: LimitOption = None,
    out: OutOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Large instances with every schedule open, and with each schedule alone on eight pipeline ranks."""
    from prism_cp.benchmark.points import schedule_points

    words = ["--folder", str(folder)] if folder != Path("instances") else []
    points = schedule_points(folder)
    _bench("schedules", "Schedules", "search", points, words, repeats, workers, time_limit, out, json, quiet)


@app.command("growth")
def growth(
    repeats: RepeatsOption = 3,
    workers: WorkersOption = None,
    time_limit: LimitOption = None,
    out: OutOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """One model with up to 16 times the layers, 64 times the devices, 64 times the micro-batches."""
    from prism_cp.benchmark.points import GROWTH_MODEL, growth_points

    title = f"Growth of {GROWTH_MODEL[0]}"
    _bench("growth", title, "point", growth_points(), [], repeats, workers, time_limit, out, json, quiet)


@app.command("stage-problems")
def stage_problems(
    time_limit: Annotated[float, typer.Option("--time-limit", metavar="SECONDS", help="Wall time of a case.")] = 60.0,
    parts: Annotated[
        list[str] | None, typer.Option("--filter", help="Only cases with this in their name; repeatable.")
    ] = None,
    second_proof: Annotated[
        float | None,
        typer.Option(
            "--second-proof",
            metavar="SECONDS",
            help="Also prove each optimum a second time, by CP-SAT over columns, for so long.",
        ),
    ] = None,
    out: OutOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """The engine on single hard stage problems of every schedule, in this process."""
    from prism_cp.benchmark.stage_problems import PROVED, cases_json, cases_markdown, chosen_cases, measure_cases

    cases = chosen_cases(parts or ())
    words = [f"--time-limit={time_limit:g}", *(f"--filter={part}" for part in parts or ())]
    for name, limit in (("--time-limit", time_limit), ("--second-proof", second_proof)):
        if limit is not None and not 0 < limit < float("inf"):
            raise UsageError(f"{name}: {limit} (accepted: seconds, more than 0)")
    if second_proof is not None:
        words.append(f"--second-proof={second_proof:g}")
    if out is not None:
        _check_out(out)
    with _terminable():
        rows = measure_cases(cases, time_limit, second_proof, _speaker(quiet))
    command = _command_text(["bench", "stage-problems", *words], out)
    text, data = cases_markdown(rows, command, time_limit), cases_json(rows, command, time_limit, second_proof)
    if out is not None:
        write_whole(out, text)
        write_whole(out.with_suffix(".json"), data)
    typer.echo(data if json else text, nl=False)
    proved = all(row.status in PROVED for row in rows)
    raise typer.Exit(int(ExitCode.PROVED if proved else ExitCode.STOPPED_WITH_INCUMBENT))


@app.command("published")
def published(
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Folder of published configurations.  [default: the shipped ones]")
    ] = None,
    parts: Annotated[
        list[str] | None, typer.Option("--filter", help="Only configurations with this in their name; repeatable.")
    ] = None,
    workers: WorkersOption = None,
    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="SECONDS", help="Of the search in every row.")
    ] = 60.0,
    out: OutOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Published configurations beside our plans, under the same cost model, in this process."""
    from prism_cp.benchmark.compare_published import measure_published
    from prism_cp.benchmark.published import published_configurations
    from prism_cp.benchmark.published_table import published_json, published_markdown
    from prism_cp.cli.options import search_options

    options = search_options(time_limit, 0.0, workers, 0, 0)
    chosen = published_configurations(folder, parts or ())
    if out is not None:
        _check_out(out)
    with _terminable():
        rows = measure_published(chosen, options, _speaker(quiet))
    words = [] if folder is None else ["--folder", str(folder)]
    words += [f"--filter={part}" for part in parts or ()]
    words += [f"--workers={options.workers}", f"--time-limit={time_limit:g}"]
    command = _command_text(["bench", "published", *words], out)
    text, data = published_markdown(rows, command, time_limit), published_json(rows, command, time_limit)
    if out is not None:
        write_whole(out, text)
        write_whole(out.with_suffix(".json"), data)
    typer.echo(data if json else text, nl=False)
    proved = all(row.plan.proved for row in rows)
    raise typer.Exit(int(ExitCode.PROVED if proved else ExitCode.STOPPED_WITH_INCUMBENT))


def _bench(
    command: str,
    title: str,
    first_column: str,
    points: Sequence[Point],
    words: Sequence[str],
    repeats: int,
    workers: int | None,
    time_limit: float | None,
    out: Path | None,
    json: bool,
    quiet: bool,
) -> None:
    """Measure, print, write; exit code 4 when a row is not proved."""
    from prism_cp.benchmark.tables import Table, as_json, markdown, measure

    options = _solve_options(repeats, workers, time_limit)
    if out is not None:
        _check_out(out)
    with _terminable():
        rows = measure(points, repeats, options, _speaker(quiet))
    given = ["bench", command, *words, "--repeats", str(repeats), *options]
    table = Table(_command_text(given, out), repeats, int(options[1]), rows)
    text, data = markdown(table, title, first_column), as_json(table)
    if out is not None:
        write_whole(out, text)
        write_whole(out.with_suffix(".json"), data)
    typer.echo(data if json else text, nl=False)
    raise typer.Exit(_exit_code(table))


def _solve_options(repeats: int, workers: int | None, time_limit: float | None) -> list[str]:
    """Options every measured process gets: the number of workers first."""
    from prism_cp.cli.options import search_options

    if repeats < 1:
        raise UsageError(f"--repeats: {repeats} (accepted: 1 or more)")
    search_options(time_limit, 0.0, workers, 0, 0)  # refuses what every single process would refuse
    limit = [] if time_limit is None else ["--time-limit", f"{time_limit:g}"]
    return ["--workers", str(workers or usable_cores()), *limit]


def _check_out(out: Path) -> None:
    if out.suffix != ".md":
        raise UsageError(f"--out: {out} (accepted: a file name that ends in .md)")
    check_out(out)
    check_out(out.with_suffix(".json"))


def _command_text(words: Sequence[str], out: Path | None) -> str:
    import shlex

    return shlex.join(["prism-cp", *words, *(["--out", str(out)] if out is not None else [])])


def _exit_code(table: Table) -> int:
    return int(ExitCode.PROVED if all(row.proved for row in table.rows) else ExitCode.STOPPED_WITH_INCUMBENT)


def _speaker(quiet: bool) -> Callable[[str], None]:
    console = message_console()

    def say(text: str) -> None:
        if not quiet:
            console.print(text, markup=False)

    return say


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGINT and SIGTERM stop the running process; nothing is written then."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    except KeyboardInterrupt:
        message_console().print("stopped; no table was written")
        raise typer.Exit(int(ExitCode.INTERRUPTED)) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
