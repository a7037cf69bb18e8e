"""Second proof room: paths of the event graph as linear forms, split by component."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prism_cp.pipeline import PathCut
from prism_cp.second_proof.components import Component
from prism_cp.stage_problem import StageProblem

Int64 = NDArray[np.int64]


class Paths:
    """Paths, each of which ``value <= scale * pipeline time`` of every plan.

    Attributes
    ----------
    cuts : list of PathCut
    times : int64 array [paths, virtual stages, 3]
        Of forward, input-gradient and weight-gradient times.
    head, tail : int64 arrays [paths, ranks]
    constant, scale : int64 arrays [paths]
    """

    def __init__(self, problem: StageProblem, cuts: Sequence[PathCut]) -> None:
        self.cuts = list(dict.fromkeys(cuts))
        self.times = np.stack(
            [np.array([cut.forward, cut.input_grad, cut.weight_grad], np.int64).T for cut in self.cuts]
        )
        self.head = np.array([cut.head for cut in self.cuts], np.int64)
        self.tail = np.array([cut.tail for cut in self.cuts], np.int64)
        self.constant = np.array([cut.p2p * problem.p2p for cut in self.cuts], np.int64)
        self.scale = np.array([cut.scale for cut in self.cuts], np.int64)

    def room(self, target: int) -> Int64:
        """What the components together may take of every path within a time."""
        return self.scale * target - self.constant

    def values(self, component: Component, times: Int64, head: Int64, tail: Int64) -> Int64:
        """Shares [columns, paths] of a component.

        Parameters
        ----------
        times : int64 array [columns, virtual stages of the component, 3]
        head, tail : int64 arrays [columns, ranks of the component]
        """
        own = self.times[:, list(component.all_stages)].reshape(len(self.cuts), -1)
        ranks = list(component.ranks)
        flat = times.reshape(len(times), own.shape[1])
        shares: Int64 = flat @ own.T + head @ self.head[:, ranks].T + tail @ self.tail[:, ranks].T
        return shares
