"""Baselines: ways to find a plan without proof, one a file, by name; the exhaustive oracle is among them."""

from __future__ import annotations

from collections.abc import Callable

from prism_cp.baselines.exhaustive import exhaustive, exhaustive_layouts
from prism_cp.baselines.uniform import uniform
from prism_cp.stage_problem import Assignment, StageProblem

Baseline = Callable[[StageProblem], Assignment | None]


def _oracle(problem: StageProblem) -> Assignment | None:
    return exhaustive(problem).assignment


# Anything that maps a stage problem to a plan (or None) can be added; its plans are checked like all others.
BASELINES: dict[str, Baseline] = {"uniform": uniform, "exhaustive": _oracle}

__all__ = ["BASELINES", "Baseline", "exhaustive", "exhaustive_layouts", "uniform"]
