"""What people do by hand: the same number of layers everywhere and the least recomputation, the same everywhere."""

from __future__ import annotations

from prism_cp.cp.exact import evaluate, is_feasible
from prism_cp.stage_problem import Assignment, StageProblem


def even_boundaries(problem: StageProblem) -> tuple[int, ...] | None:
    """Pieces that differ by at most one layer where the limits allow it; the outer pieces get the smaller ones.

    The outer pieces carry embedding and head, so practitioners leave them the remainder. None when the limits of
    the pieces contradict each other.
    """
    sizes = list(problem.min_layers)
    if sum(sizes) > len(problem.layers):
        return None
    middle = (problem.num_pieces - 1) / 2
    for _ in range(len(problem.layers) - sum(sizes)):
        free = [p for p in range(problem.num_pieces) if sizes[p] < problem.max_layers[p]]
        if not free:
            return None
        smallest = min(free, key=lambda p: (sizes[p], abs(p - middle), p))
        sizes[smallest] += 1
    boundaries = [0]
    for size in sizes:
        boundaries.append(boundaries[-1] + size)
    return tuple(boundaries)


def uniform(problem: StageProblem) -> Assignment | None:
    """The even split with one strategy name for all layers: the fastest that fits, or None.

    Kinds without a strategy of that name use their own one with the least activation memory.
    """
    bounds = even_boundaries(problem)
    if bounds is None:
        return None
    prefix = problem.prefix_counts
    names = list(dict.fromkeys(s.name for kind in problem.tables[0] for s in kind.strategies))
    best: tuple[int, Assignment] | None = None
    for name in names:
        counts = []
        for piece in range(problem.num_pieces):
            rows = []
            for kind, costs in enumerate(problem.tables[0]):
                own = [s.name for s in costs.strategies]
                lightest = min(range(len(own)), key=lambda i, costs=costs: costs.strategies[i].activation)  # type: ignore[misc]
                row = [0] * len(own)
                row[own.index(name) if name in own else lightest] = (
                    prefix[kind][bounds[piece + 1]] - prefix[kind][bounds[piece]]
                )
                rows.append(tuple(row))
            counts.append(tuple(rows))
        candidate = Assignment(bounds, tuple(counts))
        if is_feasible(problem, candidate):
            time = evaluate(problem, candidate).pipeline_time
            if best is None or time < best[0]:
                best = (time, candidate)
    return None if best is None else best[1]
