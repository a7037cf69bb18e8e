"""Report room: the search's progress on standard error; one changing line on a terminal, few plain lines elsewhere."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING

from rich.text import Text

from prism_cp.report.numbers import gap, seconds

if TYPE_CHECKING:
    from rich.console import Console
    from rich.status import Status

    from prism_cp.search.options import Progress

PLAIN_INTERVAL_S = 5.0


class ProgressPrinter:
    """Shows `Progress` values; may be updated from another thread.

    Parameters
    ----------
    console : rich.console.Console
        Where to; animated only if it is a terminal.
    quiet : bool
        Show nothing.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self._console, self._quiet = console, quiet
        self._status: Status | None = None
        self._lock = threading.Lock()
        self._last_plain_s = -PLAIN_INTERVAL_S
        self._last_text = ""
        self._said_stopping = False

    def __enter__(self) -> ProgressPrinter:
        if not self._quiet and self._console.is_terminal:
            self._status = self._console.status("bounding layouts")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            if self._status is not None:
                self._status.stop()
                self._status = None
            self._quiet = True

    def update(self, progress: Progress) -> None:
        """Show the newest state; off a terminal at most every `PLAIN_INTERVAL_S` seconds."""
        with self._lock:
            if self._quiet:
                return
            text = progress_text(progress)
            if self._status is not None:
                self._status.update(Text(text))
            elif text != self._last_text and time.monotonic() - self._last_plain_s >= PLAIN_INTERVAL_S:
                self._last_plain_s, self._last_text = time.monotonic(), text
                self._say(text)

    def stopping(self) -> None:
        """Say once that the search has been asked to stop."""
        with self._lock:
            if not self._said_stopping and not self._quiet:
                self._say("stopping; once more to leave without a plan")
            self._said_stopping = True

    def _say(self, text: str) -> None:
        try:
            self._console.print(text, markup=False, soft_wrap=True)
        except OSError:  # nobody can read it, e.g. a log on a full disk; the search goes on
            self._quiet = True


def progress_text(progress: Progress) -> str:
    """One line: time, incumbent, bound, gap, layouts left."""
    parts = [f"{progress.wall_s:6.1f} s"]
    if progress.incumbent_s is not None:
        parts.append(f"best {seconds(progress.incumbent_s)}")
    if progress.bound_s is not None:
        parts.append(f"bound {seconds(progress.bound_s)}")
    if progress.gap is not None:
        parts.append(f"gap {gap(progress.gap)}")
    parts.append(f"{progress.layouts_left:,} of {progress.layouts_total:,} layouts left")
    if progress.message:
        parts.append(progress.message)
    return "  ".join(parts)
