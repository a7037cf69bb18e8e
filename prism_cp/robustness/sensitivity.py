"""Robustness room: by how much each constant may change before the layout of a proved plan stops being optimal.

Every probe is a search of the instance with one constant scaled, started from the plan; where another layout comes out
best, the plan's layout is solved alone, because it may be as fast. The ends of the range are probed first, and only
where the layout is not optimal there the change is bracketed by bisection. Nothing is claimed between probes: the
factors under which a layout is optimal need not be an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Literal

from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.result import SearchResult
from prism_cp.robustness.constants import Constant
from prism_cp.stage_problem import Assignment

Search = Callable[[Instance, Sequence[tuple[Layout, Assignment]]], SearchResult]
Verdict = Literal["optimal", "not optimal", "unproved"]


@dataclass(frozen=True)
class Probe:
    """The instance with one constant multiplied by `factor`.

    Attributes
    ----------
    verdict
        Whether the plan's layout is proved optimal there, proved not to be, or neither.
    best
        The best layout known; None when there is no plan.
    step_time, own_step_time
        Of the best plan and of the best plan in the plan's layout, time units; None where none is known.
    own_fits
        False: proved that nothing in the plan's layout fits.
    interrupted
        The user stopped the search.
    """

    factor: float
    verdict: Verdict
    best: Layout | None
    step_time: int | None
    own_step_time: int | None
    own_fits: bool = True
    interrupted: bool = False


@dataclass(frozen=True)
class Side:
    """What was found below or above a factor of 1.

    Attributes
    ----------
    holds_to
        The farthest probed factor, without a worse one before it, at which the layout is proved optimal (1: the plan
        itself).
    ends_at
        The nearest probe beyond it; None when `holds_to` is the end of the range.
    """

    holds_to: float
    ends_at: Probe | None


@dataclass(frozen=True)
class Sensitivity:
    """All probes of one constant; a side is None where the value cannot be changed in that direction."""

    constant: Constant
    down: Side | None
    up: Side | None
    probes: tuple[Probe, ...]

    @property
    def interrupted(self) -> bool:
        """Whether the user stopped it."""
        return any(probe.interrupted for probe in self.probes)


def sensitivity(
    instance: Instance,
    layout: Layout,
    assignment: Assignment,
    constant: Constant,
    *,
    low: float,
    high: float,
    resolution: float,
    search: Search,
    progress: Callable[[Probe], None] = lambda probe: None,
) -> Sensitivity:
    """Probe one constant from `low` to `high` times its value.

    Parameters
    ----------
    layout, assignment
        A plan proved optimal for `instance`.
    resolution : float
        A change is bracketed by factors whose ratio is at most 1 + resolution.
    progress : callable
        Called after every probe.
    """
    probes: list[Probe] = []

    def at(factor: float) -> Probe:
        found = probe(constant.scaled(instance, factor), layout, assignment, factor, search)
        probes.append(found)
        progress(found)
        return found

    sides: list[Side | None] = []
    for end in (max(low, constant.least), min(high, constant.most)):
        stopped = any(found.interrupted for found in probes)
        sides.append(None if end == 1 or stopped else _bracketed(end, resolution, at))
    return Sensitivity(constant, sides[0], sides[1], tuple(sorted(probes, key=lambda found: found.factor)))


def _bracketed(end: float, resolution: float, at: Callable[[float], Probe]) -> Side:
    """Probe the end of a side, and bisect (in ratios) between 1 and it if the layout is not optimal there."""
    good, bad = 1.0, at(end)
    if bad.verdict == "optimal":
        return Side(end, None)
    while not bad.interrupted and max(bad.factor / good, good / bad.factor) > 1 + resolution:
        middle = float(f"{sqrt(good * bad.factor):.4g}")
        if middle in (good, bad.factor):
            break
        found = at(middle)
        if found.verdict == "optimal":
            good = middle
        else:
            bad = found
    return Side(good, bad)


def probe(instance: Instance, layout: Layout, assignment: Assignment, factor: float, search: Search) -> Probe:
    """Whether the layout is optimal for a changed instance."""
    result = search(instance, [(layout, assignment)])
    best = result.best.layout if result.best is not None else None
    if result.interrupted:
        return Probe(factor, "unproved", best, result.objective, None, interrupted=True)
    if best == layout:
        return Probe(factor, "optimal" if result.proved else "unproved", best, result.objective, result.objective)
    own = search(instance.model_copy(update={"layout": instance.layout.pinned_to(layout)}), [(layout, assignment)])
    own_fits = not (own.status == "infeasible" and own.proved)
    verdict: Verdict = "unproved"
    if not own_fits or (result.objective is not None and own.bound is not None and own.bound > result.objective):
        verdict = "not optimal"
    elif result.proved and own.objective is not None and own.objective == result.objective:
        verdict = "optimal"
    return Probe(factor, verdict, best, result.objective, own.objective, own_fits, own.interrupted)
