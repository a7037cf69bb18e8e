"""Engine room: the memory rows of groups with one rank, one table and one stage per piece."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from prism_cp.engine.chain import Chain, Group
from prism_cp.engine.choices import ACTIVATION, INPUT_GRAD, TRANSIENT
from prism_cp.engine.knapsack import ItemPoints
from prism_cp.engine.pricing import MemoryRows
from prism_cp.relaxation import brackets_of
from prism_cp.stage_problem import KindCosts

Int64 = NDArray[np.int64]

MOST_BRACKETS = 6  # of transients


def memory_rows(
    kinds: tuple[KindCosts, ...], rows: Int64, alive: NDArray[np.bool_], ends: Int64, stage: Int64
) -> MemoryRows:
    """Memory rows of a group.

    Parameters
    ----------
    kinds
        What a layer of every class of strategies costs on the group's stages.
    rows, alive : arrays [rows, stages]
        Live micro-batches; live or with deferred weight gradients.
    ends : int64 array [rows]
        Largest transient of the ends that are alive.
    stage : int64 array [pieces]
        Position of a piece's stage.
    """
    most = max(len(kind.strategies) for kind in kinds)
    padded = [[*kind.strategies, *[kind.strategies[0]] * (most - len(kind.strategies))] for kind in kinds]
    times = np.array([[s.input_grad for s in each] for each in padded], np.float64)
    transient = np.array([[s.transient for s in each] for each in padded], np.float64)
    bracket, lows = brackets_of(transient.reshape(1, -1), MOST_BRACKETS)
    activation = np.array([[s.activation for s in each] for each in padded], np.float64)
    always = np.array([bool(alive[:, s].all()) for s in stage])
    slower = times - times.min(axis=1, keepdims=True)
    return MemoryRows(
        rows[:, stage].astype(np.float64), ends.astype(np.float64), always, activation, slower,
        bracket.reshape(transient.shape), lows[np.isfinite(lows)], stage,
    )  # fmt: skip


def layers_of(chain: Chain, group: Group, choice: Int64) -> NDArray[np.float64]:
    """Layers [items, pieces, classes of strategies] of compositions [items, pieces]."""
    layers = [chain.parts[chain.pieces[piece][choice[:, k]]] for k, piece in enumerate(group.pieces)]
    return np.stack(layers, axis=1).astype(np.float64)


def item_points(
    values: Int64, offset: Int64, rows: Int64, alive: NDArray[np.bool_], ends: Int64, stage: Int64
) -> ItemPoints:
    """Stacked points of all compositions of a group's pieces.

    Parameters
    ----------
    values : int64 array [points, 1, COLUMNS]
    offset : int64 array [pieces, compositions, 2]
        First point of a composition, and one after its last.
    """
    slower = values[:, 0, INPUT_GRAD].copy()
    for start, stop in offset.reshape(-1, 2).tolist():
        if stop > start:
            slower[start:stop] -= slower[start:stop].min()
    return ItemPoints(
        values[:, 0, ACTIVATION].copy(), values[:, 0, TRANSIENT].copy(), slower, offset, rows[:, stage].copy(),
        alive[:, stage].copy(), ends,
    )  # fmt: skip
