"""Layouts waiting to be decided, with bounds from relaxations of their classes; programs are solved on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from prism_cp.inputs.layout import Layout
from prism_cp.relaxation.classes import LayoutClass
from prism_cp.relaxation.costs import RelaxationCosts
from prism_cp.relaxation.duals import Dual, dual_bounds
from prism_cp.relaxation.program import Relaxation

Float64 = NDArray[np.float64]
ClassKey = tuple[str, int, int, int]  # schedule with its options, pp, vpp, num_microbatches

MOST_DUALS = 12  # of a class, and of classes with the same memory rows, tried on every new layout
FIRST_PROGRAMS = 2  # solved when the first layouts of a class arrive


@dataclass(eq=False)
class _Waiting:
    """Layouts of one class."""

    layout_class: LayoutClass
    duals: list[Dual] = field(default_factory=list)
    costs: RelaxationCosts | None = None
    bounds: Float64 = field(default_factory=lambda: np.zeros(0))
    relaxed: NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    layouts: list[Layout] = field(default_factory=list)

    def keep(self, mask: NDArray[np.bool_]) -> None:
        """Keep some of the layouts only."""
        assert self.costs is not None
        indices = np.flatnonzero(mask)
        self.costs, self.bounds, self.relaxed = self.costs.rows(indices), self.bounds[indices], self.relaxed[indices]
        self.layouts = [self.layouts[index] for index in indices]


class RelaxationBounds:
    """Layouts by class, with lower bounds in seconds; infinity where nothing fits.

    Parameters
    ----------
    may_be_empty : bool
        Whether middle pieces may hold no layer.
    """

    def __init__(self, may_be_empty: bool) -> None:
        self._may_be_empty = may_be_empty
        self._classes: dict[ClassKey, _Waiting] = {}
        self._nothing_fits: dict[bytes, list[Dual]] = {}  # by the memory of classes

    def add(
        self,
        keys: Sequence[ClassKey],
        class_of: NDArray[np.integer],
        costs: RelaxationCosts,
        bounds: Float64,
        layout: Callable[[int], Layout],
        target_s: float,
        stopped: Callable[[], bool],
    ) -> tuple[int, int]:
        """Take layouts whose bound does not exceed the target.

        Parameters
        ----------
        keys, class_of
            Classes, and which one every layout belongs to.
        bounds : float64 array [layouts]
            Known bounds.
        layout
            Gives the layout of a row.

        Returns
        -------
        (int, int)
            Layouts left out because their bound exceeds the target, and because nothing fits.
        """
        beyond = hopeless = 0
        for number, key in enumerate(keys):
            rows = np.flatnonzero(class_of == number)
            waiting = self._classes.get(key)
            if waiting is None:
                waiting = self._classes[key] = _Waiting(LayoutClass(*key, self._may_be_empty))
            own, values = costs.rows(rows), bounds[rows]
            relaxed = np.zeros(len(rows), np.bool_)
            for dual in (*self._same_memory(waiting), *waiting.duals):
                _raise(values, dual, own, target_s)
            for _ in range(0 if waiting.duals or stopped() else FIRST_PROGRAMS):
                alive = np.flatnonzero((values <= target_s) & ~relaxed)
                if not len(alive):
                    break
                row = int(alive[np.argmin(values[alive])])
                relaxed[row] = True
                found = self._solve(waiting, own.rows(np.array([row])), target_s)
                if found is not None:
                    _raise(values, found, own, target_s)
            nothing = int(np.isinf(values).sum())
            keep = np.flatnonzero((values <= target_s) & np.isfinite(values))
            hopeless += nothing
            beyond += len(rows) - nothing - len(keep)
            if len(keep):
                waiting.costs = own.rows(keep) if waiting.costs is None else waiting.costs.joined(own.rows(keep))
                waiting.bounds = np.append(waiting.bounds, values[keep])
                waiting.relaxed = np.append(waiting.relaxed, relaxed[keep])
                waiting.layouts += [layout(int(row)) for row in rows[keep]]
        return beyond, hopeless

    def drop(self, target_s: float) -> tuple[int, int]:
        """Leave out what exceeds the target; returns how many layouts did, and in how many nothing fits."""
        beyond = hopeless = 0
        for waiting in self._classes.values():
            keep = waiting.bounds <= target_s
            keep &= np.isfinite(waiting.bounds)
            if not keep.all():
                nothing = int(np.isinf(waiting.bounds).sum())
                hopeless += nothing
                beyond += int((~keep).sum()) - nothing
                waiting.keep(keep)
        return beyond, hopeless

    def least(self, target_s: float, stopped: Callable[[], bool]) -> tuple[float, Layout] | None:
        """The layout of least bound, relaxed itself; None when none is left within the target, or stopped."""
        while not stopped():
            found = self._argmin()
            if found is None or found[0] > target_s:
                return None
            bound, waiting, index = found
            if waiting.relaxed[index]:
                return bound, waiting.layouts[index]
            self._relax(waiting, index, target_s)
        return None

    def _relax(self, waiting: _Waiting, index: int, target_s: float) -> None:
        """Solve one layout's program and price its dual for the whole class."""
        waiting.relaxed[index] = True
        assert waiting.costs is not None
        dual = self._solve(waiting, waiting.costs.rows(np.array([index])), target_s)
        if dual is not None:
            _raise(waiting.bounds, dual, waiting.costs, target_s)

    def take(self, layout: Layout) -> None:
        """Take out one layout."""
        for waiting in self._classes.values():
            if layout in waiting.layouts:
                keep = np.ones(len(waiting.layouts), np.bool_)
                keep[waiting.layouts.index(layout)] = False
                waiting.keep(keep)
                return

    def clear(self) -> list[float]:
        """Take out every layout; returns their bounds as they are known."""
        bounds = [float(bound) for waiting in self._classes.values() for bound in waiting.bounds]
        self._classes.clear()
        return bounds

    def least_bound(self) -> float | None:
        """Least of all bounds as they are known; None when nothing waits."""
        found = self._argmin()
        return None if found is None else found[0]

    def _argmin(self) -> tuple[float, _Waiting, int] | None:
        best: tuple[float, _Waiting, int] | None = None
        for waiting in self._classes.values():
            if len(waiting.bounds):
                index = int(np.argmin(waiting.bounds))
                if best is None or waiting.bounds[index] < best[0]:
                    best = float(waiting.bounds[index]), waiting, index
        return best

    def _solve(self, waiting: _Waiting, costs: RelaxationCosts, target_s: float) -> Dual | None:
        """The best dual of one layout's program."""
        found = Relaxation(waiting.layout_class, costs).duals(target_s)
        if not found:
            return None
        kept = waiting.duals if found[-1].weight else self._same_memory(waiting)
        kept.append(found[-1])
        del kept[:-MOST_DUALS]
        return found[-1]

    def _same_memory(self, waiting: _Waiting) -> list[Dual]:
        """Duals that proved for layouts of this class, or of one with the same memory rows, that nothing fits."""
        return self._nothing_fits.setdefault(waiting.layout_class.memory_digest, [])


def _raise(bounds: Float64, dual: Dual, costs: RelaxationCosts, target_s: float) -> None:
    """Raise the bounds up to the target by what a dual says."""
    alive = np.flatnonzero(bounds <= target_s)
    if len(alive):
        bounds[alive] = np.maximum(bounds[alive], dual_bounds(dual, costs.rows(alive)))
