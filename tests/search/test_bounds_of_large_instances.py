"""Bounds over whole batches of layouts of large instances, held against plans that annealing found without them."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from prism_cp.engine import early_plan
from prism_cp.inputs.layout import SCHEDULES, Layout
from prism_cp.inputs.load import load_instance
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.layouts.admissible import AdmissibleLayouts
from prism_cp.layouts.memory_bounds import hopeless_cells
from prism_cp.partition import applicable, partition_bound
from prism_cp.relaxation import RelaxationBounds
from prism_cp.search.candidates import Batch, Candidates, never
from prism_cp.search.solve import solve_instance

LARGE = ("moe/deepseek-v3-2048xh800", "moe/qwen3-235b-256xh100", "ascend/deepseek-v3-512x910b")
CELLS = 400  # of one batch
BESIDE = 60  # layouts bounded together with those that have plans
MOST_OPERATIONS = 20_000  # of a schedule; annealing takes long on longer ones
EVERY = ("layout.schedule=all", "layout.vpp=[1,2,3,4]")


@functools.cache
def opened(path: str) -> tuple[Candidates, CostModel]:
    instance = load_instance(f"instances/{path}.yaml", EVERY)
    costs = CostModel(instance)
    return Candidates(AdmissibleLayouts(instance), costs), costs


def some_batch(candidates: Candidates, rng: np.random.Generator) -> tuple[np.ndarray, Batch]:
    """Layouts of some cells, half of them among those of least bound."""
    order = candidates.order
    cells = np.append(rng.choice(order[: 20 * CELLS], CELLS // 2), rng.choice(order, CELLS // 2))
    columns, cell_of = candidates.admissible.expand(np.unique(cells))
    kept = np.sort(rng.choice(len(cell_of), min(len(cell_of), 40 * CELLS), replace=False))
    batch = Batch(candidates, {name: column[kept] for name, column in columns.items()})
    return cell_of[kept], batch


def plans_of(batch: Batch, rng: np.random.Generator, costs: CostModel, most: int) -> dict[int, tuple[int, Layout]]:
    """Rows for which annealing finds a plan, and what it takes with its barrier: at most so many of a schedule."""
    found: dict[int, tuple[int, Layout]] = {}
    for schedule in range(len(SCHEDULES)):
        rows = np.flatnonzero(batch.columns["schedule"] == schedule)
        quick = rows[np.argsort(batch.bounds_s[rows])][: 8 * most]
        left = most
        for row in (*rng.permutation(quick)[: 2 * most].tolist(), *rng.permutation(rows)[: 2 * most].tolist()):
            layout = batch.layout(int(row))
            problem = build_stage_problem(costs.instance, layout, costs)
            if problem.num_pieces * problem.num_microbatches * 3 > MOST_OPERATIONS or not left:
                continue
            plan = early_plan(problem)
            if plan is not None:
                found[int(row)] = plan[1] + problem.barrier, layout
                left -= 1
            if plan is not None and applicable(problem):
                lower = partition_bound(problem).lower_bound
                assert lower is not None, layout
                assert lower <= plan[1], layout
    return found


def bounds_of(batch: Batch, rows: np.ndarray, target_s: float) -> dict[Layout, float]:
    """What the relaxations leave of the rows, each solved itself or bounded by the duals of others."""
    waiting = RelaxationBounds(batch.candidates.admissible.space.allow_empty_middle_stages)
    batch.postpone(rows, waiting, target_s)
    left: dict[Layout, float] = {}
    while (found := waiting.least(target_s, never)) is not None:
        left[found[1]] = found[0]
        waiting.take(found[1])
    return left


def hold(path: str, seed: int, most: int) -> int:
    """Every bound that a search uses on many layouts at once, on one batch; returns how many plans it was held to."""
    rng = np.random.default_rng(seed)
    candidates, costs = opened(path)
    cells, batch = some_batch(candidates, rng)
    plans = plans_of(batch, rng, costs, most)
    unit = candidates.unit_s
    of_cells = {name: column[cells] for name, column in candidates.admissible.cells.items()}
    hopeless = hopeless_cells(candidates.admissible, costs.memory, candidates.prefix[:, -1].tolist(), of_cells)
    others = np.flatnonzero(batch.others())
    with_plans = np.intersect1d(others, list(plans))
    others = np.union1d(rng.choice(others, min(len(others), BESIDE), replace=False), with_plans)
    unlimited = bounds_of(batch, others, 1e9)
    for row, (value, layout) in plans.items():
        assert not hopeless[row], layout
        assert candidates.cell_bounds[cells[row]] <= value * unit * (1 + 1e-9), layout
        assert batch.bounds_s[row] <= value * unit * (1 + 1e-9), layout
        if row in others:
            assert unlimited[layout] <= value * unit * (1 + 1e-9), layout
            assert layout in bounds_of(batch, others, value * unit * (1 + 1e-9)), layout
        else:
            assert batch.possible(np.array([row]), value + 1)[0], layout
            assert batch.tighten(np.array([row]))[0] <= value * unit * (1 + 1e-9), layout
    return len(plans)


@pytest.mark.parametrize("path", LARGE)
def test_no_bound_exceeds_a_plan(path: str) -> None:
    assert hold(path, 0, 1) >= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 7))
@pytest.mark.parametrize("path", LARGE)
def test_no_bound_exceeds_a_plan_often(path: str, seed: int) -> None:
    assert hold(path, seed, 4) >= 1


@pytest.mark.slow
def test_a_part_is_never_better_than_the_whole() -> None:
    """The best layout of all is found, too, when most others are ruled out from the start."""
    path = f"instances/{LARGE[0]}.yaml"
    whole = solve_instance(load_instance(path, EVERY[:1]))
    part = solve_instance(load_instance(path, ["layout.schedule=interleaved", "layout.pp=2", "layout.vpp=2"]))
    assert whole.proved
    assert part.proved
    assert whole.objective is not None
    assert part.objective is not None
    assert whole.objective <= part.objective
