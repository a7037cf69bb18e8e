"""Depth-first search over stage boundaries: proves or improves what the partition walk leaves open.

Given the boundaries, every rank's best strategies are its own affair: the forward time does not depend on the strategy
and every path counts a rank's backward with a non-negative coefficient, so the fastest strategies that fit are best.
What remains is the choice of boundaries. Every path of the event graph is a cut that is a sum over ranks; with the
least value of the later ranks tabulated per boundary, a partial choice is dropped as soon as a cut exceeds the target.
A complete choice is simulated: it meets the target, or its critical path becomes a new cut.

A refutation counts only when the search is exhausted with integer tables. Where an item's time is not attained by a
plan (thinned fronts) or the exposed reduction of the real plan is longer than its best case, the target is left
undecided, never refuted.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit

from prism_cp.partition.bound import applicable, plan_of, simulated_time
from prism_cp.partition.items import NOT_POSSIBLE, ItemTables
from prism_cp.partition.walk import Walk
from prism_cp.pipeline import PathCut, simulate, static_cuts
from prism_cp.stage_problem import Assignment, StageProblem

EXHAUSTED, LEAF, NODE_LIMIT = 0, 1, 2
NODES_PER_SLICE = 400_000
LONGEST_WINDOW = 6


@dataclass(frozen=True)
class BoundaryResult:
    """Proven bound on the pipeline time of every plan within the upper bound, and the best plan found."""

    lower_bound: int
    assignment: Assignment | None
    pipeline_time: int | None
    nodes: int
    cuts: tuple[PathCut, ...]


def window_cuts(problem: StageProblem) -> list[PathCut]:
    """Paths of 1F1B that go round a window of neighbouring ranks in the steady phase.

    Down the pipeline and back, round ranks i..j as often as the micro-batches allow (each round advances j - i + 1 of
    them and pays their transfers), the rest on rank i alone, down the rest of the pipeline and back once more. With
    transfer times a run of equally loaded ranks is slower than any of them alone, which only such paths see.
    """
    if problem.schedule != "1f1b" or not problem.p2p:
        return []
    p, m = problem.pp, problem.num_microbatches
    cuts = []
    for i in range(p):
        rounds_on_i = m - 2 - (p - 1 - i)
        for length in range(2, min(LONGEST_WINDOW, p - i, rounds_on_i) + 1):
            rounds, rest = divmod(rounds_on_i, length)
            work = [1 + (rank >= i) for rank in range(p)]
            work[i] += rest
            for rank in range(i, i + length):
                work[rank] += rounds
            p2p = 2 * (p - 1) + 2 * (p - 1 - i) + 2 * rounds * (length - 1)
            end = tuple(int(rank == 0) for rank in range(p))
            cuts.append(PathCut(tuple(work), tuple(work), tuple(work), end, end, p2p))
    return cuts


class BoundarySearch:
    """Search over the boundaries of one stage problem.

    Raises
    ------
    ValueError
        The walk over ranks does not describe the problem, or a forward time depends on the strategy.
    """

    def __init__(self, problem: StageProblem, upper_bound: int, known: Sequence[PathCut] = ()) -> None:
        if not searchable(problem):
            raise ValueError("boundary search needs one piece per rank and forward times that no strategy changes")
        self.problem = problem
        self.tables = ItemTables(problem, upper_bound)
        self.tables.make_exact(Walk(self.tables).alive(upper_bound))
        # what cannot lie on a plan within the upper bound is out for good
        dead = ~Walk(self.tables).alive(upper_bound)
        self.tables.items[dead] = NOT_POSSIBLE
        self.cuts: dict[PathCut, None] = {}
        self.nodes = 0
        self._forward, self._head, self._tail = _item_parts(self.tables)
        self._ends = np.array([stage.ends.forward for stage in problem.virtual_stages], np.int64)
        possible = self.tables.items < NOT_POSSIBLE
        length = len(problem.layers)
        self._first = np.where(possible.any(axis=2), possible.argmax(axis=2), length + 1)
        self._last = length - possible[:, :, ::-1].argmax(axis=2)
        self._rows = np.zeros((0, problem.pp, 4), np.int64)
        self._after = np.zeros((0, problem.pp + 1, length + 1), np.int64)
        self._learn([*static_cuts(*_key(problem)), *window_cuts(problem), *known])

    def decide(
        self, target: int, node_limit: int, deadline: float | None, stop: threading.Event | None
    ) -> tuple[bool | None, Assignment | None, int | None]:
        """Whether a plan with pipeline time at most `target` exists: True with the plan, False, or None (undecided).

        A plan above the target that was met on the way to "undecided" is returned as well.
        """
        undecided: Assignment | None = None
        undecided_time: int | None = None
        chosen = np.zeros(self.problem.pp + 1, np.int64)
        restart, resume = True, False
        last_nodes = self.nodes + node_limit
        pointer = np.full(self.problem.pp, -1, np.int64)
        while True:
            if restart:  # from the root, with the new cut first
                restart, resume = False, False
                pointer[:] = -1
            state, used = _search(
                target, self._rows, self._after, self.tables.items, self._forward, self._ends, self._head, self._tail,
                chosen, pointer, resume, NODES_PER_SLICE,
            )  # fmt: skip
            self.nodes += int(used)
            resume = True
            if state == EXHAUSTED:
                return (None if undecided is not None else False), undecided, undecided_time
            if state == LEAF:
                bounds = tuple(int(x) for x in chosen)
                verdict, assignment, value = self._leaf(bounds, target)
                if verdict:
                    return True, assignment, value
                if verdict is None and (undecided_time is None or (value is not None and value < undecided_time)):
                    undecided, undecided_time = assignment, value
                    if assignment is None:
                        return None, None, None
                restart = verdict is False
            elif self.nodes >= last_nodes or (deadline is not None and time.monotonic() > deadline):
                return None, undecided, undecided_time
            if stop is not None and stop.is_set():
                return None, undecided, undecided_time

    def _leaf(self, bounds: tuple[int, ...], target: int) -> tuple[bool | None, Assignment | None, int | None]:
        """Simulate one complete choice: meets the target, is refuted (and leaves a cut), or neither."""
        problem = self.problem
        ranks = range(problem.pp)
        forward = [int(self._forward[r, bounds[r + 1]] - self._forward[r, bounds[r]]) for r in ranks]
        forward = [f + problem.virtual_stages[r].ends.forward for r, f in zip(ranks, forward, strict=True)]
        cost = [int(self.tables.items[r, bounds[r], bounds[r + 1]]) for r in ranks]
        backward = [c - f for c, f in zip(cost, forward, strict=True)]
        head = [int(self._head[r, bounds[r], bounds[r + 1]]) for r in ranks]
        tail = [int(self._tail[r, bounds[r], bounds[r + 1]]) for r in ranks]
        best_case = simulate(*_key(problem), forward, backward, [0] * problem.pp, head, tail, problem.p2p)
        if best_case.pipeline_time > target:
            if best_case.critical_path in self.cuts:
                raise AssertionError("the search passed a path it knows")
            self._learn([best_case.critical_path])
            return False, None, None
        assignment = plan_of(self.tables, bounds)
        if assignment is None:
            return None, None, None
        value = simulated_time(problem, assignment)
        return (True if value <= target else None), assignment, value

    def _learn(self, cuts: Sequence[PathCut]) -> None:
        """Tabulate new cuts: coefficients, and least values over the later ranks; the most telling ones come first."""
        cuts = [cut for cut in cuts if cut not in self.cuts]
        if not cuts:
            return
        self.cuts.update(dict.fromkeys(cuts))
        rows = np.zeros((len(cuts), self.problem.pp, 4), np.int64)
        const = np.zeros(len(cuts), np.int64)
        for x, cut in enumerate(cuts):
            # whole backwards: the two parts go together; where they do not, the smaller is a valid bound
            rows[x, :, 0], rows[x, :, 1] = cut.forward, np.minimum(cut.input_grad, cut.weight_grad)
            rows[x, :, 2], rows[x, :, 3] = cut.head, cut.tail
            const[x] = cut.p2p * self.problem.p2p
        after = _suffix_tables(
            rows, const, self.tables.items, self._forward, self._ends, self._head, self._tail, self._first, self._last
        )
        order = np.argsort(-after[:, 0, 0], kind="stable")
        self._rows = np.concatenate([rows[order], self._rows])
        self._after = np.concatenate([after[order], self._after])


def searchable(problem: StageProblem) -> bool:
    """Whether boundaries are all there is to choose."""
    return applicable(problem) and all(
        len({strategy.forward for strategy in kind.strategies}) == 1 for table in problem.tables for kind in table
    )


def search_boundaries(
    problem: StageProblem,
    lower_bound: int,
    upper_bound: int,
    *,
    node_limit: int = 4_000_000,
    deadline: float | None = None,
    stop: threading.Event | None = None,
    known: Sequence[PathCut] = (),
) -> BoundaryResult:
    """Close the gap between a proven lower bound and plans within `upper_bound`.

    Returns a lower bound of ``upper_bound + 1`` when no plan is within it. Targets are bisected; every refuted target
    raises the bound, every plan lowers the upper end.
    """
    search = BoundarySearch(problem, upper_bound, known)
    best: Assignment | None = None
    best_time: int | None = None
    low, high = lower_bound, upper_bound
    while low <= high:
        target = low + (high - low) // 4 if best_time is None or high - low > 8 else high
        verdict, assignment, value = search.decide(target, node_limit - search.nodes, deadline, stop)
        if value is not None and value <= upper_bound and (best_time is None or value < best_time):
            best, best_time = assignment, value
        if verdict is None:
            break
        if verdict:
            assert value is not None
            high = value - 1
        else:
            low = target + 1
    return BoundaryResult(low, best, best_time, search.nodes, tuple(search.cuts))


def _key(problem: StageProblem) -> tuple[str, int, int, int]:
    return problem.schedule, problem.pp, problem.vpp, problem.num_microbatches


def _item_parts(tables: ItemTables) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Forward prefix sums [rank, x], and per item the head and the least tail [rank, start, stop]."""
    arrays, p = tables.arrays, tables.problem.pp
    prefix = arrays.prefix
    forward = arrays.forward_least @ prefix
    head_sum, reduce_sum = arrays.head @ prefix, arrays.reduce @ prefix
    head = np.zeros_like(tables.items)
    tail = np.zeros_like(tables.items)
    for r in range(p):
        own_head = arrays.rank[r, 2] + arrays.end[r, 6]
        head[r] = head_sum[r][None, :] - head_sum[r][:, None] + own_head
        reduce = reduce_sum[r][None, :] - reduce_sum[r][:, None] + arrays.end[r, 7] - arrays.end[r, 8]
        # A path that ends in the tail counts the rank's time at least once, so (time - hideable) and time may take
        # their minima apart: what a tail saves beyond the fastest strategies is paid for in time.
        possible = (tables.items[r] < NOT_POSSIBLE) & (tables.exposed[r] < NOT_POSSIBLE)
        hidden = np.where(possible, tables.items[r] - tables.exposed[r], 0)
        tail[r] = np.maximum(arrays.rank[r, 3], reduce - hidden)
    return forward, head, tail


