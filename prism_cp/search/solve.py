"""Bound and prune over all layouts: the main job.

1. Bound every cell by its work; expand cells in order of that bound, layout by layout, dropping what cannot beat the
   incumbent or cannot fit (`candidates`).
2. One piece per rank (GPipe, 1F1B): build the exact stage problem of what remains, bound it by the partition walk, and
   simulate the plan found there: plans become incumbents early, and most layouts end here.
3. Other schedules: bound by relaxations of whole classes of layouts, which memory enters, too; what they leave is
   postponed, except that the most promising layouts are probed for plans at once.
4. What is postponed or still contested is decided one by one, best bound first, each with "better than the incumbent or
   nothing" (`contest`).

A layout ends as pruned, proved no better, solved, infeasible, or open when the search was stopped. The union is the
proof: the result is `proved` exactly when the integer bound over all layouts equals the incumbent.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from prism_cp.errors import InstanceError
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.integer_tables import CostModel
from prism_cp.layouts.admissible import AdmissibleLayouts
from prism_cp.result import SearchResult
from prism_cp.search.candidates import BOUND_CODES, Batch, Candidates
from prism_cp.search.contest import Contest
from prism_cp.search.options import Progress, SearchOptions
from prism_cp.search.probe import probe
from prism_cp.search.state import SearchState
from prism_cp.stage_problem import Assignment

FEW_ROWS = 4  # so few candidates are opened without sharper bounds


def solve_instance(
    instance: Instance,
    options: SearchOptions = SearchOptions(),  # noqa: B008 - immutable
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
    cost_model: CostModel | None = None,
    known: Sequence[tuple[Layout, Assignment]] = (),
) -> SearchResult:
    """Find the layout and plan of least step time, and prove it.

    Parameters
    ----------
    progress : callable, optional
        Called with a `Progress` whenever something changes, at most a few times a second.
    stop : threading.Event, optional
        Set it (from a signal handler, say) to get the incumbent with its true gap.
    known : sequence of (Layout, Assignment), optional
        Plans to start from, e.g. one of the same instance with less memory; those that do not fit this instance are
        passed over.

    Raises
    ------
    InstanceError
        No layout is admissible at all.
    """
    started = time.monotonic()
    parts = _parts(instance)
    costs = cost_model or CostModel(instance)
    total = sum(part.num_layouts for part in parts)
    state = SearchState(instance, options, total, started, progress, stop)
    searches = [Candidates(part, costs) for part in parts]
    for layout, assignment in known:
        state.take_known(layout, assignment, costs)
    for number, candidates in enumerate(searches):
        later = [each.bound_of_rest(0) for each in searches[number + 1 :]]
        _expand(candidates, state, min((bound for bound in later if bound is not None), default=None))
    Contest(state, costs).run()
    return state.result()


def _parts(instance: Instance) -> list[AdmissibleLayouts]:
    """The admissible layouts of the schedules that have bounds of their own, then those of all others.

    Raises
    ------
    InstanceError
        Neither part has a layout.
    """
    names = instance.layout.schedules
    groups = [tuple(name for name in names if (name in BOUND_CODES) == own) for own in (True, False)]
    parts = []
    for group in groups:
        space = instance.layout.model_copy(update={"schedule": group})
        if group and len(group) < len(names):
            with contextlib.suppress(InstanceError):
                parts.append(AdmissibleLayouts(instance.model_copy(update={"layout": space})))
    return parts or [AdmissibleLayouts(instance)]


def _expand(candidates: Candidates, state: SearchState, later: int | None) -> None:
    """Expand cells in bound order until the bound of the rest excludes it; open what survives.

    Parameters
    ----------
    later
        Bound of the layouts that other candidates hold, time units.
    """
    position, seen = 0, 0
    probed: set[Layout] = set()
    for _, columns, following in candidates.batches():
        rest = candidates.bound_of_rest(position)
        if state.stopped() or (rest is not None and state.excludes(rest)):
            break
        state.unexpanded_bound = min((bound for bound in (rest, later) if bound is not None), default=None)
        batch = Batch(candidates, columns)
        seen += batch.size
        state.seen(batch.size)
        _open_batch(batch, candidates, state)
        if position == 0 and state.target is None:  # perhaps nothing fits: most cells tell that without being expanded
            dropped = candidates.drop_hopeless(following)
            seen += dropped
            state.seen(dropped)
            state.mark_infeasible(dropped)
        probe(state, candidates.cost_model, probed)
        position = following
    state.unexpanded_bound = later
    state.leave_rest(candidates.bound_of_rest(position), candidates.admissible.num_layouts - seen)


def _open_batch(batch: Batch, candidates: Candidates, state: SearchState) -> None:
    """Filter one batch and quick-solve what the bounds leave, best bound first."""
    bounds = np.floor(batch.bounds_s / candidates.unit_s).astype(np.int64)
    others = batch.others()
    _postpone(batch, np.flatnonzero(others), bounds, state)
    rows = np.flatnonzero(~others)
    tightened = False
    while len(rows):
        alive = ~state.excluded(bounds[rows])
        state.prune(int((~alive).sum()))
        rows = rows[alive]
        target = state.target
        fits = batch.possible(rows, None if target is None else target + 1, state.stopped)
        if target is None:
            state.mark_infeasible(int((~fits).sum()))
        else:
            state.prune(int((~fits).sum()))
        rows = rows[fits]
        if not tightened and len(rows) > FEW_ROWS:
            bounds[rows] = np.maximum(bounds[rows], np.floor(batch.tighten(rows, state.stopped) / candidates.unit_s))
            tightened = True
        rows = rows[np.argsort(bounds[rows], kind="stable")]
        for count, row in enumerate(rows):
            if state.stopped():
                state.leave_open([int(bounds[r]) for r in rows[count:]])
                return
            state.open_layout(batch, int(row), int(bounds[row]))
            if state.target != target:  # an improved incumbent may exclude more
                rows = rows[count + 1 :]
                break
        else:
            return


def _postpone(batch: Batch, rows: np.ndarray, bounds: np.ndarray, state: SearchState) -> None:
    """Bound layouts of other schedules by their relaxations; what is left waits."""
    alive = ~state.excluded(bounds[rows])
    state.prune(int((~alive).sum()))
    rows = rows[alive]
    if state.stopped():
        state.leave_open(bounds[rows].tolist())
    elif len(rows):
        state.report()
        state.count_left_out(*batch.postpone(rows, state.waiting, state.target_s, state.stopped))
