"""Benchmark room: run `prism-cp solve` as a process of its own and measure it from outside."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any

from prism_cp.errors import ExitCode, PrismError, UsageError


class SolveFailed(PrismError):
    """A measured process gave no plan; it ends the benchmark with its own exit code."""

    def __init__(self, command: str, exit_code: int, message: str) -> None:
        if exit_code < 0:
            ending, self.exit_code = f"was killed by {_signal_name(-exit_code)}", ExitCode.STOPPED_WITHOUT
        else:
            ending = f"ended with exit code {exit_code}"
            known = exit_code in {int(code) for code in ExitCode} and exit_code != ExitCode.PROVED
            self.exit_code = ExitCode(exit_code) if known else ExitCode.STOPPED_WITHOUT
        super().__init__(f"`{command}` {ending} and printed no plan: {message.strip() or 'no message'}")


@dataclass(frozen=True)
class Run:
    """One finished process.

    Attributes
    ----------
    wall_s : float
        From start to end, interpreter start-up and imports included.
    cpu_s : float
        Processor time of the process and its finished workers: what other load on the machine changes least.
    peak_gib : float
        Largest resident set of one process: the solving one or one of its workers, not their sum.
    exit_code : int
    plan : dict
        What ``--json`` printed.
    """

    wall_s: float
    cpu_s: float
    peak_gib: float
    exit_code: int
    plan: dict[str, Any]


def run_solve(arguments: Sequence[str]) -> Run:
    """Run ``prism-cp solve ARGUMENTS --json --quiet`` and wait for its end.

    Linux counts the peak of the starting process as that of the started one until the latter is larger, so the caller
    should be small; the benchmark commands import no solver.

    Raises
    ------
    SolveFailed
        The process printed no plan; its own message is included.
    UsageError
        The system cannot start and measure processes this way.
    """
    if not (hasattr(os, "posix_spawn") and hasattr(os, "wait4")):
        raise UsageError(f"benchmarks on {sys.platform}: processes cannot be measured (accepted: Linux, macOS)")
    tail = [*arguments, "--json", "--quiet"]
    command = [sys.executable, "-c", "from prism_cp.cli.main import run; run()", "solve", *tail]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        wall_s, cpu_s, peak_bytes, exit_code = _run(command, out, err)
        out.seek(0)
        err.seek(0)
        try:
            plan = json.loads(out.read())
        except ValueError:
            plan = None
        if not isinstance(plan, dict):
            message = err.read().decode(errors="replace")[-2000:]
            raise SolveFailed(f"prism-cp solve {shlex.join(tail)}", exit_code, message)
    return Run(wall_s, cpu_s, peak_bytes / 2**30, exit_code, plan)


def _run(command: list[str], out: IO[bytes], err: IO[bytes]) -> tuple[float, float, int, int]:
    """Wall seconds, processor seconds, peak bytes and exit code; an interrupted wait ends the process first."""
    started = time.monotonic()
    actions = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1), (os.POSIX_SPAWN_DUP2, err.fileno(), 2)]
    # A signal between the start and the wait would leave the process running, so it has to wait as well.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsigmask=before)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            _, status, usage = os.wait4(pid, 0)
        except BaseException:
            with suppress(ProcessLookupError, ChildProcessError):  # it may have ended just now
                os.kill(pid, signal.SIGTERM)
                os.waitpid(pid, 0)
            raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    wall_s = time.monotonic() - started
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss counts bytes there, KiB elsewhere
    cpu_s = usage.ru_utime + usage.ru_stime
    return wall_s, cpu_s, usage.ru_maxrss * unit, os.waitstatus_to_exitcode(status)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
