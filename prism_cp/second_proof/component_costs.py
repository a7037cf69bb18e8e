"""Second proof room: what a component costs whatever its strategies: heads, reductions, room for activations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from prism_cp.pipeline import live_vectors
from prism_cp.second_proof.components import Component
from prism_cp.stage_problem import EndCosts, KindCosts, StageProblem, live_counts

Int64 = NDArray[np.int64]


class ComponentCosts:
    """Costs of a component by what its pieces hold, in the problem's units of time and memory.

    Parameters
    ----------
    contents : sequence of int64 arrays [contents, kinds]
        Of every piece of the problem.

    Attributes
    ----------
    contents : list of int64 arrays [contents, kinds]
        Of every piece of the component.
    live : list of live vectors of every rank
    rows : list of (int, dict of int to (int, int))
        Memory rows: the rank, and by virtual stage the micro-batches whose activations are kept, and those whose
        weight gradients wait.
    """

    def __init__(self, problem: StageProblem, component: Component, contents: Sequence[Int64]) -> None:
        self.problem, self.component = problem, component
        self.contents = [contents[piece] for piece in component.pieces]
        self.live = live_vectors(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)
        self.rows: list[tuple[int, dict[int, tuple[int, int]]]] = []
        for rank in component.ranks:
            own = [i for i, stage in enumerate(problem.virtual_stages) if stage.rank == rank]
            for vector in self.live[rank]:
                counts = zip(*live_counts(vector, len(own)), strict=True)
                self.rows.append((rank, dict(zip(own, counts, strict=True))))

    def heads(self, content: Int64) -> tuple[Int64, Int64]:
        """Time before the first forward, and time of the gradient reduction [ranks]; `content` is a row per piece."""
        ranks = list(self.component.ranks)
        head = np.array([self.problem.ranks[rank].head for rank in ranks], np.int64)
        reduce = np.zeros(len(ranks), np.int64)
        for k, i, stage in self.stages():
            r, held = ranks.index(self.problem.virtual_stages[i].rank), self.contents[k][content[k]].tolist()
            head[r] += stage.head + sum(n * kind.head for n, kind in zip(held, self.kinds(i), strict=True))
            reduce[r] += stage.reduce + sum(n * kind.reduce for n, kind in zip(held, self.kinds(i), strict=True))
        return head, reduce

    def stages(self) -> Iterator[tuple[int, int, EndCosts]]:
        """Piece of the component, virtual stage, and what that carries besides layers."""
        for k, stages in enumerate(self.component.stages):
            for i in stages:
                yield k, i, self.problem.virtual_stages[i].ends

    def kinds(self, stage: int) -> tuple[KindCosts, ...]:
        """What layers of each kind cost on a virtual stage."""
        return self.problem.tables[self.problem.virtual_stages[stage].table]

    def least_tail(self) -> Int64:
        """Time [ranks] of the last bucket, which nothing hides."""
        return np.array([self.problem.ranks[rank].last_bucket for rank in self.component.ranks], np.int64)

    def hidden(self, content: Int64, least: Callable[[Iterable[int]], int]) -> Int64:
        """Gradient reduction [ranks] that is hidden at least, or at most."""
        ranks, result = list(self.component.ranks), self.ends_hide()
        for k, i, _ in self.stages():
            layer = [least(s.hideable for s in kind.strategies) for kind in self.kinds(i)]
            result[ranks.index(self.problem.virtual_stages[i].rank)] += int(
                self.contents[k][content[k]] @ np.array(layer, np.int64)
            )
        return result

    def ends_hide(self) -> Int64:
        """Gradient reduction [ranks] hidden by what virtual stages carry besides layers."""
        ranks = list(self.component.ranks)
        result = np.zeros(len(ranks), np.int64)
        for _, i, ends in self.stages():
            result[ranks.index(self.problem.virtual_stages[i].rank)] += ends.hideable
        return result

    def memory_room(self, content: Int64) -> Int64 | None:
        """Memory [rows] left for activations of layers and for transients; None when nothing fits."""
        static: dict[int, int] = {}
        for rank in self.component.ranks:
            own = [(k, i, ends) for k, i, ends in self.stages() if self.problem.virtual_stages[i].rank == rank]
            total = self.problem.ranks[rank].fixed
            optimizer, held = 0, set()
            for k, i, ends in own:
                layers = self.contents[k][content[k]].tolist()
                total += ends.static + sum(n * kind.static for n, kind in zip(layers, self.kinds(i), strict=True))
                optimizer += ends.optimizer_step
                optimizer += sum(n * kind.optimizer_step for n, kind in zip(layers, self.kinds(i), strict=True))
                held |= {kind for kind, n in enumerate(layers) if n}
            indices = {i for _, i, _ in own}
            total += sum(b.memory for b in self.problem.buffers if b.kinds & held or b.virtual_stages & indices)
            if total + optimizer > self.problem.ranks[rank].capacity:
                return None
            static[rank] = total
        room = []
        for rank, counts in self.rows:
            left = self.problem.ranks[rank].capacity - static[rank]
            for k, i, ends in self.stages():
                if i in counts:
                    whole, waiting = counts[i]
                    layers = self.contents[k][content[k]].tolist()
                    deferred = sum(n * kind.deferred for n, kind in zip(layers, self.kinds(i), strict=True))
                    left -= whole * ends.activation + waiting * (ends.deferred + deferred)
            room.append(left)
        return np.array(room, np.int64)
