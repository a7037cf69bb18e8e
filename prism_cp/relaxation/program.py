"""The linear relaxation of one layout's stage problem, solved by HiGHS for its duals.

Layers may be split over pieces and strategies; every live vector is a row, and paths are added as they are needed: the
longest one under the times of the program's own answer, or halfway from it to a steadier point. The optimum is never
taken for a bound: only its duals are used, and `dual_bounds` prices them anew.
"""

from __future__ import annotations

import highspy
import numpy as np
from numpy.typing import NDArray

from prism_cp.relaxation.classes import LayoutClass
from prism_cp.relaxation.costs import ACTIVATION, BUFFER, LOSS, OFFSET, P2P, ROOM, WEIGHT_GRAD, RelaxationCosts
from prism_cp.relaxation.duals import Dual, make_dual
from prism_cp.silent_highs import SilentHighs

Float64 = NDArray[np.float64]

ROUNDS = 40  # programs per layout
CLOSED = 1e-3  # relative excess of the longest path at which a program counts as closed
MORE_PATHS = 4  # known paths added at once
STEADY = 0.5  # weight of the steadier point


def undominated(strategies: Float64) -> NDArray[np.intp]:
    """Strategies that no other one beats in every cost.

    Parameters
    ----------
    strategies : float64 array [strategies, costs]
    """
    kept: list[int] = []
    for q in np.lexsort(strategies.T[::-1]):
        if not any(np.all(strategies[other] <= strategies[q]) for other in kept):
            kept.append(int(q))
    return np.array(kept)


