"""Run `prism-cp solve` as a process of its own and measure it from outside."""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Run:
    """One finished process.

    Attributes
    ----------
    wall_s
        From start to end, interpreter start-up and imports included.
    peak_gib
        Largest resident set of the process or of one of its finished children.
    plan
        What `--json` printed.
    """

    wall_s: float
    peak_gib: float
    exit_code: int
    plan: dict[str, Any]


def run_solve(arguments: Sequence[str]) -> Run:
    """Run ``prism-cp solve ARGUMENTS --json --quiet``.

    Raises
    ------
    RuntimeError
        The process printed no JSON; its message is included.
    """
    command = [sys.executable, "-m", "prism_cp.cli.main", "solve", *arguments, "--json", "--quiet"]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        started = time.monotonic()
        actions = [(os.POSIX_SPAWN_DUP2, out.fileno(), 1), (os.POSIX_SPAWN_DUP2, err.fileno(), 2)]
        pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=actions)
        _, status, usage = os.wait4(pid, 0)
        wall_s = time.monotonic() - started
        out.seek(0)
        err.seek(0)
        try:
            plan = json.loads(out.read())
        except ValueError:
            raise RuntimeError(f"{' '.join(command)} failed: {err.read().decode(errors='replace')[-2000:]}") from None
    scale = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in KiB on Linux
    return Run(wall_s, usage.ru_maxrss * scale / 2**30, os.waitstatus_to_exitcode(status), plan)


def environment() -> str:
    """Machine and versions in one line, for the foot of a table."""
    cpu = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                cpu = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    packages = ", ".join(f"{name} {version(name)}" for name in ("prism_cp", "ortools", "numpy", "numba", "sympy"))
    return f"{os.cpu_count()} cores ({cpu}), Python {platform.python_version()}, {packages}"
