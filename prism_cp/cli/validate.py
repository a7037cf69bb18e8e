"""Command line room: ``prism-cp validate``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism_cp.cli.options import JsonOption, QuietOption
from prism_cp.cli.output import check_out, message_console, print_json, write_whole
from prism_cp.errors import UsageError

if TYPE_CHECKING:
    from prism_cp.validation.summary import Summary
    from prism_cp.validation.validate import Prediction

EXAMPLES = (
    "Examples:\n\nprism-cp validate measurements.csv --out rows.csv\n\n"
    "prism-cp validate MEASUREMENTS/*.csv --filter precision=bf16 --json\n\n"
    "prism-cp validate MEASUREMENTS/*.csv --out results/validation"
)
_ROWS, _TABLES = ".csv", (".md", "")


def validate(
    csv: Annotated[list[Path], typer.Argument(help="Measurement files: one run a line, first the column names.")],
    filters: Annotated[
        list[str] | None,
        typer.Option("--filter", metavar="COLUMN=VALUE", help="Only rows with this value; repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="A .csv file: the rows with their predictions. A name without suffix (or .md): the summary as "
            "NAME.md, everything as NAME.json, predicted against measured as NAME-FAMILY.png.",
        ),
    ] = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Predict memory and step time of published runs, and say how far off the predictions are."""
    _check(out, csv)
    from prism_cp.validation.report import as_json, rows_csv, summary_text
    from prism_cp.validation.rows import read_rows
    from prism_cp.validation.summary import summarize
    from prism_cp.validation.validate import filtered, predictions

    rows = filtered(read_rows(csv), filters or ())
    found = predictions(rows, _speaker(quiet))
    summary = summarize(found)
    command = _command(csv, filters or (), out)
    if out is not None:
        _write(out, found, summary, command)
    if json:
        print_json(as_json(found, summary, command).rstrip("\n"))
        return
    if out is None:
        typer.echo(rows_csv(found))
    typer.echo(summary_text(summary, groups=("family",)).rstrip("\n"))


def _check(out: Path | None, csv: Sequence[Path]) -> None:
    if out is None:
        return
    if not out.name:
        raise UsageError(f"--out: {out} is a directory (accepted: a file name)")
    if out.resolve() in {path.resolve() for path in csv}:
        raise UsageError(f"--out: {out} is one of the measurement files (accepted: another name)")
    if out.suffix == _ROWS:
        check_out(out)
        return
    if out.suffix not in _TABLES:
        raise UsageError(f"--out: {out} (accepted: a name that ends in .csv or .md, or has no suffix)")
    from prism_cp.report.plot import require_matplotlib

    require_matplotlib()
    check_out(out.with_suffix(".md"))
    check_out(out.with_suffix(".json"))


def _write(out: Path, found: Sequence[Prediction], summary: Summary, command: str) -> None:
    from prism_cp.validation.plot import family_pictures
    from prism_cp.validation.report import as_json, page, rows_csv

    if out.suffix == _ROWS:
        write_whole(out, rows_csv(found))
        return
    pictures = {f"{out.stem}-{name}.png": picture for name, picture in family_pictures(found).items()}
    for name, picture in pictures.items():
        write_whole(out.with_name(name), picture)
    write_whole(out.with_suffix(".json"), as_json(found, summary, command))
    write_whole(out.with_suffix(".md"), page(summary, command, list(pictures)))


def _command(csv: Sequence[Path], filters: Sequence[str], out: Path | None) -> str:
    """The command that remakes the output; files of one folder are named by a pattern."""
    import shlex

    folders = {path.parent for path in csv}
    files = "MEASUREMENTS/*.csv" if len(csv) > 1 and len(folders) == 1 else " ".join(path.name for path in csv)
    words = ["prism-cp", "validate", files]
    for text in filters:
        words += ["--filter", shlex.quote(text)]
    return " ".join(words if out is None else [*words, "--out", str(out) if not out.is_absolute() else out.name])


def _speaker(quiet: bool) -> Callable[[str], None]:
    console = message_console()

    def say(text: str) -> None:
        if not quiet:
            console.print(text, markup=False)

    return say
