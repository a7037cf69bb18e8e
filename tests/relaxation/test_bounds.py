"""Relaxations never exceed what the best plan takes, and they see memory."""

from __future__ import annotations

import numpy as np
import pytest

from prism_cp.engine import solve_with_engine
from prism_cp.inputs.layout import SCHEDULES
from prism_cp.inputs.load import load_instance
from prism_cp.integer_tables import CostModel
from prism_cp.layouts.admissible import AdmissibleLayouts
from prism_cp.relaxation import brackets_of
from prism_cp.search.candidates import Batch, Candidates
from tests.random_instances import random_cases


def relaxed(candidates: Candidates, target_s: float | None) -> list[tuple[Batch, int, float]]:
    found = []
    for _, columns, _ in candidates.batches():
        batch = Batch(candidates, columns)
        rows = np.flatnonzero(batch.others())
        if len(rows):
            found += [(batch, int(row), float(s)) for row, s in zip(rows, batch.relax(rows, target_s), strict=True)]
    return found


@pytest.mark.parametrize("seed", range(700, 712))
def test_no_bound_exceeds_the_optimum(seed: int) -> None:
    for case in random_cases(seed, 4, SCHEDULES):
        candidates = Candidates(AdmissibleLayouts(case.instance), case.costs)
        problems = dict(case.candidates)
        for target in (None, 1e9):
            for batch, row, bound in relaxed(candidates, target):
                problem = problems[batch.layout(row)]
                best = solve_with_engine(problem).pipeline_time
                if best is not None:
                    assert bound <= (best + problem.barrier) * candidates.unit_s * (1 + 1e-12)


def test_memory_raises_the_bound_and_excludes() -> None:
    """Work alone bounds these layouts only; relaxations exclude some and raise many by a fifth and more."""
    pins = ("schedule=interleaved", "vpp=2", "pp=8", "tp=1", "cp=1", "zero=[1,3]", "mbs=[1,8]", "ep=[1,8]")
    instance = load_instance("instances/moe/qwen3-235b-256xh100.yaml", [f"layout.{pin}" for pin in pins])
    candidates = Candidates(AdmissibleLayouts(instance), CostModel(instance))
    found = relaxed(candidates, 30.0)
    bounds = [bound for _, _, bound in found]
    work = [float(batch.bounds_s[row]) for batch, row, _ in found]
    assert any(np.isinf(bounds))
    assert sum(bound > 1.2 * known for bound, known in zip(bounds, work, strict=True)) >= len(bounds) // 4
    assert all(bound >= known * (1 - 1e-8) for bound, known in zip(bounds, work, strict=True))


def test_brackets_split_at_the_widest_gaps() -> None:
    bracket, lows = brackets_of(np.array([[5.0, 1.0, 1.5, 9.0, 9.5], [2.0, 2.0, 2.0, 2.0, 3.0], [4.0] * 5]))
    assert bracket.tolist() == [[1, 0, 0, 2, 2], [0, 0, 0, 0, 1], [0] * 5]
    assert lows.tolist() == [[1.0, 5.0, 9.0], [2.0, 3.0, np.inf], [4.0, np.inf, np.inf]]
