"""Engine room: paths, weights on them and prices on memory to begin with, from the linear relaxation of the problem.

They only say where to look: every bound is computed anew from integer tables, so that what the relaxation leaves out
(unequal devices, hidden gradient reduction, buffers of single kinds) makes the start worse, never wrong.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from prism_cp.pipeline import PathCut
from prism_cp.relaxation import LayoutClass, Relaxation, RelaxationCosts, brackets_of
from prism_cp.stage_problem import StageProblem

Float64 = NDArray[np.float64]

SECOND, BYTE = 1e-6, 1e3  # of a time unit and a memory unit: only their sizes matter
ROUNDS, CLOSED = 150, 2e-4


@dataclass(frozen=True)
class RelaxedStart:
    """What the relaxation proposes.

    Attributes
    ----------
    weights : dict of PathCut to float
        Sum 1, of paths divided by their scales.
    prices : list of float64 arrays [vectors, rows], one per rank
        Time units per memory unit on the rank's live vectors.
    """

    weights: dict[PathCut, float]
    prices: list[Float64]


def relaxed_start(problem: StageProblem, rounds: int = ROUNDS) -> RelaxedStart | None:
    """Solve the relaxation.

    Parameters
    ----------
    problem
        Integer tables of one layout.
    rounds
        Most rounds of cuts; fewer than it takes leave weights and prices less exact.

    Returns
    -------
    RelaxedStart or None
        None where the relaxation has no solution, or none that weighs a path.
    """
    sizes = (problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)
    layout_class = LayoutClass(*sizes, may_be_empty=min(problem.min_layers[1:-1], default=0) == 0)
    relaxation = Relaxation(layout_class, _costs(problem))
    relaxation.duals(np.inf, rounds, CLOSED)
    if relaxation.solution is None:
        return None
    weights, memory = relaxation.solution
    total = float(weights.sum())
    if total <= 0:
        return None
    chosen = {cut: float(w) / total for cut, w in zip(layout_class.cuts, weights, strict=False) if w > 0}
    memory = np.maximum(memory, 0.0) / total * BYTE / SECOND
    prices = []
    for rank in range(problem.pp):
        rows = np.flatnonzero(layout_class.rank_of_row == rank)
        # a vector with the last stage has two rows, of which one is for the transient of the loss
        first = np.append(True, np.any(np.diff(_live(layout_class)[rows], axis=0) != 0, axis=1))
        prices.append(np.add.reduceat(memory[rows], np.flatnonzero(first), axis=0).T)
    return RelaxedStart(chosen, prices)


def _live(layout_class: LayoutClass) -> Float64:
    """What tells live vectors apart [rows, numbers]."""
    kept: Float64 = layout_class.memory[:, :, [0, 3]].reshape(len(layout_class.memory), -1)
    return kept


def _costs(problem: StageProblem) -> RelaxationCosts:
    """The problem as the relaxation takes it: one table, one capacity."""
    kinds = problem.tables[0]
    most = max(len(kind.strategies) for kind in kinds)
    padded = [[*kind.strategies, *[kind.strategies[0]] * (most - len(kind.strategies))] for kind in kinds]
    strategies = np.array(
        [[(s.forward, s.input_grad, s.weight_grad, s.activation, s.transient) for s in each] for each in padded],
        np.float64,
    )[None]
    strategies *= (SECOND, SECOND, SECOND, BYTE, BYTE)
    bracket, lows = brackets_of(strategies[..., 4].reshape(1, -1))
    of_kind = np.array([[(kind.static * BYTE, kind.deferred * BYTE, kind.head * SECOND) for kind in kinds]])
    ends = [problem.virtual_stages[0].ends, problem.virtual_stages[-1].ends]
    of_ends = np.array(
        [
            [
                (
                    e.forward * SECOND, e.input_grad * SECOND, e.weight_grad * SECOND, e.head * SECOND,
                    e.activation * BYTE, e.static * BYTE, e.deferred * BYTE,
                )
                for e in ends
            ]
        ]
    )  # fmt: skip
    room = min(rank.capacity - rank.fixed for rank in problem.ranks)
    every = frozenset(range(problem.num_kinds))
    common = sum(buffer.memory for buffer in problem.buffers if buffer.kinds >= every)
    layout = np.array([[0.0, problem.p2p * SECOND, room * BYTE, common * BYTE, ends[1].transient * BYTE]])
    layers = np.bincount(np.array(problem.layers, np.int64), minlength=problem.num_kinds).astype(np.float64)
    return RelaxationCosts(
        strategies, bracket.reshape(strategies.shape[:3]), lows, np.array([float(len(problem.layers))]), of_kind,
        of_ends, layout, layers,
    )  # fmt: skip