@njit(cache=True)
def _suffix_tables(rows, const, items, forward, ends, head, tail, first, last):  # type: ignore[no-untyped-def]
    """``after[cut, rank, x]``: least value of the cut over ranks rank.. on the layers from x on, constant included."""
    impossible = np.int64(1) << 61
    cuts, p, _ = rows.shape
    length = items.shape[1] - 1
    after = np.full((cuts, p + 1, length + 1), impossible, np.int64)
    for x in range(cuts):
        after[x, p, length] = const[x]
    for r in range(p - 1, -1, -1):
        for start in range(length + 1):
            for stop in range(first[r, start], last[r, start] + 1):
                c = items[r, start, stop]
                if c >= impossible:
                    continue
                f = forward[r, stop] - forward[r, start] + ends[r]
                for x in range(cuts):
                    rest = after[x, r + 1, stop]
                    if rest < impossible:
                        value = rows[x, r, 0] * f + rows[x, r, 1] * (c - f)
                        value += rows[x, r, 2] * head[r, start, stop] + rows[x, r, 3] * tail[r, start, stop]
                        after[x, r, start] = min(after[x, r, start], value + rest)
    return after


@njit(cache=True)
def _search(target, rows, after, items, forward, ends, head, tail, chosen, pointer, resume, most_nodes):  # type: ignore[no-untyped-def]
    """Walk the tree of boundaries from where `pointer` stands; returns (state, nodes)."""
    impossible = np.int64(1) << 61
    cuts, p, _ = rows.shape
    length = items.shape[1] - 1
    prefix = np.zeros((p + 1, cuts), np.int64)
    depth = 0
    if resume:  # rebuild the prefix sums of the path the last call stopped at
        depth = p - 1
        for r in range(p - 1):
            start, stop = chosen[r], chosen[r + 1]
            if pointer[r] < 0:
                depth = r
                break
            f = forward[r, stop] - forward[r, start] + ends[r]
            c = items[r, start, stop]
            for x in range(cuts):
                value = rows[x, r, 0] * f + rows[x, r, 1] * (c - f)
                value += rows[x, r, 2] * head[r, start, stop] + rows[x, r, 3] * tail[r, start, stop]
                prefix[r + 1, x] = prefix[r, x] + value
    nodes = 0
    while depth >= 0:
        if nodes >= most_nodes:
            return NODE_LIMIT, nodes
        start = chosen[depth]
        stop = max(pointer[depth] + 1, start)
        if depth == p - 1:
            stop = max(stop, length)
        found = False
        while stop <= length:
            c = items[depth, start, stop]
            if c < impossible:
                nodes += 1
                f = forward[depth, stop] - forward[depth, start] + ends[depth]
                h, t = head[depth, start, stop], tail[depth, start, stop]
                fits = True
                for x in range(cuts):
                    value = prefix[depth, x] + rows[x, depth, 0] * f + rows[x, depth, 1] * (c - f)
                    value += rows[x, depth, 2] * h + rows[x, depth, 3] * t
                    prefix[depth + 1, x] = value
                    if value + after[x, depth + 1, stop] > target:
                        fits = False
                        break
                if fits:
                    found = True
                    break
            stop += 1
        pointer[depth] = stop
        if not found:
            pointer[depth] = -1
            depth -= 1
            continue
        chosen[depth + 1] = stop
        if depth == p - 1:
            return LEAF, nodes
        depth += 1
        pointer[depth] = -1
    return EXHAUSTED, nodes


assert NOT_POSSIBLE == 1 << 61
