"""Engine room: what may stop a search: a deadline, a number of nodes, an event."""

from __future__ import annotations

import threading
import time


class SearchStopped(Exception):
    """A limit was reached in the middle of something that has no partial result."""


class Limits:
    """Counts nodes and says when to stop.

    Attributes
    ----------
    deadline : float or None
        As `time.monotonic` counts.
    node_limit : int or None
    stop : threading.Event or None
    nodes : int
    """

    def __init__(self, deadline: float | None, node_limit: int | None, stop: threading.Event | None) -> None:
        self.deadline, self.node_limit, self.stop = deadline, node_limit, stop
        self.nodes = 0

    def reached(self) -> bool:
        """Whether to stop now."""
        return (
            (self.deadline is not None and time.monotonic() >= self.deadline)
            or (self.node_limit is not None and self.nodes >= self.node_limit)
            or (self.stop is not None and self.stop.is_set())
        )

    def remaining_s(self) -> float | None:
        """Seconds until the deadline, at least a hundredth; None without one."""
        return None if self.deadline is None else max(0.01, self.deadline - time.monotonic())
