"""Cells of layouts in which nothing can fit, found from the formulas alone, before any layout of them is looked at.

Every rank holds the states of its layers and, at its fullest moment, at least one micro-batch's activations of each of
them: a micro-batch's backward begins only after its forward has passed all chunks of a rank (of a schedule that keeps
every piece twice, the first copy is looked at). Under GPipe, 1F1B and ZB-H1 rank i of p holds even min(m, p - i) of
them. Let c_k(i) be the least memory of a layer of kind k on rank i, room_i what the rank's fixed costs leave, and
w_k > 0 any weights. With rho_i = min_k c_k(i) / w_k the layers on rank i weigh at most room_i / rho_i, so where all
layers together weigh more than the sum of these over the ranks nothing fits.

ZeRO stage and recomputation are those that need least, transients and shared buffers are left out: floating-point
numbers that never exceed what the exact tables say.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sympy import Expr

from prism_cp.formulas import symbols as s
from prism_cp.formulas.evaluate import numpy_function
from prism_cp.formulas.memory import MemoryExpressions, PartMemory
from prism_cp.inputs.layout import CP_COMM
from prism_cp.layouts.admissible import AdmissibleLayouts, Columns, distinct_rows

Floats = NDArray[np.float64]

SLACK = 1e-9  # covers the floating-point error, as in `bounds`
HOLDS_MORE = ("gpipe", "1f1b", "zb-h1")  # rank i of p holds at least min(m, p - i) micro-batches of every layer
HEAD_ON_RANK_0 = ("zb-v", "dualpipev")  # elsewhere the output head is on the last rank
PLAIN = (s.tp, s.sp, s.cp, s.ep, s.etp, s.dp, s.pp, s.mbs, s.num_microbatches)
CP_SWITCHES = tuple(zip((s.cp_p2p, s.cp_all_gather, s.cp_a2a), ("p2p", "all_gather", "a2a"), strict=True))
ZERO_SWITCHES = (s.zero_1, s.zero_2, s.zero_3)


class _Cells:
    """Evaluates expressions for every cell, for distinct values of the fields they depend on only."""

    def __init__(self, cells: Columns, zero: int) -> None:
        self.cells, self.zero = cells, zero

    def values(self, expressions: Sequence[Expr]) -> list[Floats]:
        """One array [cells] per expression."""
        free = set().union(*(expression.free_symbols for expression in expressions))
        fields = [symbol.name for symbol in PLAIN if symbol in free]
        if s.is_pipelined in free and "pp" not in fields:
            fields.append("pp")
        if any(symbol in free for symbol, _ in CP_SWITCHES):
            fields += [name for name in ("cp", "cp_comm") if name not in fields]
        columns = [self.cells[name] for name in fields] or [np.zeros(len(self.cells["tp"]), np.int64)]
        first, inverse = distinct_rows(columns)
        rows = {name: self.cells[name][first].astype(np.float64) for name in fields}
        known = {symbol: rows[symbol.name] for symbol in PLAIN if symbol in free}
        known |= {symbol: float(self.zero > stage) for stage, symbol in enumerate(ZERO_SWITCHES)}
        if "pp" in rows:
            known[s.is_pipelined] = (rows["pp"] > 1).astype(np.float64)
        for symbol, name in CP_SWITCHES:
            if "cp_comm" in rows:
                chosen = rows["cp_comm"] == CP_COMM.index(name)
                known[symbol] = ((rows["cp"] > 1) & chosen).astype(np.float64)
        missing = free - set(known)
        assert not missing, f"memory depends on {missing}, which no cell has"
        order = tuple(symbol for symbol in known if symbol in free)
        found = numpy_function(list(expressions), order)(*(known[symbol] for symbol in order))
        return [np.broadcast_to(values, first.shape)[inverse] for values in found]


def _state(part: PartMemory) -> Expr:
    return part.weight_bytes + part.gradient_bytes + part.optimizer_bytes


def hopeless_cells(
    admissible: AdmissibleLayouts, memory: MemoryExpressions, counts: Sequence[int], cells: Columns
) -> NDArray[np.bool_]:
    """Which cells hold no layout with a plan that fits in memory; some such cells may be missed.

    Parameters
    ----------
    memory
        Of the instance.
    counts
        Layers of every chain kind.
    cells
        Columns of `AdmissibleLayouts.cells`, or of some of them.
    """
    space = admissible.space
    zero = max(stage for stage in range(4) if space.zero is None or stage in space.zero)
    evaluator = _Cells(cells, zero)
    kinds = [index for index, count in enumerate(counts) if count]
    parts = [*(memory.kinds[k] for k in kinds), memory.embedding, memory.head]
    states = evaluator.values([_state(part) for part in parts])
    active = [np.minimum.reduce(evaluator.values(memory.kinds[k].activation_bytes)) for k in kinds]
    fixed, capacity = evaluator.values([memory.fixed_bytes, memory.capacity_bytes])
    room, layers = capacity - fixed, np.array([counts[k] for k in kinds], np.float64)
    state, activation = np.stack(states[:-2], axis=1), np.stack(active, axis=1)
    hopeless = room < 0
    hopeless |= ((state + activation).max(axis=1) > room * (1 + SLACK)) | (states[-2] > room * (1 + SLACK))
    deep = all(name in HOLDS_MORE for name in space.schedules)
    head = states[-1] if not any(name in HEAD_ON_RANK_0 for name in space.schedules) else np.zeros_like(room)
    for pp in np.unique(cells["pp"]).tolist():
        mine = np.flatnonzero((cells["pp"] == pp) & ~hopeless)
        live = np.minimum(cells["num_microbatches"][mine], pp) if deep else np.ones(len(mine))
        weights = np.maximum(state[mine] + activation[mine] * (live[:, None] + 1) / 2, 1.0)
        held = np.zeros(len(mine))
        for rank in range(pp):
            alive = np.minimum(cells["num_microbatches"][mine], pp - rank) if deep else np.ones(len(mine))
            rate = ((state[mine] + activation[mine] * alive[:, None]) / weights).min(axis=1)
            left = room[mine] - (states[-2][mine] if rank == 0 else 0) - (head[mine] if rank == pp - 1 else 0)
            held += np.maximum(left, 0) / np.maximum(rate, 1e-300)
        hopeless[mine] |= (weights @ layers) * (1 - SLACK) > held * (1 + SLACK)
    return hopeless