class Relaxation:
    """The linear program of one layout.

    Parameters
    ----------
    layout_class : LayoutClass
        Gains the paths that are found here.
    costs : RelaxationCosts
        Of one layout.
    may_be_empty : bool
        Whether middle pieces may hold no layer.
    """

    def __init__(self, layout_class: LayoutClass, costs: RelaxationCosts, may_be_empty: bool) -> None:
        self.layout_class = layout_class
        self.layout = costs.layouts[0]
        pieces = layout_class.num_pieces
        kinds = np.flatnonzero(costs.layers > 0)
        table = costs.strategies[0]
        chosen = [(position, int(k), int(q)) for position, k in enumerate(kinds) for q in undominated(table[k])]
        self.layers = costs.layers[kinds]
        # Columns: every (kind, strategy) on every piece; then the time.
        self.piece = np.tile(np.arange(pieces), len(chosen))
        self.kind = np.repeat([position for position, _, _ in chosen], pieces)
        times = np.array([[*table[k, q, :ACTIVATION], costs.kinds[0, k, 1]] for _, k, q in chosen])
        held = np.array([[*table[k, q, ACTIVATION:], costs.kinds[0, k, 0]] for _, k, q in chosen])
        self.times, held = np.repeat(times, pieces, axis=0), np.repeat(held, pieces, axis=0)
        end_times, end_memory = np.zeros((pieces, 4)), np.zeros((pieces, 3))
        for end, place in ((costs.ends[0, 0], 0), (costs.ends[0, 1], pieces - 1)):
            end_times[place] += end[[0, 1, 2, 5]]
            end_memory[place] += [end[3], 0.0, end[4]]
        self.end_times = end_times
        # Numbers near one: time in shares of all work, memory in shares of the room.
        self.second = float(max(1e-12, table[:, :, :WEIGHT_GRAD].sum(axis=2).min(axis=1) @ costs.layers))
        self.byte = float(max(1.0, abs(self.layout[ROOM])))
        memory = layout_class.memory
        self.memory = (memory[:, self.piece] * held).sum(axis=2) / self.byte
        room = self.layout[ROOM] - layout_class.occupied * self.layout[BUFFER] - layout_class.loss * self.layout[LOSS]
        self.room = (room - (memory * end_memory).sum(axis=(1, 2))) / self.byte
        self.belongs = np.zeros((len(kinds), len(self.piece)))
        self.belongs[self.kind, np.arange(len(self.piece))] = 1.0
        self.middle = np.arange(0) if may_be_empty else np.arange(1, pieces - 1)
        self.filled = (self.piece == self.middle[:, None]).astype(np.float64)

    def duals(self, target_s: float) -> list[Dual]:
        """Duals of the program with more and more paths, the last one the best; of one that proves that nothing fits.

        Parameters
        ----------
        target_s
            A bound beyond it is good enough.
        """
        infinity = highspy.kHighsInf
        rows, filled = len(self.room), len(self.filled)
        matrix = np.concatenate((self.memory, self.belongs, self.filled))
        lower = np.concatenate((np.full(rows, -infinity), self.layers, np.ones(filled)))
        upper = np.concatenate((self.room, self.layers, np.full(filled, infinity)))
        highs = _program(np.concatenate((matrix, np.zeros((len(matrix), 1))), axis=1), lower, upper)
        start = len(matrix)
        used: list[int] = []
        fresh = sorted(self.layout_class.useful)
        found: list[Dual] = []
        steady: Float64 | None = None
        for _ in range(ROUNDS):
            self._add_paths(highs, fresh)
            used += fresh
            solution = _solve(highs)
            if solution is None:
                excess = self._excess_dual()
                return found if excess is None else [excess]
            values, dual = solution
            weights = np.zeros(len(self.layout_class.paths))
            weights[used] = dual[start:]
            occupancy = np.zeros(self.layout_class.num_pieces)
            occupancy[self.middle] = dual[start - filled : start] * self.second
            prices = -dual[:rows] * self.second / self.byte
            found.append(make_dual(self.layout_class, weights, prices, occupancy))
            reached = values[-1] * self.second
            if reached + self.layout[OFFSET] >= target_s:
                break
            point = self._piece_times(values[:-1])
            fresh = self._violated(point, reached, used)
            if not fresh:
                steady = (1 - STEADY) * point + STEADY * (point.mean(axis=0) if steady is None else steady)
                fresh = self._longest((steady, point), reached, used)
            if not fresh:
                break
        self.layout_class.useful = {int(path) for path in np.flatnonzero(weights > 0)}
        return found

    def _violated(self, point: Float64, reached: float, used: list[int]) -> list[int]:
        """The known paths that are longest at a point, if they are longer than the program's time."""
        lengths = np.tensordot(self.layout_class.paths, point, 2) + self.layout_class.transfers * self.layout[P2P]
        lengths[used] = 0.0
        order = np.argsort(-lengths, kind="stable")[:MORE_PATHS]
        return [int(path) for path in order if lengths[path] > reached * (1 + CLOSED)]

    def _longest(self, points: tuple[Float64, Float64], reached: float, used: list[int]) -> list[int]:
        """The longest paths at some points, the last of them the program's own; none when it is closed."""
        paths = []
        for point in points:
            path, length = self.layout_class.longest_path(point, self.layout[P2P])
            paths.append(self.layout_class.add(path))
        if length <= reached * (1 + CLOSED):
            return []
        return [path for path in dict.fromkeys(paths) if path not in used]

    def _add_paths(self, highs: SilentHighs, which: list[int]) -> None:
        """Rows time >= path."""
        if not which:
            return
        paths, transfers = self.layout_class.paths[which], self.layout_class.transfers[which]
        matrix = np.ones((len(which), len(self.piece) + 1))
        matrix[:, :-1] = -(paths[:, self.piece] * self.times).sum(axis=2) / self.second
        constant = ((paths * self.end_times).sum(axis=(1, 2)) + transfers * self.layout[P2P]) / self.second
        row_index, column_index = np.nonzero(matrix)
        starts = np.searchsorted(row_index, np.arange(len(which))).astype(np.int32)
        highs.addRows(
            len(which), constant, np.full(len(which), highspy.kHighsInf), len(row_index), starts,
            column_index.astype(np.int32), matrix[row_index, column_index],
        )  # fmt: skip

    def _piece_times(self, values: Float64) -> Float64:
        """Times of every piece under a solution, float64 array [pieces, 4], seconds."""
        point = self.end_times.copy()
        np.add.at(point, self.piece, values[:, None] * self.times)
        return point

    def _excess_dual(self) -> Dual | None:
        """Nothing fits, even with split layers: the least excess over the room has a dual that proves it."""
        rows, columns = self.memory.shape
        filled, infinity = len(self.filled), highspy.kHighsInf
        matrix = np.zeros((rows + len(self.layers) + filled, columns + 1))
        matrix[:, :columns] = np.concatenate((-self.memory, self.belongs, self.filled))
        matrix[:rows, columns] = 1.0
        lower = np.concatenate((-self.room, self.layers, np.ones(filled)))
        upper = np.concatenate((np.full(rows, infinity), self.layers, np.full(filled, infinity)))
        solution = _solve(_program(matrix, lower, upper))
        if solution is None:
            return None
        dual = solution[1]
        occupancy = np.zeros(self.layout_class.num_pieces)
        occupancy[self.middle] = dual[len(dual) - filled :]
        return make_dual(self.layout_class, np.zeros(len(self.layout_class.paths)), dual[:rows] / self.byte, occupancy)


def _program(matrix: Float64, lower: Float64, upper: Float64) -> SilentHighs:
    """Minimise the last of non-negative columns."""
    rows, columns = matrix.shape
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns, rows
    lp.col_cost_ = np.append(np.zeros(columns - 1), 1.0)
    lp.col_lower_ = np.zeros(columns)
    lp.col_upper_ = np.full(columns, highspy.kHighsInf)
    lp.row_lower_, lp.row_upper_ = lower, upper
    row_index, column_index = np.nonzero(matrix)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.searchsorted(row_index, np.arange(rows + 1)).astype(np.int32)
    lp.a_matrix_.index_ = column_index.astype(np.int32)
    lp.a_matrix_.value_ = matrix[row_index, column_index]
    highs = SilentHighs()
    highs.setOptionValue("presolve", "off")
    highs.passModel(lp)
    return highs


def _solve(highs: SilentHighs) -> tuple[Float64, Float64] | None:
    """Values of the columns and duals of the rows; None where there is no optimum."""
    highs.run()
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = highs.getSolution()
    return np.array(solution.col_value), np.array(solution.row_dual)
