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
from prism_cp.relaxation.costs import (
    ACTIVATION,
    BRACKETS,
    BUFFER,
    HEAD,
    LOSS,
    OFFSET,
    P2P,
    ROOM,
    TRANSIENT,
    WEIGHT_GRAD,
    RelaxationCosts,
)  # fmt: skip
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
    """

    def __init__(self, layout_class: LayoutClass, costs: RelaxationCosts) -> None:
        self.layout_class = layout_class
        self.layout = costs.layouts[0]
        pieces = layout_class.num_pieces
        kinds = np.flatnonzero(costs.layers > 0)
        table, lows = costs.strategies[0], costs.lows[0]
        self.brackets = int(np.isfinite(lows).sum())
        # Columns: every (bracket, kind, strategy) on every piece; every (group, bracket); the time.
        chosen = []
        for bracket in range(self.brackets):
            for position, k in enumerate(kinds):
                allowed = np.flatnonzero(costs.bracket[0, k] <= bracket)
                for q in allowed[undominated(table[k][allowed])] if len(allowed) else ():
                    share = max(0.0, table[k, q, TRANSIENT] - lows[bracket]) / costs.most[0]
                    times = [*table[k, q, :ACTIVATION], costs.kinds[0, k, HEAD]]
                    chosen.append(
                        (bracket, position, times, [table[k, q, ACTIVATION], share, *costs.kinds[0, k, :HEAD]])
                    )
        self.layers = costs.layers[kinds]
        self.piece = np.tile(np.arange(pieces), len(chosen))
        self.bracket = np.repeat([bracket for bracket, _, _, _ in chosen], pieces)
        kind = np.repeat([position for _, position, _, _ in chosen], pieces)
        self.times = np.repeat(np.array([times for _, _, times, _ in chosen]), pieces, axis=0)
        held = np.repeat(np.array([memory for _, _, _, memory in chosen]), pieces, axis=0)
        self.end_times, end_memory = np.zeros((pieces, 4)), np.zeros((pieces, 4))
        for end, place in ((costs.ends[0, 0], 0), (costs.ends[0, 1], pieces - 1)):
            self.end_times[place] += end[:4]
            end_memory[place] += [end[4], 0.0, end[5], end[6]]
        # Numbers near one: time in shares of all work, memory in shares of the room.
        self.second = float(max(1e-12, table[:, :, :WEIGHT_GRAD].sum(axis=2).min(axis=1) @ costs.layers))
        self.byte = float(max(1.0, abs(self.layout[ROOM])))
        self.middle = np.arange(0) if layout_class.may_be_empty else np.arange(1, pieces - 1)
        self._set_rows(kind, held, end_memory, lows)

    def _set_rows(self, kind: NDArray[np.integer], held: Float64, end_memory: Float64, lows: Float64) -> None:
        """All rows but paths: memory, layers, fillings of pieces, choices of brackets."""
        layout_class, brackets = self.layout_class, self.brackets
        groups = int(layout_class.group_of_row.max()) + 1
        columns = len(self.piece)
        memory = layout_class.memory
        needed = (memory[:, self.piece] * held).sum(axis=2) / self.byte
        room = self.layout[ROOM] - layout_class.occupied * self.layout[BUFFER] - (memory * end_memory).sum(axis=(1, 2))
        self.num_memory = len(room) * brackets
        self.matrix = np.zeros((
            self.num_memory + len(self.layers) + len(self.middle) * brackets + groups, columns + groups * brackets + 1,
        ))  # fmt: skip
        lower, upper = np.zeros(len(self.matrix)), np.full(len(self.matrix), highspy.kHighsInf)
        for bracket in range(brackets):
            # A rank without layers, which only the lowest bracket allows, has no transient of a layer.
            low = lows[bracket] * (layout_class.occupied if bracket == 0 else np.ones(len(room)))
            transient = np.maximum(layout_class.loss * self.layout[LOSS], low)
            of_bracket = columns + layout_class.group_of_row * brackets + bracket
            rows = np.arange(len(room)) * brackets + bracket
            self.matrix[rows, :columns] = -np.where(self.bracket == bracket, needed, 0.0)
            self.matrix[rows, of_bracket] = (room - transient) / self.byte
        start = self.num_memory
        self.matrix[start + kind, np.arange(columns)] = 1.0
        lower[start : start + len(self.layers)] = upper[start : start + len(self.layers)] = self.layers
        self.first_filled = start + len(self.layers)
        for number, piece in enumerate(self.middle):
            for bracket in range(brackets):
                row = self.first_filled + number * brackets + bracket
                self.matrix[row, :columns] = (self.piece == piece) & (self.bracket == bracket)
                self.matrix[row, columns + layout_class.group_of_piece[piece] * brackets + bracket] = -1.0
        self.first_choice = len(self.matrix) - groups
        for group in range(groups):
            at = columns + group * brackets
            self.matrix[self.first_choice + group, at : at + brackets] = 1.0
        lower[self.first_choice :] = upper[self.first_choice :] = 1.0
        self.lower, self.upper = lower, upper

    def _dual(self, weights: Float64, dual: Float64, unit: float) -> Dual:
        """The dual of a solution; `unit` is what the objective counts, in seconds."""
        brackets = self.brackets
        rows = len(self.layout_class.loss)
        memory, occupancy = np.zeros((rows, BRACKETS)), np.zeros((self.layout_class.num_pieces, BRACKETS))
        memory[:, :brackets] = dual[: self.num_memory].reshape(rows, brackets) * unit / self.byte
        filled = dual[self.first_filled : self.first_choice].reshape(len(self.middle), brackets)
        occupancy[self.middle, :brackets] = filled * unit
        return make_dual(self.layout_class, weights, memory, occupancy)

    def duals(self, target_s: float) -> list[Dual]:
        """Duals of the program with more and more paths, the last one the best; or of one that proves nothing fits.

        Parameters
        ----------
        target_s
            A bound beyond it is good enough.
        """
        highs = _program(self.matrix, self.lower, self.upper)
        start = len(self.matrix)
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
            found.append(self._dual(weights, dual, self.second))
            reached = values[-1] * self.second
            if reached + self.layout[OFFSET] >= target_s:
                break
            point = self._piece_times(values[: len(self.piece)])
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
        lengths: Float64 = (
            np.tensordot(self.layout_class.paths, point, 2) + self.layout_class.transfers * self.layout[P2P]
        )
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
        matrix = np.zeros((len(which), self.matrix.shape[1]))
        matrix[:, -1] = 1.0
        matrix[:, : len(self.piece)] = -(paths[:, self.piece] * self.times).sum(axis=2) / self.second
        constant = ((paths * self.end_times).sum(axis=(1, 2)) + transfers * self.layout[P2P]) / self.second
        row_index, column_index = np.nonzero(matrix)
        starts = np.searchsorted(row_index, np.arange(len(which))).astype(np.int32)
        highs.addRows(
            len(which), constant, np.full(len(which), highspy.kHighsInf), len(row_index), starts,
            column_index.astype(np.int32), matrix[row_index, column_index],
        )  # fmt: skip

    def _piece_times(self, values: Float64) -> Float64:
        """Times of every piece under a solution, float64 array [pieces, 4], seconds."""
        point: Float64 = self.end_times.copy()
        np.add.at(point, self.piece, values[:, None] * self.times)
        return point

    def _excess_dual(self) -> Dual | None:
        """Nothing fits, even with split layers: the least excess over the room has a dual that proves it."""
        matrix = self.matrix.copy()
        matrix[: self.num_memory, -1] = 1.0
        solution = _solve(_program(matrix, self.lower, self.upper))
        return None if solution is None else self._dual(np.zeros(len(self.layout_class.paths)), solution[1], 1.0)


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
