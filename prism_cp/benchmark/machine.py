"""Benchmark room: the machine and the versions a table was made with."""

from __future__ import annotations

import os
import platform
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import prism_cp

PACKAGES = ("ortools", "highspy", "sympy", "numpy", "numba", "networkx", "pydantic")


def machine() -> dict[str, str | int | float]:
    """Processor, cores this process may use, memory in GiB and operating system."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    facts: dict[str, str | int | float] = {"processor": _processor(), "cores": cores, "system": platform.platform()}
    with suppress(ValueError, OSError):  # not every system tells
        facts["memory_gib"] = round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1)
    return facts


def versions() -> dict[str, str]:
    """This package, Python and what decides results or speed."""
    own = {"prism_cp": prism_cp.__version__, "python": platform.python_version()}
    return own | {name: version(name) for name in PACKAGES}


def _processor() -> str:
    with suppress(OSError):  # only Linux has the file
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
