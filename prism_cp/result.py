"""What a search returns: status, incumbent, bound, and what became of every layout."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from prism_cp.inputs.layout import Layout
from prism_cp.pipeline import PathCut
from prism_cp.stage_problem import Assignment, StageProblem

Status = Literal["optimal", "feasible", "infeasible", "unknown"]
Ending = Literal["pruned", "no_better", "solved", "infeasible", "open"]


@dataclass(frozen=True)
class LayoutOutcome:
    """What became of one layout.

    Attributes
    ----------
    ending
        ``pruned``: a lower bound reached the incumbent; ``no_better``: its stage problem was proved to have nothing
        below the incumbent; ``solved``: its own optimum is known; ``infeasible``: nothing fits; ``open``: undecided.
    lower_bound
        Proven lower bound on pipeline time plus barrier, in time units.
    best
        Best known value, in time units; None when no plan is known.
    reason
        One sentence for people.
    """

    layout: Layout
    ending: Ending
    lower_bound: int
    best: int | None = None
    reason: str = ""
    problem: StageProblem | None = None
    assignment: Assignment | None = None
    cuts: tuple[PathCut, ...] = ()  # paths learnt while it was decided


@dataclass(frozen=True)
class SearchStatistics:
    """Counts of layouts by ending, and effort."""

    layouts_total: int
    pruned: int
    no_better: int
    solved: int
    infeasible: int
    open: int
    wall_s: float
    deterministic_time: float  # sum over CP-SAT solves


@dataclass(frozen=True)
class SearchResult:
    """The answer to one instance.

    `objective` and `bound` are integers in time units: pipeline time plus barrier. `proved` is computed from them:
    it is true exactly when both are known and equal (or when every layout was proved infeasible).
    """

    status: Status
    proved: bool
    objective: int | None
    bound: int | None
    best: LayoutOutcome | None  # with problem and assignment
    others: tuple[LayoutOutcome, ...]  # further layouts, best value first, at most `top_k`
    opened: tuple[LayoutOutcome, ...]  # every layout whose stage problem was built, the best one included
    statistics: SearchStatistics
    seed: int
    workers: int
    interrupted: bool = False
    notes: tuple[str, ...] = field(default=())
