"""Command line room: the program ``prism-cp``; one module per command, nothing heavy imported before it is needed.

Data goes to standard output, progress and messages to standard error.
"""

from __future__ import annotations

import os
import sys

import typer

from prism_cp.cli import bench, catalog, check, estimate, explain, front, plot, solve, trace, validate
from prism_cp.errors import ExitCode, PrismError

app = typer.Typer(
    name="prism-cp",
    help="Find the provably fastest way to train a large model on a cluster: parallel layout, pipeline stages and "
    "recomputation, offline. Exit codes: 0 proved (or asked gap met), 2 usage, 3 proved infeasible, 4 stopped with a "
    "plan, 5 stopped without, 6 invalid input, 7 check failed, 130 interrupted without a plan.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
app.command("solve", epilog=solve.EXAMPLES)(solve.solve)
app.command("check", epilog=check.EXAMPLES)(check.check)
app.command("explain", epilog=explain.EXAMPLES)(explain.explain)
app.command("front", epilog=front.EXAMPLES)(front.front)
app.command("plot", epilog=plot.EXAMPLES)(plot.plot)
app.command("trace", epilog=trace.EXAMPLES)(trace.trace)
app.command("estimate", epilog=estimate.EXAMPLES)(estimate.estimate)
app.command("validate", epilog=validate.EXAMPLES)(validate.validate)
app.add_typer(catalog.app, name="catalog")
app.add_typer(bench.app, name="bench")


@app.callback(invoke_without_command=True)
def options(
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> None:
    """Options that need no command."""
    if version:
        import prism_cp

        typer.echo(f"prism-cp {prism_cp.__version__}")
        raise typer.Exit


def run() -> None:
    """Entry point of the program: errors a user can cause become one message and an exit code."""
    try:
        try:
            app()
        finally:
            sys.stdout.flush()
    except PrismError as error:
        fail(str(error), error.exit_code)
    except BrokenPipeError:
        # The reader has gone; nothing is left to say, and Python must not try to flush at exit.
        _discard_output()
        sys.exit(1)
    except OSError as error:
        _discard_output()
        fail(f"the operating system refused: {error}", ExitCode.USAGE)
    except MemoryError:
        fail("out of memory (pinned layout fields, --set layout.…, need less)", ExitCode.STOPPED_WITHOUT)


def fail(message: str, code: ExitCode) -> None:
    """One line on standard error, and the exit code."""
    try:
        sys.stderr.write(f"prism-cp: {message}\n")
        sys.stderr.flush()
    except (OSError, ValueError):  # nobody listens
        pass
    sys.exit(int(code))


def _discard_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
