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

import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.integer_tables import CostModel
from prism_cp.layouts.admissible import AdmissibleLayouts
from prism_cp.result import SearchResult
from prism_cp.search.candidates import Batch, Candidates
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
    admissible = AdmissibleLayouts(instance)
    costs = cost_model or CostModel(instance)
    candidates = Candidates(admissible, costs)
    state = SearchState(instance, options, admissible.num_layouts, started, progress, stop)
    state.unexpanded_bound = candidates.bound_of_rest(0)
    for layout, assignment in known:
        state.take_known(layout, assignment, costs)
    _expand(candidates, state)
    Contest(state, costs).run()
    return state.result()


def _expand(candidates: Candidates, state: SearchState) -> None:
    """Expand cells in bound order until the bound of the rest excludes it; open what survives."""
    position = 0
    probed: set[Layout] = set()
    for _, columns, following in candidates.batches():
        rest = candidates.bound_of_rest(position)
        if state.stopped() or (rest is not None and state.excludes(rest)):
            break
        state.unexpanded_bound = rest
        batch = Batch(candidates, columns)
        state.seen(batch.size)
        _open_batch(batch, candidates, state)
        probe(state, candidates.cost_model, probed)
        if position == 0 and state.target is None:  # perhaps nothing fits: most cells tell that without being expanded
            dropped = candidates.drop_hopeless(following)
            state.seen(dropped)
            state.mark_infeasible(dropped)
        position = following
    state.unexpanded_bound = None
    state.leave_rest(candidates.bound_of_rest(position))


def _open_batch(batch: Batch, candidates: Candidates, state: SearchState) -> None:
    """Filter one batch and quick-solve what the bounds leave, best bound first."""
    bounds = np.floor(batch.bounds_s / candidates.unit_s).astype(np.int64)
    others = batch.others()
    _relax(batch, np.flatnonzero(others), bounds, candidates, state)
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


def _relax(batch: Batch, rows: np.ndarray, bounds: np.ndarray, candidates: Candidates, state: SearchState) -> None:
    """Bound layouts of other schedules by their relaxations and postpone what is left."""
    if not len(rows):
        return
    if state.stopped():
        state.leave_open(bounds[rows].tolist())
        return
    target = state.target
    alive = ~state.excluded(bounds[rows])
    state.prune(int((~alive).sum()))
    rows = rows[alive]
    if not len(rows):
        return
    raised = batch.relax(rows, None if target is None else (target + 1) * candidates.unit_s, state.stopped)
    fits = np.isfinite(raised)
    if target is None:
        state.mark_infeasible(int((~fits).sum()))
    else:
        state.prune(int((~fits).sum()))
    rows, raised = rows[fits], np.floor(raised[fits] / candidates.unit_s).astype(np.int64)
    for row, bound in zip(rows.tolist(), raised.tolist(), strict=True):
        if state.excludes(bound):
            state.prune(1)
        else:
            state.postpone(bound, batch.layout(row))
