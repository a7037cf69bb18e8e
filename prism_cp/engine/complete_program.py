"""Engine room: weights on paths for a complete choice of items, from a linear program over split strategies.

Times of the pieces beyond their fastest strategies are its columns, the live vectors of every rank and the paths its
rows. It only proposes weights: what they prove is said by integer tables.
"""

from __future__ import annotations

from collections.abc import Sequence

import highspy
import numpy as np
from numpy.typing import NDArray

from prism_cp.engine.pricing import ItemMemory
from prism_cp.engine.tables import Tables
from prism_cp.relaxation import lower_hull
from prism_cp.silent_highs import SilentHighs

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

EXCESS = 1e3  # cost of memory beyond the room, in shares of the longest time per activation of one layer


class CompleteProgram:
    """The linear program of complete choices from some tables, all of whose items have memory rows.

    Parameters
    ----------
    unit
        About the pipeline time.
    """

    def __init__(self, tables: Tables, unit: float) -> None:
        self.tables, self.unit = tables, unit
        self._plain: list[int] = []
        self._known = 0
        columns, counts, rows = [], 0, []
        self._memory: list[ItemMemory] = []
        for g, items in enumerate(tables.items):
            memory = items.memory
            assert memory is not None
            self._memory.append(memory)
            stages = np.array(items.group.stages)[memory.rows.stage]
            pieces, kinds = len(stages), len(memory.rows.activation)
            for piece in range(pieces):
                for kind in range(kinds):
                    kept = lower_hull(memory.rows.slower[kind], memory.rows.activation[kind])
                    columns += [(g, piece, kind, int(q), int(stages[piece]), counts) for q in kept]
                    counts += 1
            rows += [(g, row) for row in range(len(memory.rows.live))]
        self._column = np.array(columns, np.int64)
        self._slower = np.array([self._memory[g].rows.slower[kind, q] for g, _, kind, q, _, _ in columns])
        self._byte = max(float(memory.rows.activation.max()) for memory in self._memory)
        highs, number, infinity = SilentHighs(), len(columns), highspy.kHighsInf
        self._highs, self._num_counts, self._rows = highs, counts, rows
        highs.addVars(number + 2, np.zeros(number + 2), np.full(number + 2, infinity))  # excess, time
        highs.changeColCost(number, EXCESS)
        highs.changeColCost(number + 1, 1.0)
        for count in range(counts):
            members = np.flatnonzero(self._column[:, 5] == count).astype(np.int32)
            highs.addRow(0.0, 0.0, len(members), members, np.ones(len(members)))
        for g, row in rows:
            mine = np.flatnonzero(self._column[:, 0] == g)
            memory = self._memory[g]
            held = memory.rows.live[row, self._column[mine, 1]]
            held = held * memory.rows.activation[self._column[mine, 2], self._column[mine, 3]] / self._byte
            members = np.append(mine[held > 0], number).astype(np.int32)
            highs.addRow(-infinity, 0.0, len(members), members, np.append(held[held > 0], -1.0))

    def weigh(self, chosen: Sequence[int], base: Float64, most_scale: int) -> tuple[Float64, Float64] | None:
        """Weights [cuts] of paths divided by their scales, sum 1, and times [stages] beyond the fastest strategies.

        Parameters
        ----------
        chosen
            One item per group, numbered over all groups.
        base : float64 array [cuts]
            Length of every cut with the fastest strategies.
        most_scale
            Only cuts of at most this scale are paths.
        """
        tables, highs, number = self.tables, self._highs, len(self._column)
        self._take_paths(most_scale)
        local = [item - int(tables.start[g]) for g, item in enumerate(chosen)]
        counts = np.concatenate([memory.counts[i].reshape(-1) for memory, i in zip(self._memory, local, strict=True)])
        room = np.concatenate(
            [
                (memory.budget[i] - np.maximum(memory.rows.ends, memory.rows.lows[0])) / self._byte
                for memory, i in zip(self._memory, local, strict=True)
            ]
        )
        infinity = highspy.kHighsInf
        plain = np.array(self._plain)
        scales = tables.scales[plain]
        lower = np.concatenate((counts, np.full(len(room), -infinity), base[plain] / scales / self.unit))
        upper = np.concatenate((counts, room, np.full(len(plain), infinity)))
        highs.changeRowsBounds(len(lower), np.arange(len(lower), dtype=np.int32), lower, upper)
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = highs.getSolution()
        dual = np.maximum(np.array(solution.row_dual)[len(counts) + len(room) :], 0.0)
        if dual.sum() <= 0:
            return None
        weights = np.zeros(len(tables.rows))
        weights[plain] = dual / dual.sum()
        values = np.array(solution.col_value)[:number]
        stages = len(tables.problem.virtual_stages)
        slower = np.bincount(self._column[:, 4], values * self._slower, minlength=stages)
        return weights, slower.astype(np.float64)

    def _take_paths(self, most_scale: int) -> None:
        """Add the paths that the tables have gained."""
        number = len(self._column)
        for x in range(self._known, len(self.tables.rows)):
            row = self.tables.rows[x]
            if row.scale > most_scale:
                continue
            self._plain.append(x)
            values = -row.times[self._column[:, 4], 1] * self._slower / row.scale / self.unit
            members = np.flatnonzero(values)
            self._highs.addRow(
                0.0, highspy.kHighsInf, len(members) + 1, np.append(members, number + 1).astype(np.int32),
                np.append(values[members], 1.0),
            )  # fmt: skip
        self._known = len(self.tables.rows)
