"""Engine room: strategies of a kind that differ by a large step in time, kept apart.

Most strategies differ by little time, and mixtures of them are close to what whole layers can do. Recomputing a layer's
largest part is another matter: it costs many times as much as everything before it, and a mixture that recomputes a
third of a layer promises what no plan can keep. So the layers on either side of the largest step are counted apart.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from prism_cp.engine.chain import Chain
from prism_cp.stage_problem import KindCosts, StageProblem, StrategyCosts

Int64 = NDArray[np.int64]

LARGE_STEP = 0.5  # of the way from the fastest to the slowest strategy


@dataclass(frozen=True)
class StrategyClasses:
    """A partition of the strategies of every kind.

    Attributes
    ----------
    number : tuple of int64 arrays [strategies], one per kind
        Class of every strategy; classes are numbered over all kinds, those of one kind in a row.
    kind : int64 array [classes]
    """

    number: tuple[Int64, ...]
    kind: Int64

    @property
    def member(self) -> Int64:
        """1 where a strategy, numbered over all kinds, is in a class: int64 array [strategies, classes]."""
        flat = np.concatenate(self.number)
        member: Int64 = (flat[:, None] == np.arange(len(self.kind))).astype(np.int64)
        return member

    def costs(self, kinds: tuple[KindCosts, ...]) -> tuple[KindCosts, ...]:
        """What a layer of every class costs; only the strategies are filled in."""
        return tuple(
            KindCosts("", 0, 0, 0, 0, self._strategies(kinds[kind], number)) for number, kind in enumerate(self.kind)
        )

    def _strategies(self, costs: KindCosts, number: int) -> tuple[StrategyCosts, ...]:
        own = self.number[int(self.kind[number])]
        return tuple(s for s, each in zip(costs.strategies, own, strict=True) if each == number)

    def shares(self, vector: Int64) -> Iterator[tuple[int, ...]]:
        """All ways to split layers of each kind into those of each class."""
        parts = []
        for kind, layers in enumerate(vector.tolist()):
            classes = int(np.count_nonzero(self.kind == kind))
            parts.append(list(_splits(layers, classes)))
        for choice in itertools.product(*parts):
            yield tuple(itertools.chain.from_iterable(choice))


def _splits(layers: int, classes: int) -> Iterator[tuple[int, ...]]:
    if classes == 1:
        yield (layers,)
        return
    for first in range(layers, -1, -1):
        for rest in _splits(layers - first, classes - 1):
            yield (first, *rest)


def one_class_a_kind(problem: StageProblem) -> StrategyClasses:
    """Nothing kept apart."""
    kinds = problem.tables[0]
    numbers = tuple(np.full(len(kind.strategies), number, np.int64) for number, kind in enumerate(kinds))
    return StrategyClasses(numbers, np.arange(problem.num_kinds))


def by_largest_step(problem: StageProblem) -> StrategyClasses:
    """Two classes for every kind with a large step in input-gradient time, the fast ones first; else one."""
    numbers: list[Int64] = []
    kinds: list[int] = []
    for kind, costs in enumerate(problem.tables[0]):
        times = np.array([strategy.input_grad for strategy in costs.strategies], np.int64)
        ordered = np.sort(times)
        steps = np.diff(ordered)
        slow = np.zeros(len(times), np.int64)
        if len(steps) and steps.max() >= LARGE_STEP * (ordered[-1] - ordered[0]) and steps.max() > 0:
            slow = (times > ordered[int(np.argmax(steps))]).astype(np.int64)
        numbers.append(len(kinds) + slow)
        kinds += [kind] * (1 + int(slow.max(initial=0)))
    return StrategyClasses(tuple(numbers), np.array(kinds, np.int64))


def split_chain(chain: Chain, classes: StrategyClasses) -> tuple[Chain, Int64]:
    """A chain whose compositions count the layers of every class, and the composition each was made from.

    Boundaries no longer tell a composition: `numbers` and `local` of the result are empty.
    """
    parts = [list(classes.shares(vector)) for vector in chain.vectors]
    first = np.append(0, np.cumsum([len(each) for each in parts]))
    origin = np.repeat(np.arange(len(parts)), np.diff(first))
    pieces, starts = [], []
    for numbers, masks in zip(chain.pieces, chain.starts, strict=True):
        pieces.append(np.concatenate([np.arange(first[n], first[n + 1]) for n in numbers.tolist()]))
        starts.append(np.repeat(masks, np.diff(first)[numbers], axis=0))
    split = replace(
        chain, vectors=chain.vectors[origin], sizes=chain.sizes[origin], pieces=pieces, starts=starts,
        digits=chain.digits[origin], parts=np.array([part for each in parts for part in each], np.int64),
        numbers=np.full_like(chain.numbers, -1), local=np.full((len(pieces), len(origin)), -1, np.int64),
    )  # fmt: skip
    return split, origin
