"""Engine room: no plan within a target, by dividing items into parts that cuts narrow from both sides.

A walk decides group after group, and a cut sees of the later groups only the least they could add. Here every item is
held against the least of all other groups, for every split of the layers, until no cut tells another one from the rest.
What remains is weighed once; the weighted sum of paths narrows it again. Then it is divided: by the layers that one
group holds, by what its pieces hold, at last in halves. Small parts are walked over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from prism_cp.cp.objective import longest_possible
from prism_cp.engine.complete import HAND_ON_LIMIT
from prism_cp.engine.decide import Decision
from prism_cp.engine.item_memory import layers_of
from prism_cp.engine.leaf import path_of_mixture
from prism_cp.engine.limits import Limits
from prism_cp.engine.mixture import Weigher
from prism_cp.engine.tables import Row, Tables, row_of
from prism_cp.pipeline import PathCut

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

FEW_ITEMS = 2_500  # of all groups of a part, which is walked over before it is weighed
MOST_NODES = 300_000  # of such a walk
TAUGHT_ITEMS = 6_000  # parts with no more items learn the paths of all other parts
SEPARATIONS = 4  # paths learnt from mixtures, per part


@dataclass(frozen=True)
class _Part:
    """Some items of tables that have `paths`: those of the mask, or all; and weights to begin with."""

    tables: Tables
    mask: Mask | None
    paths: dict[PathCut, None]
    weights: Float64 | None


@dataclass(frozen=True)
class _Run:
    """What `Division.run` was given for all parts."""

    limits: Limits
    best: Callable[[], int | None]
    refined_hand_on: float

    def below_best(self, target: int) -> int:
        """The target, or just below the best pipeline time known."""
        known = self.best()
        return target if known is None else min(target, known - 1)


class Division:
    """A search over the items of some tables; the same as `Decision` from outside.

    Parameters
    ----------
    known
        Paths that the tables hold.
    decide
        Makes a walk over a part's tables, which hold the paths given.

    Attributes
    ----------
    known : dict of PathCut
        The same, and those learnt.
    learnt : list of PathCut
    sums : list of Row
        Weighted sums of the first part.
    bound : int
        Proven for all plans, when the search was exhausted but some choices are undecided.
    parts : int
    """

    def __init__(
        self, tables: Tables, known: Iterable[PathCut], decide: Callable[[Tables, Iterable[PathCut]], Decision]
    ) -> None:
        self.tables, self.known, self._decide = tables, dict.fromkeys(known), decide
        self.learnt: list[PathCut] = []
        self.sums: list[Row] = []
        self.bound = self.parts = 0
        self._longest = longest_possible(tables.problem)
        self._open_bound = self._longest + 1

    def run(
        self,
        target: int,
        limits: Limits,
        best: Callable[[], int | None],
        refined_hand_on: float = HAND_ON_LIMIT,
    ) -> bool | None:
        """False: no plan within the target is left. None: stopped, or undecided.

        Parameters
        ----------
        best
            The best pipeline time known; the target falls below it as the search goes on.
        refined_hand_on
            Deterministic time of the stage model per complete choice.
        """
        run = _Run(limits, best, refined_hand_on)
        stack = [_Part(self.tables, None, dict(self.known), None)]
        while stack:
            if limits.reached():
                return None
            target = run.below_best(target)
            stack += self._look_into(stack.pop(), target, run)
            self.parts += 1
        if self._open_bound <= self._longest:
            self.bound = min(target + 1, self._open_bound)
            return None
        return False

    def _look_into(self, part: _Part, target: int, run: _Run) -> list[_Part]:
        """What is left of a part, divided."""
        narrowed = self._narrowed(part, target)
        if narrowed is None:
            return []
        count, groups = int(narrowed.tables.start[-1]), len(narrowed.tables.items)
        if count == groups or count <= FEW_ITEMS:
            verdict = self._walk(narrowed, target, run, None if count == groups else MOST_NODES)
            if run.limits.reached():
                return [narrowed]
            if verdict is not None:
                return []
        weighed = self._weighed(narrowed, run.below_best(target), run.limits)
        return [] if weighed is None else [replace(weighed, mask=mask) for mask in _divided(weighed.tables)]

    def _narrowed(self, part: _Part, target: int) -> _Part | None:
        """What cuts leave of a part, which first learns the paths of all others if it is small; None: nothing."""
        tables = part.tables if part.mask is None else part.tables.keep(part.mask)
        paths = dict(part.paths)
        if int(tables.start[-1]) <= TAUGHT_ITEMS:
            missing = [path for path in self.known if path not in paths]
            tables.add([row_of(path, tables.problem.p2p) for path in missing])
            paths.update(dict.fromkeys(missing))
        narrowed = tables.narrowed(target)
        return None if narrowed is None else _Part(narrowed, None, paths, part.weights)

    def _walk(self, part: _Part, target: int, run: _Run, most_nodes: int | None) -> bool | None:
        """What a walk says of a part, None when it did not end; what it finds is taken note of."""
        walk = self._decide(part.tables, part.paths)
        verdict = walk.run(target, run.limits, run.best, most_nodes=most_nodes, refined_hand_on=run.refined_hand_on)
        for path in walk.learnt:
            self._note(path)
            part.paths[path] = None
        if verdict is None and walk.bound:
            self._open_bound = min(self._open_bound, walk.bound)
            return True
        return verdict

    def _weighed(self, part: _Part, target: int, limits: Limits) -> _Part | None:
        """The items of a part that the best weighted sum of paths leaves; None: nothing."""
        tables, paths, weights = part.tables, dict(part.paths), part.weights
        weigher = Weigher(tables, self._longest, limits)
        weighing = None
        for _ in range(SEPARATIONS):
            weighing = weigher.weigh((), target, weights)
            if weighing is None or weighing.refuted:
                return None
            weights = weighing.weights
            if weighing.mixture is None:
                break
            value, path = path_of_mixture(tables.problem, weighing.mixture)
            if value <= target or path in paths:
                break
            self._note(path)
            tables.add([row_of(path, tables.problem.p2p)])
            paths[path] = None
        if weighing is not None and weighing.row is not None:
            tables.add([weighing.row])
            if not self.parts:
                self.sums.append(weighing.row)
        narrowed = tables.narrowed(target)
        return None if narrowed is None else _Part(narrowed, None, paths, weights)

    def _note(self, path: PathCut) -> None:
        if path not in self.known:
            self.known[path] = None
            self.learnt.append(path)


def _divided(tables: Tables) -> list[Mask]:
    """Parts by the layers that one group holds, else by what its pieces hold, else halves."""
    layers = [tables.item_delta[start:stop] for start, stop in pairwise(tables.start)]
    sizes = [layers_of(tables.chain, items.group, items.choice).sum(axis=2) for items in tables.items]
    held = [np.unique(each, axis=0, return_inverse=True)[1].reshape(-1) for each in sizes]
    for keys in (layers, held):
        widest = max(range(len(keys)), key=lambda g: len(np.unique(keys[g])))
        if len(np.unique(keys[widest])) > 1:
            return _masks(tables, widest, keys[widest])
    largest = int(np.argmax(np.diff(tables.start)))
    number = np.arange(len(layers[largest]))
    return _masks(tables, largest, (2 * number >= len(number)).astype(np.int64))


def _masks(tables: Tables, group: int, key: Int64) -> list[Mask]:
    """Everything but other values of the key among the items of one group, for each of its values."""
    parts = []
    for value in np.unique(key).tolist():
        mask = np.ones(int(tables.start[-1]), np.bool_)
        mask[tables.start[group] : tables.start[group + 1]] = key == value
        parts.append(mask)
    return parts
