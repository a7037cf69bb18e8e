"""The linear relaxation of one layout's stage problem, solved by HiGHS for its duals.

Layers may be split over pieces and strategies; every live vector is a row, and paths are added as they are needed: the
longest one under the times of the program's own answer, or halfway from it to a steadier point. The optimum is never
taken for a bound: only its duals are used, and `dual_bounds` prices them anew.
"""

from __future__ import annotations

from typing import Any

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
from prism_cp.relaxation.duals import Dual, dual_bounds, make_dual
from prism_cp.relaxation.hull import lower_hull
from prism_cp.silent_highs import SilentHighs

Float64 = NDArray[np.float64]

ROUNDS = 40  # programs per layout
CLOSED = 1e-3  # relative excess of the longest path at which a program counts as closed
MORE_PATHS = 4  # known paths added at once
STEADY = 0.5  # weight of the steadier point


def on_hull(strategies: Float64) -> NDArray[np.intp]:
    """Strategies on the lower convex hull of time and activation: the program needs no others, the bounds see them all.

    Parameters
    ----------
    strategies : float64 array [strategies, costs]
    """
    return lower_hull(strategies[:, :ACTIVATION].sum(axis=1), strategies[:, ACTIVATION])


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
        self.layout_class, self.costs = layout_class, costs
        self.layout = costs.layouts[0]
        pieces = layout_class.num_pieces
        kinds = np.flatnonzero(costs.layers > 0)
        table, lows = costs.strategies[0], costs.lows[0]
        self.brackets = int(np.isfinite(lows).sum())
        # Columns: every (bracket, kind, strategy) on the pieces that allow it; every (group, bracket); the time.
        blocks = []
        for bracket in range(self.brackets):
            for position, k in enumerate(kinds):
                low = np.flatnonzero(costs.bracket[0, k] <= bracket)
                within = set(low[on_hull(table[k][low])].tolist()) if len(low) else set()
                whatever = set(on_hull(table[k]).tolist())
                for q in sorted(within | whatever):
                    allowed = np.where(layout_class.always, q in within, q in whatever)
                    share = max(0.0, table[k, q, TRANSIENT] - lows[bracket]) / costs.most[0]
                    times = [*table[k, q, :ACTIVATION], costs.kinds[0, k, HEAD]]
                    memory = [table[k, q, ACTIVATION], share, *costs.kinds[0, k, :HEAD]]
                    blocks.append((bracket, position, times, memory, np.flatnonzero(allowed)))
        self.solution: tuple[Float64, Float64] | None = None  # weights [paths] and memory prices [rows, brackets]
        self.layers = costs.layers[kinds]
        self.piece = np.concatenate([places for *_, places in blocks])
        counts = [len(places) for *_, places in blocks]
        self.times = np.repeat(np.array([times for _, _, times, _, _ in blocks]), counts, axis=0)
        self.end_times, end_memory = np.zeros((pieces, 4)), np.zeros((pieces, 4))
        for end, place in ((costs.ends[0, 0], 0), (costs.ends[0, 1], pieces - 1)):
            self.end_times[place] += end[:4]
            end_memory[place] += [end[4], 0.0, end[5], end[6]]
        # Numbers near one: time in shares of all work, memory in shares of the room.
        self.second = float(max(1e-12, table[:, :, :WEIGHT_GRAD].sum(axis=2).min(axis=1) @ costs.layers))
        self.byte = float(max(1.0, abs(self.layout[ROOM])))
        self.middle = np.arange(0) if layout_class.may_be_empty else np.arange(1, pieces - 1)
        options: NDArray[np.int64] = np.repeat(
            np.array([(bracket, kind) for bracket, kind, *_ in blocks]), counts, axis=0
        )
        held = np.repeat(np.array([held for _, _, _, held, _ in blocks]), counts, axis=0)
        self._set_rows(options, held, end_memory, lows)

    def _set_rows(self, options: NDArray[np.integer], held: Float64, end_memory: Float64, lows: Float64) -> None:
        """All rows but paths: memory, layers, fillings of pieces, choices of brackets; as (row, column, value) entries.

        Parameters
        ----------
        options : int array [columns, 2]
            Bracket and kind of every column of a strategy.
        held : float64 array [columns, 4]
        """
        layout_class, brackets, pieces = self.layout_class, self.brackets, self.layout_class.num_pieces
        groups = int(layout_class.group_of_row.max()) + 1
        columns = len(self.piece)
        memory = layout_class.memory
        room = self.layout[ROOM] - layout_class.occupied * self.layout[BUFFER] - (memory * end_memory).sum(axis=(1, 2))
        self.num_memory = len(room) * brackets
        self.first_filled = self.num_memory + len(self.layers)
        self.first_choice = self.first_filled + len(self.middle) * brackets
        self.num_columns = columns + groups * brackets + 1
        lower, upper = np.zeros(self.first_choice + groups), np.full(self.first_choice + groups, highspy.kHighsInf)
        entries = []
        alive = np.asarray(memory.any(axis=2))
        row, column = np.nonzero(alive[:, self.piece])
        needed = (memory[row, self.piece[column]] * held[column]).sum(axis=1) / self.byte
        entries.append((row * brackets + options[column, 0], column, -needed))
        for bracket in range(brackets):
            # Where no layer is alive, which only the lowest bracket allows, there is no transient of a layer.
            low = lows[bracket] * (layout_class.filled if bracket == 0 else np.ones(len(room)))
            transient = np.maximum(layout_class.loss * self.layout[LOSS], low)
            chosen = columns + layout_class.group_of_row * brackets + bracket
            entries.append((np.arange(len(room)) * brackets + bracket, chosen, (room - transient) / self.byte))
        entries.append((self.num_memory + options[:, 1], np.arange(columns), np.ones(columns)))
        lower[self.num_memory : self.first_filled] = upper[self.num_memory : self.first_filled] = self.layers
        filled = self.first_filled + np.arange(len(self.middle))[:, None] * brackets
        if len(self.middle):
            inside = np.flatnonzero((self.piece > 0) & (self.piece < pieces - 1))
            row = self.first_filled + (self.piece[inside] - 1) * brackets + options[inside, 0]
            entries.append((row, inside, np.ones(len(inside))))
        each = np.arange(brackets)
        of_piece = columns + layout_class.group_of_piece[self.middle][:, None] * brackets + each
        entries.append((filled + each, of_piece, -np.ones(of_piece.shape)))
        of_group = columns + np.arange(groups)[:, None] * brackets + each
        choice = self.first_choice + np.broadcast_to(np.arange(groups)[:, None], of_group.shape)
        entries.append((choice, of_group, np.ones(of_group.shape)))
        lower[self.first_choice :] = upper[self.first_choice :] = 1.0
        rows, places, values = (np.concatenate([np.ravel(entry[i]) for entry in entries]) for i in range(3))
        self.entries = rows, places, values
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

    def duals(self, target_s: float, rounds: int = ROUNDS, closed: float = CLOSED) -> list[Dual]:
        """Duals of the program with more and more paths, the last one the best; or of one that proves nothing fits.

        Parameters
        ----------
        target_s
            A bound beyond it is good enough.
        rounds
            Most programs.
        closed
            Relative excess of the longest path at which the program counts as closed.
        """
        highs = _program(self.entries, self.lower, self.upper, self.num_columns)
        start = len(self.lower)
        used: list[int] = []
        fresh = sorted(self.layout_class.useful)
        found: list[Dual] = []
        steady: Float64 | None = None
        for _ in range(rounds):
            self._add_paths(highs, fresh)
            used += fresh
            solution = _solve(highs)
            if solution is None:
                proof = self._ray_dual(highs) or self._excess_dual()
                return found if proof is None else [proof]
            values, dual = solution
            weights = np.zeros(len(self.layout_class.paths))
            weights[used] = dual[start:]
            self.solution = weights, dual[: self.num_memory].reshape(-1, self.brackets) * self.second / self.byte
            found.append(self._dual(weights, dual, self.second))
            reached = values[-1] * self.second
            if reached + self.layout[OFFSET] >= target_s:
                break
            point = self._piece_times(values[: len(self.piece)])
            fresh = self._violated(point, reached * (1 + closed), used)
            if not fresh:
                steady = (1 - STEADY) * point + STEADY * (point.mean(axis=0) if steady is None else steady)
                fresh = self._longest((steady, point), reached * (1 + closed), used)
            if not fresh:
                break
        self.layout_class.useful = {int(path) for path in np.flatnonzero(weights > 0)}
        return found

    def _violated(self, point: Float64, reached: float, used: list[int]) -> list[int]:
        """The known paths that are longest at a point, if they are longer than what was reached."""
        lengths: Float64 = (
            np.tensordot(self.layout_class.paths, point, 2) + self.layout_class.transfers * self.layout[P2P]
        )
        lengths[used] = 0.0
        order = np.argsort(-lengths, kind="stable")[:MORE_PATHS]
        return [int(path) for path in order if lengths[path] > reached]

    def _longest(self, points: tuple[Float64, Float64], reached: float, used: list[int]) -> list[int]:
        """The longest paths at some points, the last of them the program's own; none when it is closed."""
        paths = []
        for point in points:
            path, length = self.layout_class.longest_path(point, self.layout[P2P])
            paths.append(self.layout_class.add(path))
        if length <= reached:
            return []
        return [path for path in dict.fromkeys(paths) if path not in used]

    def _add_paths(self, highs: SilentHighs, which: list[int]) -> None:
        """Rows time >= path."""
        if not which:
            return
        paths, transfers = self.layout_class.paths[which], self.layout_class.transfers[which]
        matrix = np.zeros((len(which), self.num_columns))
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

    def _ray_dual(self, highs: SilentHighs) -> Dual | None:
        """Nothing fits, even with split layers: the ray HiGHS gives for it, if its price proves that."""
        _, found, ray = highs.getDualRay()
        if not found:
            return None
        dual = self._dual(np.zeros(0), np.array(ray), 1.0)
        return dual if np.isinf(dual_bounds(dual, self.costs)[0]) else None

    def _excess_dual(self) -> Dual | None:
        """The same, where rounding spoils the ray: the least excess over the room has a dual that proves it."""
        rows, places, values = self.entries
        excess = np.arange(self.num_memory), np.full(self.num_memory, self.num_columns - 1), np.ones(self.num_memory)
        entries = tuple(np.concatenate(pair) for pair in zip((rows, places, values), excess, strict=True))
        solution = _solve(_program(entries, self.lower, self.upper, self.num_columns))
        return None if solution is None else self._dual(np.zeros(0), solution[1], 1.0)


def _program(entries: tuple[Any, ...], lower: Float64, upper: Float64, columns: int) -> SilentHighs:
    """Minimise the last of non-negative columns; `entries` are rows, columns and values."""
    rows, places, values = entries
    order = np.argsort(rows, kind="stable")
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns, len(lower)
    lp.col_cost_ = np.append(np.zeros(columns - 1), 1.0)
    lp.col_lower_ = np.zeros(columns)
    lp.col_upper_ = np.full(columns, highspy.kHighsInf)
    lp.row_lower_, lp.row_upper_ = lower, upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = np.searchsorted(rows[order], np.arange(len(lower) + 1)).astype(np.int32)
    lp.a_matrix_.index_ = places[order].astype(np.int32)
    lp.a_matrix_.value_ = values[order]
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
