"""Relaxations never exceed what the best plan takes, and they see memory."""

from __future__ import annotations

import numpy as np
import pytest

from prism_cp.engine import solve_with_engine
from prism_cp.inputs.layout import SCHEDULES, Layout
from prism_cp.inputs.load import load_instance
from prism_cp.integer_tables import CostModel
from prism_cp.layouts.admissible import AdmissibleLayouts
from prism_cp.relaxation import RelaxationBounds, brackets_of, lower_hull
from prism_cp.relaxation.costs import TRANSIENT
from prism_cp.search.candidates import Batch, Candidates, never
from tests.random_instances import random_cases


def relaxed(candidates: Candidates, target_s: float) -> tuple[dict[Layout, float], dict[Layout, float]]:
    """Bounds by work alone and bounds by relaxations, in seconds; infinity where nothing fits."""
    waiting = RelaxationBounds(candidates.admissible.space.allow_empty_middle_stages)
    work, bounds = {}, {}
    for _, columns, _ in candidates.batches():
        batch = Batch(candidates, columns)
        rows = np.flatnonzero(batch.others())
        if len(rows):
            work.update({batch.layout(int(row)): float(batch.bounds_s[row]) for row in rows})
            batch.postpone(rows, waiting, target_s)
    bounds = dict.fromkeys(work, float("inf"))
    while (found := waiting.least(target_s, never)) is not None:
        bounds[found[1]] = found[0]
        waiting.take(found[1])
    return work, bounds


@pytest.mark.parametrize("seed", range(700, 712))
def test_no_bound_exceeds_the_optimum(seed: int) -> None:
    for case in random_cases(seed, 4, SCHEDULES):
        candidates = Candidates(AdmissibleLayouts(case.instance), case.costs)
        problems = dict(case.candidates)
        for layout, bound in relaxed(candidates, 1e9)[1].items():
            problem = problems[layout]
            best = solve_with_engine(problem).pipeline_time
            if best is not None:
                assert bound <= (best + problem.barrier) * candidates.unit_s * (1 + 1e-12)


def test_memory_raises_the_bound_and_excludes() -> None:
    """Work alone bounds these layouts only; relaxations exclude some and raise many by a fifth and more."""
    pins = ("schedule=interleaved", "vpp=2", "pp=8", "tp=1", "cp=1", "zero=[1,3]", "mbs=[1,8]", "ep=[1,8]")
    instance = load_instance("instances/moe/qwen3-235b-256xh100.yaml", [f"layout.{pin}" for pin in pins])
    candidates = Candidates(AdmissibleLayouts(instance), CostModel(instance))
    work, bounds = relaxed(candidates, 60.0)
    assert any(np.isinf(list(bounds.values())))
    assert sum(bounds[layout] > 1.2 * work[layout] for layout in work) >= len(work) // 4
    assert all(bounds[layout] >= work[layout] * (1 - 1e-8) for layout in work)


@pytest.mark.parametrize(
    ("path", "pins"),
    [
        ("moe/deepseek-v3-2048xh800", ("pp=2", "vpp=[2,4]", "schedule=interleaved", "tp=1", "cp=1")),
        ("moe/qwen3-235b-256xh100", ("pp=8", "vpp=2", "schedule=interleaved", "tp=1", "cp=1", "zero=[1,3]")),
        ("moe/qwen3-235b-256xh100", ("pp=4", "schedule=[zb-v,dualpipe]", "tp=[1,2]", "cp=1", "ep=[1,8]", "zero=1")),
    ],
)
def test_a_layout_costs_the_same_whatever_stands_beside_it(path: str, pins: tuple[str, ...]) -> None:
    """Costs of many layouts at once are the costs of each of them alone, and brackets hold the layout's transients."""
    instance = load_instance(f"instances/{path}.yaml", [f"layout.{pin}" for pin in pins])
    candidates = Candidates(AdmissibleLayouts(instance), CostModel(instance))
    _, columns, _ = next(candidates.batches())
    batch = Batch(candidates, columns)
    rows = np.arange(batch.size)
    together = batch.relaxation_costs(rows, 60.0)
    present = together.layers > 0
    for row in rows[:: max(1, batch.size // 20)]:
        alone = Batch(candidates, {name: column[row : row + 1] for name, column in columns.items()})
        own = alone.relaxation_costs(np.array([0]), 60.0)
        for name in ("strategies", "bracket", "lows", "most", "kinds", "ends", "layouts"):
            assert np.array_equal(getattr(together, name)[row], getattr(own, name)[0]), name
        transient = together.strategies[row, present, :, TRANSIENT]
        lows = together.lows[row]
        assert lows[0] == transient.min()
        assert np.array_equal(np.searchsorted(lows, transient, side="right") - 1, together.bracket[row, present])


def test_brackets_split_at_the_widest_gaps() -> None:
    bracket, lows = brackets_of(np.array([[5.0, 1.0, 1.5, 9.0, 9.5], [2.0, 2.0, 2.0, 2.0, 3.0], [4.0] * 5]))
    assert bracket.tolist() == [[1, 0, 0, 2, 2], [0, 0, 0, 0, 1], [0] * 5]
    assert lows.tolist() == [[1.0, 5.0, 9.0], [2.0, 3.0, np.inf], [4.0, np.inf, np.inf]]
    bracket, lows = brackets_of(np.array([[1.0, 5.0, 6.0, 7.0]]), 2)
    assert (bracket.tolist(), lows.tolist()) == ([[0, 1, 1, 1]], [[1.0, 5.0]])


@pytest.mark.parametrize("seed", range(20))
def test_hull_is_what_prices_choose(seed: int) -> None:
    """Under every price on memory some point of the hull is the cheapest, and each is the only one under some price."""
    rng = np.random.default_rng(seed)
    time, memory = rng.integers(0, 40, 15).astype(float), rng.integers(0, 40, 15).astype(float)
    hull = lower_hull(time, memory)
    assert np.all(np.diff(time[hull]) > 0)
    assert np.all(np.diff(memory[hull]) < 0)
    prices = np.append(np.linspace(0, 50, 2_000), 1e6)
    costs = time[None] + prices[:, None] * memory[None]
    assert np.allclose(costs[:, hull].min(axis=1), costs.min(axis=1))
    between = np.diff(time[hull]) / -np.diff(memory[hull])  # prices at which neighbours cost the same
    assert np.all(np.diff(between) > 0)
