"""Engine room: a plan by annealing over whole plans alone, without items or tables: quick, and it proves nothing."""

from __future__ import annotations

import itertools

import numpy as np

from prism_cp.cp.exact import evaluate, is_feasible
from prism_cp.engine.anneal import row_starts
from prism_cp.engine.limits import Limits
from prism_cp.engine.relaxed_start import relaxed_start
from prism_cp.engine.whole_plans import PlanAnnealer
from prism_cp.pipeline.program import get_program
from prism_cp.stage_problem import Assignment, StageProblem

SHARES, STARTS = 5, 4
PRICES = 1.0, 3.0  # of memory, in shares of what the relaxation says it is worth
ROUNDS = 5  # of the relaxation: its prices need not be exact
TRIALS, OPS = 60_000, 100_000_000  # of one annealing


def early_plan(problem: StageProblem, seed: int = 0, limits: Limits | None = None) -> tuple[Assignment, int] | None:
    """A plan that fits, and its pipeline time; it proves nothing.

    Annealing starts from several even boundaries, every layer with the strategy that keeps least, and with different
    prices on memory.

    Parameters
    ----------
    problem
        Integer tables of one layout, under any schedule.
    seed
        Of the annealing. The same seed gives the same plan unless `limits` cut in.
    limits
        Looked at between two annealings, each of at most `OPS` simulated operations.

    Returns
    -------
    tuple of Assignment and int, or None
        The pipeline time in time units. None: no plan was found, which does not mean that there is none.

    Raises
    ------
    AssertionError
        The plan found is not what the annealing took it for.
    """
    found = _anneal_all(problem, seed, limits or Limits(None, None, None))
    if found is not None and not (
        is_feasible(problem, found[0]) and evaluate(problem, found[0]).pipeline_time == found[1]
    ):
        raise AssertionError("the annealing made a plan that is not what it takes it for")
    return found


def _anneal_all(problem: StageProblem, seed: int, limits: Limits) -> tuple[Assignment, int] | None:
    """The best plan from all starts and with all prices until a limit is reached, not yet evaluated exactly."""
    best: tuple[Assignment, int] | None = None
    relaxed = None if limits.reached() else relaxed_start(problem, ROUNDS)
    if relaxed is None:
        return None
    price = float(max(prices.sum(axis=1).max() for prices in relaxed.prices))
    annealer = PlanAnnealer(problem)
    ops = len(get_program(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches).code)
    allowed = (_allowed(problem, bounds.tolist()) for bounds in row_starts(problem, SHARES)[:STARTS])
    for bounds, share in itertools.product(allowed, PRICES):
        if bounds is None or limits.reached():
            break
        plan, value = annealer.run(_leanest(problem, bounds), min(TRIALS, OPS // ops), seed, share * price)
        if plan is not None and (best is None or value < best[1]):
            best = plan, value
    return best


def _allowed(problem: StageProblem, bounds: list[int]) -> list[int] | None:
    """Boundaries near the given ones between which every piece may stand; None where there are none."""
    length = len(problem.layers)
    least, most = np.cumsum((0, *problem.min_layers)), np.cumsum((0, *problem.max_layers))
    first = np.maximum(least, length - (most[-1] - most))  # so that what comes later is neither too long nor too short
    last = np.minimum(most, length - (least[-1] - least))
    if (first > last).any():
        return None
    allowed = [0]
    for piece, (smallest, largest) in enumerate(zip(problem.min_layers, problem.max_layers, strict=True)):
        low = max(allowed[-1] + smallest, int(first[piece + 1]))
        high = min(allowed[-1] + largest, int(last[piece + 1]))
        allowed.append(min(max(bounds[piece + 1], low), high))
    return allowed


def _leanest(problem: StageProblem, bounds: list[int]) -> Assignment:
    """Every layer with the strategy that keeps least."""
    kept = [[strategy.activation for strategy in kind.strategies] for kind in problem.tables[0]]
    lean = [activations.index(min(activations)) for activations in kept]
    counts = []
    for first, last in itertools.pairwise(bounds):
        held = np.bincount(np.array(problem.layers[first:last], np.int64), minlength=problem.num_kinds).tolist()
        rows = zip(kept, held, lean, strict=True)
        counts.append(tuple(tuple(n if q == own else 0 for q in range(len(each))) for each, n, own in rows))
    return Assignment(tuple(bounds), tuple(counts))
