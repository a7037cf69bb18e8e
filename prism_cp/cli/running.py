"""Command line room: a search that Ctrl-C and SIGTERM stop gently, with progress on standard error."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from prism_cp.cli.output import message_console
from prism_cp.errors import ExitCode

if TYPE_CHECKING:
    from prism_cp.inputs.instance import Instance
    from prism_cp.inputs.layout import Layout
    from prism_cp.result import SearchResult
    from prism_cp.search.options import SearchOptions
    from prism_cp.stage_problem import Assignment

POLL_S = 0.2
T = TypeVar("T")


class InThread(Generic[T]):
    """A function's call in a thread of its own."""

    def __init__(self, function: Callable[[], T]) -> None:
        self._values: list[T] = []
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(function,), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[[], T]) -> None:
        try:
            self._values.append(function())
        except BaseException as error:  # handed to whoever waits
            self._failure = error

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended, after at most that long."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def result(self) -> T:
        """Its value or its exception, once it has ended."""
        if self._failure is not None:
            raise self._failure
        return self._values[0]


class GentleStop:
    """While active, the first SIGINT or SIGTERM sets `event`; a second one ends the program at once.

    One within another shares its event: what follows a stopped search does not start over, and a result that is being
    checked, written or shown is not lost to a signal that comes after its search.
    """

    _innermost: ClassVar[GentleStop | None] = None

    def __init__(self) -> None:
        outer = GentleStop._innermost
        self.event: threading.Event = threading.Event() if outer is None else outer.event
        self._outer = outer
        self._before: dict[int, object] = {}

    def __enter__(self) -> GentleStop:
        GentleStop._innermost = self
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        GentleStop._innermost = self._outer
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.event.is_set():
            os._exit(int(ExitCode.INTERRUPTED))
        self.event.set()


def search(
    instance: Instance, options: SearchOptions, *, quiet: bool = False, known: Sequence[tuple[Layout, Assignment]] = ()
) -> SearchResult:
    """Run the search in a thread of its own, so that signals are seen at once; it starts from the `known` plans.

    A solver deep in native code would hold a signal back if it ran on the main thread.
    """
    from prism_cp.report.progress import ProgressPrinter
    from prism_cp.search.solve import solve_instance

    start: dict[str, Any] = {"known": known} if known else {}
    with GentleStop() as stop, ProgressPrinter(message_console(), quiet=quiet) as printer:
        running = InThread(lambda: solve_instance(instance, options, printer.update, stop.event, **start))
        while not running.wait(POLL_S):
            if stop.event.is_set():
                printer.stopping()
        return running.result()


def unless_stopped(function: Callable[[], T]) -> T | None:
    """The function's value, or None as soon as Ctrl-C or SIGTERM ask to stop (its thread is then abandoned)."""
    with GentleStop() as stop:
        running = InThread(function)
        while not running.wait(POLL_S):
            if stop.event.is_set():
                return None
        return running.result()


def exit_code(result: SearchResult, gap: float) -> ExitCode:
    """What a search's end means to a script."""
    if result.status == "infeasible" and result.proved:
        return ExitCode.INFEASIBLE
    if result.objective is None:
        return ExitCode.INTERRUPTED if result.interrupted else ExitCode.STOPPED_WITHOUT
    if result.proved:
        return ExitCode.PROVED
    reached = result.bound is not None and result.objective - result.bound <= gap * result.objective
    return ExitCode.PROVED if reached else ExitCode.STOPPED_WITH_INCUMBENT
