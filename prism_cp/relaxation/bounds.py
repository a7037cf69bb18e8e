"""Bounds of batches of layouts from the relaxations of their classes, solved only where they are needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from prism_cp.relaxation.classes import LayoutClass
from prism_cp.relaxation.costs import RelaxationCosts
from prism_cp.relaxation.duals import Dual, dual_bounds
from prism_cp.relaxation.program import Relaxation

Float64 = NDArray[np.float64]
ClassKey = tuple[str, int, int, int]  # schedule with its options, pp, vpp, num_microbatches

MOST_DUALS = 12  # of a class, tried on every new layout


class RelaxationBounds:
    """Duals of every class met, and what they say about layouts.

    Parameters
    ----------
    may_be_empty : bool
        Whether middle pieces may hold no layer.
    """

    def __init__(self, may_be_empty: bool) -> None:
        self._may_be_empty = may_be_empty
        self._classes: dict[ClassKey, tuple[LayoutClass, list[Dual]]] = {}
        self.programs = 0

    def raise_bounds(
        self,
        keys: Sequence[ClassKey],
        class_of: NDArray[np.integer],
        costs: RelaxationCosts,
        bounds: Float64,
        target_s: float | None,
        stopped: Callable[[], bool],
    ) -> Float64:
        """Better bounds; infinity where nothing fits.

        Parameters
        ----------
        keys, class_of
            Classes, and which one every layout belongs to.
        bounds : float64 array [layouts]
            Known bounds in seconds.
        target_s
            Layouts with a bound beyond it do not matter, and each of the others is relaxed. None: programs are solved,
            least bound first, until the layout of least bound has been relaxed itself.
        """
        bounds = bounds.copy()
        limit = np.inf if target_s is None else target_s
        members = [np.flatnonzero(class_of == number) for number in range(len(keys))]
        for key, rows in zip(keys, members, strict=True):
            for dual in self._class(key)[1]:
                alive = rows[bounds[rows] <= limit]
                if len(alive) and not stopped():
                    bounds[alive] = np.maximum(bounds[alive], dual_bounds(dual, costs.rows(alive)))
        relaxed = np.zeros(len(bounds), np.bool_)
        if target_s is None:
            while not stopped() and len(bounds) and np.isfinite(bounds.min()):
                row = int(np.argmin(bounds))
                if relaxed[row]:
                    break
                relaxed[row] = True
                self._relax(keys[class_of[row]], row, members[class_of[row]], costs, bounds, limit)
            return bounds
        for key, rows in zip(keys, members, strict=True):
            while not stopped():
                alive = rows[(bounds[rows] <= limit) & ~relaxed[rows]]
                if not len(alive):
                    break
                row = int(alive[np.argmin(bounds[alive])])
                relaxed[row] = True
                self._relax(key, row, alive, costs, bounds, limit)
        return bounds

    def _class(self, key: ClassKey) -> tuple[LayoutClass, list[Dual]]:
        if key not in self._classes:
            self._classes[key] = LayoutClass(*key, self._may_be_empty), []
        return self._classes[key]

    def _relax(
        self, key: ClassKey, row: int, rows: NDArray[np.intp], costs: RelaxationCosts, bounds: Float64, limit: float
    ) -> None:
        """Solve one layout's program and price its duals for all `rows` of the class."""
        layout_class, kept = self._class(key)
        self.programs += 1
        found = Relaxation(layout_class, costs.rows(np.array([row]))).duals(limit)
        if not found:
            return
        alive = rows[bounds[rows] <= limit]
        bounds[alive] = np.maximum(bounds[alive], dual_bounds(found[-1], costs.rows(alive)))
        kept.append(found[-1])
        del kept[:-MOST_DUALS]
