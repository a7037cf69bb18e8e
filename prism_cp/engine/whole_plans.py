"""Engine room: better plans by annealing over whole plans, boundaries and strategies together.

Where memory is tight and every rank holds several pieces, what the best boundaries are depends on which strategies they
force on whom, so both move at once: a layer changes its strategy, or goes to a piece nearby or far off. Memory beyond
the capacity costs time while the search is warm, and more and more as it cools.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from prism_cp.engine.plan_arrays import (
    ACTIVATION,
    CAPACITY,
    DEFERRED,
    FIRST_FORWARD,
    FIXED,
    FORWARD,
    HEAD,
    HIDEABLE,
    INPUT_GRAD,
    LAST_BUCKET,
    LIKE_A_KIND,
    OPTIMIZER_STEP,
    REDUCE,
    STATIC,
    TRANSIENT,
    WEIGHT_GRAD,
    plan_arrays,
)  # fmt: skip
from prism_cp.pipeline.kernels import longest_path_length, set_durations
from prism_cp.pipeline.program import get_program
from prism_cp.stage_problem import Assignment, StageProblem

Int64 = NDArray[np.int64]

HOTTEST, COOLEST = 0.003, 0.00001  # allowed worsening at the start and at the end, relative
EXCESS_FIRST, EXCESS_LAST = 1.0, 30.0  # price of memory beyond the capacity, in multiples of what saving it costs


class PlanAnnealer:
    """Looks for better whole plans of a stage problem."""

    def __init__(self, problem: StageProblem) -> None:
        self.problem, self.arrays = problem, plan_arrays(problem)
        self._program = get_program(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)

    def run(
        self, start: Assignment, trials: int, seed: int, price: float, warmth: float = HOTTEST
    ) -> tuple[Assignment | None, int]:
        """The best plan found that fits, and its pipeline time; `start` need not fit.

        Parameters
        ----------
        price
            Time units that saving one unit of memory costs, roughly.
        warmth
            Allowed worsening at the start, relative.
        """
        shape = (self.problem.num_pieces, self.problem.num_kinds, self.arrays.strategies.shape[2])
        counts = np.zeros(shape, np.int64)
        for piece, kinds in enumerate(start.counts):
            for kind, row in enumerate(kinds):
                counts[piece, kind, : len(row)] = row
        bounds = np.array(start.boundaries, np.int64)
        program = self._program
        value = _anneal_plans(
            bounds, counts, self.arrays, trials, seed, price, warmth, program.links, program.rank,
            np.int64(self.problem.p2p),
        )  # fmt: skip
        if value < 0:
            return None, -1
        widths = self.arrays.num_strategies.tolist()
        chosen = tuple(
            tuple(tuple(row[:width]) for row, width in zip(kinds, widths, strict=True)) for kinds in counts.tolist()
        )
        return Assignment(tuple(bounds.tolist()), chosen), int(value)


@njit(cache=True)
def _excess(rank, counts, arrays):  # type: ignore[no-untyped-def]
    """Memory of a rank beyond its capacity, in its fullest moment."""
    static, step = arrays.ranks[rank, FIXED], np.int64(0)
    kinds = counts.shape[1]
    stages = len(arrays.stages)
    for s in range(stages):
        if arrays.stages[s, 0] != rank:
            continue
        piece, table = arrays.stages[s, 1], arrays.stages[s, 2]
        static += arrays.ends[s, LIKE_A_KIND + STATIC]
        step += arrays.ends[s, LIKE_A_KIND + OPTIMIZER_STEP]
        for k in range(kinds):
            n = np.int64(0)
            for q in range(arrays.num_strategies[k]):
                n += counts[piece, k, q]
            static += n * arrays.kinds[table, k, STATIC]
            step += n * arrays.kinds[table, k, OPTIMIZER_STEP]
    for b in range(len(arrays.buffer_memory)):
        held = False
        for s in range(stages):
            if arrays.stages[s, 0] == rank and not held:
                if arrays.buffer_stages[b, s]:
                    held = True
                for k in range(kinds):
                    if arrays.buffer_kinds[b, k] and not held:
                        for q in range(arrays.num_strategies[k]):
                            held |= counts[arrays.stages[s, 1], k, q] > 0
        if held:
            static += arrays.buffer_memory[b]
    worst = static + step
    for row in range(len(arrays.row_rank)):
        if arrays.row_rank[row] != rank:
            continue
        used, transient = np.int64(0), np.int64(0)
        for s in range(stages):
            live, waiting = arrays.live[row, s], arrays.deferred[row, s]
            if live + waiting == 0:
                continue
            piece, table = arrays.stages[s, 1], arrays.stages[s, 2]
            used += live * arrays.ends[s, ACTIVATION] + waiting * arrays.ends[s, LIKE_A_KIND + DEFERRED]
            transient = max(transient, arrays.ends[s, TRANSIENT])
            for k in range(kinds):
                n = np.int64(0)
                for q in range(arrays.num_strategies[k]):
                    c = counts[piece, k, q]
                    if c:
                        n += c
                        used += live * c * arrays.strategies[table, k, q, ACTIVATION]
                        transient = max(transient, arrays.strategies[table, k, q, TRANSIENT])
                used += waiting * n * arrays.kinds[table, k, DEFERRED]
        worst = max(worst, static + used + transient)
    return max(np.int64(0), worst - arrays.ranks[rank, CAPACITY])


@njit(cache=True)
def _pipeline_time(counts, arrays, links, rank_of_op, p2p, durations, head, tail, end):  # type: ignore[no-untyped-def]
    """Simulated time of a plan."""
    stages = len(arrays.stages)
    tail[:] = 0
    for r in range(len(head)):
        head[r] = arrays.ranks[r, FIRST_FORWARD]
    for s in range(stages):
        rank, piece, table = arrays.stages[s]
        f, b, w = arrays.ends[s, FORWARD], arrays.ends[s, INPUT_GRAD], arrays.ends[s, WEIGHT_GRAD]
        hidden, reduce = arrays.ends[s, HIDEABLE], arrays.ends[s, LIKE_A_KIND + REDUCE]
        head[rank] += arrays.ends[s, LIKE_A_KIND + HEAD]
        for k in range(counts.shape[1]):
            for q in range(arrays.num_strategies[k]):
                c = counts[piece, k, q]
                if c:
                    cost = arrays.strategies[table, k, q]
                    f += c * cost[FORWARD]
                    b += c * cost[INPUT_GRAD]
                    w += c * cost[WEIGHT_GRAD]
                    hidden += c * cost[HIDEABLE]
                    head[rank] += c * arrays.kinds[table, k, HEAD]
                    reduce += c * arrays.kinds[table, k, REDUCE]
        tail[rank] += reduce - hidden
        set_durations(durations, stages, s, f, b, w)
    for r in range(len(tail)):
        tail[r] = max(tail[r], arrays.ranks[r, LAST_BUCKET])
    return longest_path_length(
        links[0], links[1], links[2], links[3], links[4], links[5], links[6], links[7], links[8], rank_of_op, durations,
        head, tail, p2p, end,
    )  # fmt: skip


@njit(cache=True)
def _random_layer(counts, piece, kind, num_strategies):  # type: ignore[no-untyped-def]
    """Strategy of a random layer of a kind on a piece; -1 when there is none."""
    total = np.int64(0)
    for q in range(num_strategies):
        total += counts[piece, kind, q]
    if total == 0:
        return -1
    at = np.random.randint(total)  # noqa: NPY002
    for q in range(num_strategies):
        at -= counts[piece, kind, q]
        if at < 0:
            return q
    return -1


@njit(cache=True)
def _change_strategy(counts, arrays):  # type: ignore[no-untyped-def]
    """Give a random layer another strategy; the piece, or -1."""
    piece = np.random.randint(counts.shape[0])  # noqa: NPY002
    kind = np.random.randint(counts.shape[1])  # noqa: NPY002
    width = arrays.num_strategies[kind]
    q = _random_layer(counts, piece, kind, width)
    other = np.random.randint(width)  # noqa: NPY002
    if q < 0 or other == q:
        return -1
    counts[piece, kind, q] -= 1
    counts[piece, kind, other] += 1
    return piece


@njit(cache=True)
def _move_boundaries(bounds, counts, arrays):  # type: ignore[no-untyped-def]
    """Shift a boundary or a block of neighbouring ones by one layer; every piece keeps its strategies as far as it can.

    Returns the first and the last piece that changed, or -1 twice.
    """
    inner = len(bounds) - 2
    if inner < 1:
        return -1, -1
    first = 1 + np.random.randint(inner)  # noqa: NPY002
    last = first
    if np.random.random() < 0.6:  # noqa: NPY002
        last = 1 + np.random.randint(inner)  # noqa: NPY002
        first, last = min(first, last), max(first, last)
    by = 1 if np.random.random() < 0.5 else -1  # noqa: NPY002
    for b in range(first, last + 1):
        bounds[b] += by
    for piece in (first - 1, last):
        size = bounds[piece + 1] - bounds[piece]
        if size < arrays.least[piece] or size > arrays.most[piece]:
            return -1, -1
    if bounds[first] < 0 or bounds[last] > arrays.prefix.shape[1] - 1:
        return -1, -1
    for piece in range(first - 1, last + 1):
        for k in range(counts.shape[1]):
            width = arrays.num_strategies[k]
            wanted = arrays.prefix[k, bounds[piece + 1]] - arrays.prefix[k, bounds[piece]]
            have = np.int64(0)
            for q in range(width):
                have += counts[piece, k, q]
            while have > wanted:
                counts[piece, k, _random_layer(counts, piece, k, width)] -= 1
                have -= 1
            while have < wanted:
                q = _random_layer(counts, piece, k, width)
                if q < 0 or np.random.random() < 0.3:  # noqa: NPY002
                    q = np.random.randint(width)  # noqa: NPY002
                counts[piece, k, q] += 1
                have += 1
    return first - 1, last


@njit(cache=True)
def _anneal_plans(bounds, counts, arrays, trials, seed, price, warmth, links, rank_of_op, p2p):  # type: ignore[no-untyped-def]
    """Anneal in place; `bounds` and `counts` become the best plan that fits. Its time, or -1."""
    np.random.seed(seed)  # noqa: NPY002
    ranks, stages = len(arrays.ranks), len(arrays.stages)
    durations, end = np.zeros(6 * stages, np.int64), np.empty(len(rank_of_op), np.int64)
    head, tail = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    excess, proposed = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    over = np.int64(0)
    for r in range(ranks):
        excess[r] = _excess(r, counts, arrays)
        over += excess[r]
    value = _pipeline_time(counts, arrays, links, rank_of_op, p2p, durations, head, tail, end)
    best = np.int64(-1)
    best_bounds, best_counts = bounds.copy(), counts.copy()
    if over == 0:
        best = value
    new_bounds, new_counts = bounds.copy(), counts.copy()
    touched = np.zeros(ranks, np.bool_)
    for trial in range(trials):
        share = trial / trials
        dear = price * EXCESS_FIRST * (EXCESS_LAST / EXCESS_FIRST) ** share
        warm = warmth * (COOLEST / warmth) ** share
        new_bounds[:] = bounds
        new_counts[:] = counts
        first, last = -1, -1
        other = -1
        kind = np.random.random()  # noqa: NPY002
        if kind < 0.35:
            first, last = _move_boundaries(new_bounds, new_counts, arrays)
            if first >= 0 and np.random.random() < 0.5:  # noqa: NPY002
                other = _change_strategy(new_counts, arrays)
        else:
            first = _change_strategy(new_counts, arrays)
            last = first
            if first >= 0 and kind > 0.65:
                other = _change_strategy(new_counts, arrays)
        if first < 0:
            continue
        touched[:] = False
        for s in range(stages):
            piece = arrays.stages[s, 1]
            if first <= piece <= last or piece == other:
                touched[arrays.stages[s, 0]] = True
        new_over = np.int64(0)
        for r in range(ranks):
            proposed[r] = _excess(r, new_counts, arrays) if touched[r] else excess[r]
            new_over += proposed[r]
        allowed = value + dear * over + value * warm * -np.log(max(1e-12, np.random.random()))  # noqa: NPY002
        if dear * new_over > allowed:
            continue
        new_value = _pipeline_time(new_counts, arrays, links, rank_of_op, p2p, durations, head, tail, end)
        if new_value + dear * new_over > allowed:
            continue
        bounds[:] = new_bounds
        counts[:] = new_counts
        excess[:] = proposed
        over, value = new_over, new_value
        if over == 0 and (best < 0 or value < best):
            best = value
            best_bounds[:] = bounds
            best_counts[:] = counts
    bounds[:] = best_bounds
    counts[:] = best_counts
    return best
