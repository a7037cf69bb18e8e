"""Cells that are left out for their memory: never one with a plan that fits, and most of those without."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from prism_cp.baselines.exhaustive import exhaustive
from prism_cp.formulas.memory import memory_expressions
from prism_cp.formulas.overheads import capacity_bytes
from prism_cp.inputs.layout import SCHEDULES
from prism_cp.inputs.load import instance_from_mapping
from prism_cp.layouts.admissible import AdmissibleLayouts, layout_at
from prism_cp.layouts.memory_bounds import hopeless_cells
from prism_cp.search.solve import solve_instance
from tests.random_instances import make_case, random_cases, tighten


@pytest.mark.parametrize("seed", range(860, 868))
def test_no_cell_with_a_plan_that_fits_is_left_out(seed: int) -> None:
    """Capacities are just what some plan needs, in units down to single bytes."""
    rng = random.Random(seed)
    memory = None
    for case in random_cases(seed, 8, SCHEDULES if seed % 2 else None):
        memory = memory or memory_expressions(case.instance)  # a family differs in its capacities only
        fine = make_case(case.instance.model_copy(update={"memory_unit_bytes": rng.choice((1, 1024))}), case.costs)
        tight = make_case(tighten(fine, rng), case.costs)
        own = replace(memory, capacity_bytes=capacity_bytes(tight.instance))
        admissible = AdmissibleLayouts(tight.instance)
        hopeless = hopeless_cells(admissible, own, tight.costs.prefix_counts[:, -1].tolist(), admissible.cells)
        columns, cells = admissible.expand(np.flatnonzero(hopeless))
        problems = dict(tight.candidates)
        for row in range(len(cells)):
            assert exhaustive(problems[layout_at(columns, row)]).pipeline_time is None, (seed, layout_at(columns, row))


@pytest.mark.parametrize(("gib", "schedules"), [(2, None), (7, None), (4, ["1f1b", "interleaved", "dualpipev"])])
def test_nothing_fits_is_proved_without_expanding_every_cell(
    gib: int, schedules: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = {
        "name": "tight",
        "model": "llama-3.1-70b",
        "cluster": "256xh100",
        "job": {"gbs": 512, "seq_len": 8192},
        "layout": {"zero": [0, 1], **({} if schedules is None else {"schedule": schedules})},
    }
    instance = instance_from_mapping(raw, [f"cluster.device.memory_bytes={gib * 2**30}"])
    expanded = []
    expand = AdmissibleLayouts.expand

    def counted(self, indices):  # type: ignore[no-untyped-def]
        expanded.append(len(indices))
        return expand(self, indices)

    monkeypatch.setattr(AdmissibleLayouts, "expand", counted)
    result = solve_instance(instance)
    assert (result.status, result.statistics.open) == ("infeasible", 0)
    assert result.statistics.infeasible == result.statistics.layouts_total
    assert sum(expanded) < len(AdmissibleLayouts(instance).cells["tp"]) // 5
