"""Engine room: plans to begin with, by annealing: over boundaries with greedy strategies, and over whole plans."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prism_cp.cp.exact import evaluate
from prism_cp.engine.anneal import Annealer, row_starts
from prism_cp.engine.leaf import assignment, boundaries, simulate_points
from prism_cp.engine.state import EngineState
from prism_cp.engine.tables import Tables
from prism_cp.pipeline import PathCut
from prism_cp.pipeline.program import get_program

Int64 = NDArray[np.int64]

TRIALS = 60_000  # of the annealing over boundaries, fewer for small problems
SHARES, SHORT, LONG_RUNS = 5, 20, 3  # starts: shares of rows, length of their first runs, how many go on
POLISH_SETS = 12
NEIGHBOURS = 300  # boundaries near the best ones whose longest paths are cuts from the start
POLISHED = 6  # boundaries whose strategies are searched after annealing
MOST_PLAN_TRIALS, PLAN_OPS = 400_000, 800_000_000  # of one annealing over whole plans
PLAN_PRICE = 1.0  # of memory, in shares of what the relaxation says it is worth
PLAN_WARMTHS = 0.0015, 0.003  # of one run after another


def first_plans(state: EngineState) -> None:
    """Plans from even boundaries with different shares of rows, every group with its fastest strategies."""
    for start in row_starts(state.problem, SHARES):
        if state.limits.reached():
            return
        items = []
        for group in state.chain.groups:
            local = [
                state.chain.local[piece, state.chain.numbers[start[piece], start[piece + 1]]]
                if state.chain.numbers[start[piece], start[piece + 1]] >= 0
                else -1
                for piece in group.pieces
            ]
            if min(local) < 0:
                break
            items.append(state.maker.sketch(group, state.longest, np.array([local], np.int64)))
            if not len(items[-1].choice):
                break
        else:
            tables = Tables(state.problem, state.chain, items)
            chosen = list(range(len(items)))
            plan = assignment(state.maker, tables, chosen, [int(each.best[0]) for each in items])
            if plan is not None:
                state.offer(plan)


def sketch_plans(state: EngineState) -> None:
    """Better plans by annealing over boundaries, every group with strategies found by greed.

    With several pieces a rank has many items; those of a bad limit would take longer to make than all the rest.
    """
    if state.best is None or not state.many_pieces or state.limits.reached():
        return
    items = [state.maker.sketch(group, state.cap()) for group in state.chain.groups]
    if all(len(each.choice) for each in items):
        _annealed(state, Annealer(Tables(state.problem, state.chain, items)))


def whole_plans(state: EngineState, runs: int) -> None:
    """Better plans by annealing over whole plans, from the best one known, memory priced as in the relaxation."""
    start, problem = state.relaxed, state.problem
    if start is None or state.best is None:
        return
    price = float(max(prices.sum(axis=1).max() for prices in start.prices))
    ops = len(get_program(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches).code)
    trials = min(MOST_PLAN_TRIALS, PLAN_OPS // ops)
    for _ in range(runs):
        if state.limits.reached():
            return
        warmth = PLAN_WARMTHS[state.plan_runs % len(PLAN_WARMTHS)]
        plan, _ = state.annealer.run(state.best, trials, state.seed + state.plan_runs, PLAN_PRICE * price, warmth)
        state.plan_runs += 1
        if plan is not None:
            state.offer(plan)


def anneal(state: EngineState, tables: Tables) -> None:
    """Plans by annealing over the items of some tables, which gain the longest paths of plans near the best ones."""
    if state.problem.num_pieces < 2:
        return
    annealer = Annealer(tables)
    kept, count, paths = _annealed(state, annealer)
    if count and state.problem.num_pieces > len(tables.items):
        for near in annealer.neighbours(kept[0], NEIGHBOURS, state.seed):
            points = [int(tables.items[g].best[n - tables.start[g]]) for g, n in enumerate(near)]
            paths.append(simulate_points(tables, near, points)[1])
    tables.add(state.learn(paths))
    decision = state.decision(tables)
    for row in kept[: min(count, POLISHED)]:
        chosen = annealer.items_of(row)
        assert chosen is not None
        decision.completer.complete(chosen.tolist(), state.cap(), state.limits, POLISH_SETS)
    state.learn(decision.learnt)


def _annealed(state: EngineState, annealer: Annealer) -> tuple[Int64, int, list[PathCut]]:
    """Boundaries kept by annealing, best first, how many are complete, and their longest paths."""
    tables = annealer.tables
    trials = min(TRIALS, 100 * state.problem.num_pieces * len(state.problem.layers))
    starts = row_starts(state.problem, SHARES)
    if state.best is not None:
        starts.insert(0, np.array(state.best.boundaries, np.int64))
    if len(starts) > 1:
        tried = [annealer.run(start, trials // SHORT, state.seed) for start in starts]
        order = sorted(range(len(tried)), key=lambda i: (tried[i][1] == 0, tried[i][2], i))[:LONG_RUNS]
        starts = [tried[i][0][0] if tried[i][1] else starts[i] for i in order]
    runs = [annealer.run(start, trials, state.seed) for start in starts]
    kept, count, _ = min(runs, key=lambda run: (run[1] == 0, run[2]))
    paths = []
    for row in kept[:count]:
        chosen = annealer.items_of(row)
        assert chosen is not None, "annealing kept boundaries that do not fit"
        points = [int(tables.items[g].best[n - tables.start[g]]) for g, n in enumerate(chosen)]
        plan = assignment(state.maker, tables, chosen.tolist(), points)
        if plan is None:
            continue
        assert plan.boundaries == boundaries(tables, chosen.tolist())
        state.offer(plan)
        paths.append(evaluate(state.problem, plan).critical_path)
    return kept, count, paths
