"""Errors a user can cause, and the exit code each of them ends a command with."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What a command's exit status says to a script."""

    PROVED = 0  # proved, or the asked gap met; also any command that simply succeeded
    USAGE = 2
    INFEASIBLE = 3  # proved: nothing fits
    STOPPED_WITH_INCUMBENT = 4
    STOPPED_WITHOUT = 5
    INVALID_INSTANCE = 6
    CHECK_FAILED = 7
    INTERRUPTED = 130  # stopped by the user before there was an incumbent


class PrismError(Exception):
    """Base of every error that a user can cause; its text is shown without a traceback."""

    exit_code: ExitCode = ExitCode.USAGE


class UsageError(PrismError):
    """An option, a file name or an output location is unusable."""

    exit_code = ExitCode.USAGE


class InstanceError(PrismError):
    """An input's content is wrong.

    Parameters
    ----------
    key : str
        Dotted path of the offending key, e.g. ``layout.tp``; empty when the whole file is meant.
    problem : str
        What is wrong, with the value.
    accepted : str
        What would be accepted; empty when nothing sensible can be said.
    source : str
        File or catalogue entry that was read; empty when unknown.
    """

    exit_code = ExitCode.INVALID_INSTANCE

    def __init__(self, key: str, problem: str, accepted: str = "", source: str = "") -> None:
        self.key, self.problem, self.accepted, self.source = key, problem, accepted, source
        where = f"{source}: " if source else ""
        what = f"{key}: {problem}" if key else problem
        super().__init__(f"{where}{what}" + (f" (accepted: {accepted})" if accepted else ""))


class PlanError(InstanceError):
    """A plan file cannot be read, or belongs to another instance."""
