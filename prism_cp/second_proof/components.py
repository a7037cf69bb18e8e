"""Second proof room: ranks that must be decided together, and which layers their pieces can hold."""

from __future__ import annotations

from dataclasses import dataclass

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from prism_cp.stage_problem import StageProblem

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class Component:
    """Ranks that share pieces, directly or over others.

    Attributes
    ----------
    ranks : tuple of int
    pieces : tuple of int
        In the order of the chain.
    stages : tuple of (tuple of int)
        The virtual stages that execute each of the pieces.
    """

    ranks: tuple[int, ...]
    pieces: tuple[int, ...]
    stages: tuple[tuple[int, ...], ...]

    @property
    def all_stages(self) -> tuple[int, ...]:
        """Virtual stages of all pieces, piece after piece."""
        return tuple(stage for stages in self.stages for stage in stages)


def components(problem: StageProblem) -> tuple[Component, ...]:
    """The connected components of ranks and pieces, by their first rank."""
    graph = nx.Graph()
    graph.add_nodes_from(("rank", rank) for rank in range(len(problem.ranks)))
    graph.add_edges_from((("rank", stage.rank), ("piece", stage.piece)) for stage in problem.virtual_stages)
    found = []
    for nodes in nx.connected_components(graph):
        ranks = tuple(sorted(number for kind, number in nodes if kind == "rank"))
        pieces = tuple(sorted(number for kind, number in nodes if kind == "piece"))
        stages = tuple(
            tuple(i for i, stage in enumerate(problem.virtual_stages) if stage.piece == piece) for piece in pieces
        )
        found.append(Component(ranks, pieces, stages))
    return tuple(sorted(found, key=lambda component: component.ranks))


def piece_contents(problem: StageProblem) -> tuple[Int64, ...]:
    """Layers of every kind [contents, kinds] that each piece can hold: what lies between two positions of the chain."""
    prefix = np.array(problem.prefix_counts, np.int64)
    least = np.append(0, np.cumsum(problem.min_layers))
    most = np.append(0, np.cumsum(problem.max_layers))
    length, contents = len(problem.layers), []
    for piece in range(problem.num_pieces):
        first = max(int(least[piece]), length - int(most[-1] - most[piece]))
        last = min(int(most[piece]), length - int(least[-1] - least[piece]))
        held = [
            prefix[:, start + size] - prefix[:, start]
            for start in range(first, last + 1)
            for size in range(problem.min_layers[piece], problem.max_layers[piece] + 1)
            if start + size <= length - int(least[-1] - least[piece + 1])
        ]
        contents.append(np.unique(np.array(held, np.int64).reshape(-1, problem.num_kinds), axis=0))
    return tuple(contents)
