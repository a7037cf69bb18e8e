"""Tables from floating-point costs against the exact ones, entry by entry, on models and clusters of the catalogue."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from prism_cp.inputs.instance import Instance
from prism_cp.inputs.load import load_instance
from prism_cp.integer_tables import CostModel, build_stage_problem, optimistic_stage_problem, row_of
from prism_cp.layouts.admissible import AdmissibleLayouts, layout_at

INSTANCES = Path(__file__).parents[2] / "instances"
NAMES = (
    "moe/deepseek-v3-2048xh800",
    "moe/gpt-oss-120b-64xh100",
    "moe/llama4-maverick-512xh100",
    "dense/llama-3.1-405b-16384xh100",
    "ascend/deepseek-v3-512x910b",
    "tiny/hybrid-gated-delta-net-4",
    "tiny/mla-mtp-8",
)
LAYOUTS = 10
LARGE = 100_000_000  # from here on the forgiven error is a noticeable part of a unit
LARGER_IS_BETTER = {"capacity", "hideable"}


@cache
def formulas(name: str) -> tuple[Instance, CostModel]:
    instance = load_instance(INSTANCES / f"{name}.yaml")
    return instance, CostModel(instance)


def entries(value: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """Every integer inside a stage problem, by dotted path."""
    if is_dataclass(value):
        for field in fields(value):
            yield from entries(getattr(value, field.name), f"{path}.{field.name}")
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            yield from entries(item, f"{path}.{index}")
    elif isinstance(value, int):
        yield path, value


@pytest.mark.parametrize("name", NAMES)
def test_no_entry_is_worse_than_the_exact_one(name: str) -> None:
    instance, model = formulas(name)
    admissible = AdmissibleLayouts(instance)
    number = len(admissible.cells["tp"])
    cells = np.array(sorted(random.Random(7).sample(range(number), min(LAYOUTS, number))))
    columns, _ = admissible.expand(cells)
    rows = random.Random(8).sample(range(len(columns["tp"])), min(LAYOUTS, len(columns["tp"])))
    costs = model.evaluate(columns)
    better = total = 0
    for row in rows:
        layout = layout_at(columns, row)
        quick = dict(entries(optimistic_stage_problem(instance, layout, model, row_of(costs, row))))
        exact = dict(entries(build_stage_problem(instance, layout, model)))
        assert quick.keys() == exact.keys()
        for key, value in exact.items():
            gain = quick[key] - value if key.rsplit(".", 1)[-1] in LARGER_IS_BETTER else value - quick[key]
            # a part in 10 ** 9 of the largest entries, besides one unit of rounding
            assert 0 <= gain <= 1 + abs(value) * 3e-9, (name, layout, key, quick[key], value)
            better += gain > 0 and value < LARGE
            total += value < LARGE
    assert better <= total // 100  # float errors reach a whole unit only now and then
