"""Engine room: bounds before any walk: items that no cut allows, prices on memory, the best weighted sum of paths."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prism_cp.engine.leaf import path_of_mixture
from prism_cp.engine.mixture import Weigher
from prism_cp.engine.plans import whole_plans
from prism_cp.engine.price_pool import PricePool
from prism_cp.engine.state import EngineState
from prism_cp.engine.tables import Tables

TIGHT = 0.3  # share of what is open that prices must close at once for memory to count as tight
BISECTION = 2_000  # steps of the bound that items alone give, as a share of the time
SEPARATIONS = 4  # paths learnt from mixtures
FIRST_PLAN_RUNS = 3  # of the annealing over whole plans


def bounded(state: EngineState, tables: Tables) -> tuple[Tables, bool]:
    """Raise the bound; the tables to go on with, and whether their items are to be refined.

    Items are refined, or get prices on memory, if memory is so tight that this closes a good part of what is open.
    Both are dear: where outlines alone come as far, they are not worth it.
    """
    _bisect(state, tables)
    _bound_by_weights(state, tables)
    if state.low > state.cap() or not all(items.memory is not None for items in tables.items):
        return tables, False
    if state.refinement.applies and _worth_refining(state, tables):
        whole_plans(state, FIRST_PLAN_RUNS)
        return tables, True
    before, gap, pool = state.low, state.cap() - state.low, state.pool
    priced = Tables(state.problem, state.chain, tables.items, priced=True)
    priced.add(tables.rows)
    priced = _settle_own_work(state, priced)
    if state.low <= state.cap() and not state.limits.reached():
        _bound_by_weights(state, priced)
    if state.low - before < TIGHT * gap:
        state.pool = pool
        return tables, False
    whole_plans(state, FIRST_PLAN_RUNS)
    return priced, False


def _worth_refining(state: EngineState, tables: Tables) -> bool:
    """Whether refined items that are settled along their groups' own work close a good part of what is open."""
    target = state.low + int(TIGHT * (state.cap() - state.low))
    refined = state.refinement.tables(tables.within(target), target, [], state.limits)
    if refined is None or not refined.refute(target):
        return False
    state.raise_bound(target + 1)
    return True


def _settle_own_work(state: EngineState, tables: Tables) -> Tables:
    """Tables of the items left after each group's own work was settled, along the path that sees most of it."""
    for g, items in enumerate(tables.items):
        if state.limits.reached():
            break
        x = tables.own_row(g)
        tables.settle(g, np.arange(len(items.choice)), x)
        tables.resum(x)
    tables = tables.within(state.cap())
    _bisect(state, tables)
    return tables


def _bisect(state: EngineState, tables: Tables) -> None:
    """Raise the bound to what the cuts refute one by one, each by the items that are left."""
    low, high = state.low, state.cap() + 1
    while high - low > max(1, high // BISECTION):
        middle = (low + high) // 2
        if tables.refute(middle):
            low = middle + 1
        else:
            high = middle
    state.raise_bound(low)


def _start(state: EngineState, tables: Tables, pool: PricePool) -> NDArray[np.float64] | None:
    """Weights on the paths known from the relaxation, whose paths and prices join what is known."""
    start = state.relaxed
    if start is None:
        return None
    tables.add(state.learn(list(start.weights)))
    for g, items in enumerate(tables.items):
        if pool.applies(g):
            pool.seed(g, start.prices[items.group.ranks[0]])
    return np.array([start.weights.get(path, 0.0) for path in state.known])


def _bound_by_weights(state: EngineState, tables: Tables) -> None:
    """Raise the bound to the best weighted sum of the paths known."""
    weigher = Weigher(tables, state.longest, state.limits)
    state.pool = weigher.pool
    weights = _start(state, tables, weigher.pool)
    for _ in range(SEPARATIONS):
        weighing = weigher.weigh((), state.cap(), weights, to_the_end=True)
        if weighing is None or weighing.refuted:
            state.raise_bound(state.cap() + 1)
            return
        if weighing.row is None:
            return
        weights = weighing.weights
        fresh = Tables(state.problem, state.chain, tables.items)
        fresh.add([weighing.row])
        state.raise_bound(-(-int(fresh.after[0, -1, 0]) // weighing.row.scale))
        if weighing.mixture is None:
            return
        value, path = path_of_mixture(state.problem, weighing.mixture)
        if path in state.known or value <= state.low or state.limits.reached():
            return
        tables.add(state.learn([path]))
