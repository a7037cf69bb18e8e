"""Engine room: what is open between the bound and the best plan, closed level by level."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from prism_cp.engine.complete import HAND_ON_LIMIT
from prism_cp.engine.decide import Decision
from prism_cp.engine.divide import Division
from prism_cp.engine.plans import whole_plans
from prism_cp.engine.root import bounded
from prism_cp.engine.state import EngineState
from prism_cp.engine.tables import Row, Tables, row_of
from prism_cp.pipeline import PathCut

LEVELS = (0.03, 0.007)  # gaps proved one after another
SHARES_OF_GAP = (0.3, 0.6, 0.85)  # the same for outlined items, as shares of what is open
REFINED_SHARES = (0.3, 0.3, 0.3, 0.4, 0.5, 0.85)  # and for refined ones
LAST_HAND_ON_LIMIT = 32.0  # deterministic time of the stage model per complete choice of outlined items, at the end
SMALL_GAP = 0.005  # of the cap: closed at once where items are refined
REFINED_ROWS = 40  # paths that the tables of refined items begin with: those that say most of everything left


def close(state: EngineState, tables: Tables) -> bool:
    """Levels, then the cap itself; whether nothing is left within the cap."""
    outlined, refine = any(items.outline is not None for items in tables.items), False
    if outlined:
        tables, refine = bounded(state, tables)
    hand_on, levels = LAST_HAND_ON_LIMIT, list(LEVELS)
    if outlined:
        levels = list(REFINED_SHARES if refine else SHARES_OF_GAP)
    while state.low <= state.cap() and not state.limits.reached():
        low, cap = state.low, state.cap()
        if refine and cap - low < SMALL_GAP * cap:
            levels = []
        if levels:
            level = levels.pop(0)
            target = low + int((cap - low) * level) if outlined else int(cap * (1 - level))
        else:
            target = cap
        if target < low:
            continue
        near = tables.within(target)
        decision = (_refined(state, near, target) if refine else None) or state.decision(near)
        refined_hand_on = HAND_ON_LIMIT if levels else hand_on
        verdict = decision.run(target, state.limits, lambda: state.best_time, refined_hand_on=refined_hand_on)
        _take_in(state, tables, decision)
        if verdict is False:
            state.raise_bound(target + 1)
        state.raise_bound(decision.bound)
        if refine and levels:
            whole_plans(state, 1)
        if not levels and target >= state.cap():
            if not outlined:
                break
            hand_on *= 4  # some choices are undecided
    return state.low > state.cap()


def _take_in(state: EngineState, tables: Tables, decision: Decision | Division) -> None:
    """Cuts that a walk has learnt join what is known, and tables other than its own."""
    rows = state.learn(decision.learnt)
    if decision.tables is not tables and not state.limits.reached():  # many cuts of many items take their time
        tables.add(rows + decision.sums)


def _refined(state: EngineState, tables: Tables, target: int) -> Division | None:
    """A search over refined items; None where there are too many of them."""
    paths, rows = _strongest(state, tables)
    refined = state.refinement.tables(tables, target, rows, state.limits)
    return None if refined is None else state.division(refined, paths)


def _strongest(state: EngineState, tables: Tables) -> tuple[Sequence[PathCut], Sequence[Row]]:
    """The paths that say most of everything that is left, also as rows."""
    names = {_name(row_of(path, state.problem.p2p)): path for path in state.known}
    value = tables.after[0, -1, : len(tables.rows)] / tables.scales
    found: dict[PathCut, Row] = {}
    for x in np.argsort(-value, kind="stable").tolist():
        path = names.get(_name(tables.rows[x]))
        if path is not None and len(found) < REFINED_ROWS:
            found[path] = tables.rows[x]
    return list(found), list(found.values())


def _name(row: Row) -> tuple[bytes, bytes, bytes, int, int]:
    return row.times.tobytes(), row.head.tobytes(), row.tail.tobytes(), row.constant, row.scale
