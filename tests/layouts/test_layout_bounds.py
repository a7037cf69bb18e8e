"""Bounds over many layouts against enumeration: cells, layouts, sharpened bounds, and what `possible` excludes."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from prism_cp.baselines.exhaustive import exhaustive
from prism_cp.inputs.load import load_instance
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.layouts.admissible import AdmissibleLayouts
from prism_cp.search.candidates import KERNEL_FIELDS, Batch, Candidates
from tests.random_instances import Case, make_case, random_cases, tighten

INSTANCES = Path(__file__).parents[2] / "instances"
FAMILY = 8


def optima(case: Case, batch: Batch) -> list[int | None]:
    """Optimum (pipeline time plus barrier, time units) of every layout of a batch."""
    values: list[int | None] = []
    for row in range(batch.size):
        problem = build_stage_problem(case.instance, batch.layout(row), case.costs)
        time = exhaustive(problem).pipeline_time
        values.append(None if time is None else time + problem.barrier)
    return values


@pytest.mark.parametrize("seed", range(500, 512))
def test_no_bound_exceeds_the_optimum_and_nothing_achievable_is_excluded(seed: int) -> None:
    for index, case in enumerate(random_cases(seed, FAMILY)):
        name = f"family {seed}, instance {index}"
        candidates = Candidates(AdmissibleLayouts(case.instance), case.costs)
        unit = case.instance.time_unit_s
        seen = 0
        for cell_index, columns, _ in candidates.batches():
            batch = Batch(candidates, columns)
            rows = np.arange(batch.size)
            sharper = batch.tighten(rows)
            fits = batch.possible(rows, None)
            assert (sharper >= batch.bounds_s).all()
            for row, optimum in enumerate(optima(case, batch)):
                seen += 1
                if optimum is None:
                    continue
                where = f"{name}, {batch.layout(row)}"
                assert fits[row], where
                for bound in (candidates.cell_bounds[cell_index[row]], batch.bounds_s[row], sharper[row]):
                    assert bound <= optimum * unit, where
                assert batch.possible(rows[row : row + 1], optimum + 1)[0], where
        assert seen == len(case.candidates)


@pytest.mark.parametrize("seed", range(520, 530))
def test_a_plan_that_just_fits_is_possible(seed: int) -> None:
    """Floating-point memory must not exclude what fits to the byte; sizes with thirds are the hard ones."""
    rng = random.Random(seed)
    for case in random_cases(seed, FAMILY):
        for unit in (1, 1024):
            fine = make_case(case.instance.model_copy(update={"memory_unit_bytes": unit}), case.costs)
            tight = make_case(tighten(fine, rng), case.costs)
            candidates = Candidates(AdmissibleLayouts(tight.instance), tight.costs)
            for _, columns, _ in candidates.batches():
                batch = Batch(candidates, columns)
                fits = batch.possible(np.arange(batch.size), None)
                for row, optimum in enumerate(optima(tight, batch)):
                    assert fits[row] or optimum is None, (seed, batch.layout(row))


def test_bounds_are_worth_something() -> None:
    ratios = []
    excluded = infeasible = 0
    for seed in (530, 531, 532):
        for case in random_cases(seed, FAMILY):
            candidates = Candidates(AdmissibleLayouts(case.instance), case.costs)
            for _, columns, _ in candidates.batches():
                batch = Batch(candidates, columns)
                rows = np.arange(batch.size)
                fits, sharper = batch.possible(rows, None), batch.tighten(rows)
                for row, optimum in enumerate(optima(case, batch)):
                    infeasible += optimum is None
                    excluded += optimum is None and not fits[row]
                    if optimum is not None:
                        ratios.append(sharper[row] / (optimum * case.instance.time_unit_s))
    assert len(ratios) >= 40
    assert np.median(ratios) >= 0.5
    assert excluded >= infeasible // 2


def test_bound_of_the_rest_is_the_least_cell_bound() -> None:
    for case in random_cases(540, FAMILY):
        candidates = Candidates(AdmissibleLayouts(case.instance), case.costs)
        size = len(candidates.order)
        for position in range(size):
            rest = candidates.bound_of_rest(position)
            assert rest is not None
            least = min(candidates.cell_bounds[cell] for cell in candidates.order[position:])
            assert rest * case.instance.time_unit_s <= least < (rest + 1) * case.instance.time_unit_s * (1 + 1e-9)
        assert candidates.bound_of_rest(size) is None


# -- what a layer's times depend on ------------------------------------------------------------------------------------


@cache
def catalogue(name: str) -> tuple[AdmissibleLayouts, CostModel]:
    instance = load_instance(INSTANCES / f"{name}.yaml")
    return AdmissibleLayouts(instance), CostModel(instance)


KERNEL_CASES = (
    "moe/deepseek-v3-2048xh800",
    "moe/qwen3-235b-256xh100",
    "dense/llama-3.1-70b-64xh100",
    "ascend/deepseek-v3-512x910b",
    "tiny/hybrid-gated-delta-net-4",
    "tiny/tied-embeddings-4",
)


@pytest.mark.parametrize("name", KERNEL_CASES)
def test_times_below_zero_2_depend_on_the_kernel_fields_only(name: str) -> None:
    admissible, model = catalogue(name)
    rng = np.random.default_rng(3)
    cells = admissible.cells
    picked = rng.choice(len(cells["tp"]), 40)
    columns = {field: column[picked] for field, column in cells.items()}
    columns |= {"zero": np.zeros(40, np.int64), "vpp": np.ones(40, np.int64), "schedule": np.zeros(40, np.int64)}
    changed = dict(columns)
    for field in columns.keys() - {*KERNEL_FIELDS, "zero", "schedule"}:
        changed[field] = rng.choice([1, 2, 4, 6, 16], 40)
    changed["zero"] = rng.choice([0, 1], 40)
    sharded = {**changed, "zero": rng.choice([2, 3], 40)}
    one, other, more = (model.evaluate(rows) for rows in (columns, changed, sharded))
    for place in range(len(one.kinds) + 2):
        first, second, third = ((*costs.kinds, costs.embedding, costs.head)[place] for costs in (one, other, more))
        for part in ("forward_s", "input_grad_s", "weight_grad_s"):
            for a, b, c in zip(getattr(first, part), getattr(second, part), getattr(third, part), strict=True):
                np.testing.assert_allclose(np.broadcast_to(a, 40), np.broadcast_to(b, 40), rtol=1e-12)
                assert (np.broadcast_to(c, 40) >= np.broadcast_to(b, 40) * (1 - 1e-12)).all()
