"""What a user may ask of a search, and what it reports while it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class SearchOptions:
    """Limits and choices of one search.

    Attributes
    ----------
    time_limit_s : float or None
        Wall-clock limit; the incumbent is returned with its true gap.
    gap : float
        Relative gap (incumbent - bound) / incumbent at which the search may stop; 0 asks for a proof.
    workers : int
        Processes that solve stage problems at the same time. One worker and a seed give the same plan every time.
    top_k : int
        How many further layouts to report.
    """

    time_limit_s: float | None = None
    gap: float = 0.0
    workers: int = 1
    seed: int = 0
    top_k: int = 5


@dataclass(frozen=True)
class Progress:
    """A moment of a search. Incumbent and bound are step times in seconds."""

    wall_s: float
    incumbent_s: float | None
    bound_s: float | None
    gap: float | None
    layouts_total: int
    layouts_left: int
    message: str = ""
