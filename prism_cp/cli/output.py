"""Command line room: whole files or none, and consoles that behave off a terminal."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from prism_cp.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_OFF_TERMINAL = 120


def data_console() -> Console:
    """Console for results on standard output; a fixed width where there is no terminal."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else WIDTH_OFF_TERMINAL, highlight=False)


def message_console() -> Console:
    """Console for progress and messages on standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, width=None if sys.stderr.isatty() else WIDTH_OFF_TERMINAL)


def print_json(text: str) -> None:
    """JSON text on standard output, exactly as given."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def check_out(path: Path, option: str = "--out") -> None:
    """Refuse an output location that cannot work, before any time is spent; errors name `option`.

    Raises
    ------
    UsageError
        The folder is missing or not writable, or the path is a directory.
    """
    try:
        target = Path(os.path.realpath(path))
        if target.is_dir():
            raise UsageError(f"{option}: {path} is a directory (accepted: a file name)")
        if _is_device(target):
            return
        if not target.parent.is_dir():
            raise UsageError(
                f"{option}: folder {target.parent} does not exist (accepted: a file in an existing folder)"
            )
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise UsageError(
                f"{option}: folder {target.parent} is not writable (accepted: a file in a writable folder)"
            )
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise UsageError(f"{option}: {str(path)!r}: {error} (accepted: a file name)") from error


def write_whole(path: Path, content: str | bytes, option: str = "--out") -> None:
    """Write a file (text as UTF-8) completely or leave what was there: temporary file beside it, fsync, rename.

    Devices and pipes (``/dev/stdout``) are written to directly. Links are followed, an existing file keeps its mode.

    Raises
    ------
    UsageError
        Anything the operating system refuses, e.g. a full disk.
    """
    check_out(path, option)
    data = content.encode() if isinstance(content, str) else content
    target = Path(os.path.realpath(path))
    try:
        if _is_device(target):
            with open(target, "wb") as stream:
                stream.write(data)
        else:
            _replace(target, data)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise UsageError(
            f"{option}: {path} cannot be written: {error.strerror or error} (nothing was left behind; "
            "accepted: a file on a writable disk with room)"
        ) from error


def _is_device(target: Path) -> bool:
    """Something that exists and is neither file nor folder."""
    return target.exists() and not stat.S_ISREG(target.stat().st_mode) and not target.is_dir()


def _replace(target: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{target.name[:100]}.", suffix=".part", dir=target.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name survives a crash, too
    finally:
        os.close(folder)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
