"""Checker: right plans pass, and a plan changed in any one field does not."""

from __future__ import annotations

import ast
import copy
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import prism_cp
from prism_cp.breakdown import fullest_rows
from prism_cp.check import NOT_CHECKABLE, check_plan, replayed_live_vectors
from prism_cp.check_layout import layout_faults
from prism_cp.errors import PlanError
from prism_cp.inputs.load import instance_from_mapping
from prism_cp.layouts.admissible import all_layouts
from prism_cp.pipeline import live_vectors, schedule_names
from prism_cp.plan import Plan, plan_from_json
from prism_cp.plan_builder import build_plan
from prism_cp.stage_problem import rank_memories
from tests.random_instances import random_assignment
from tests.random_problems import random_stage_problem
from tests.sample_plan import LAYOUT, TABLES, infeasible_plan, sample_instance, sample_plan, sample_result

PACKAGE = Path(prism_cp.__file__).parent


def findings(plan: Plan) -> list[str]:
    return [str(finding) for finding in check_plan(plan, sample_instance(), tables=TABLES).findings]


@pytest.mark.parametrize("plan", [sample_plan, infeasible_plan])
def test_right_plans_pass(plan):
    assert findings(plan()) == []


# -- tampering ---------------------------------------------------------------------------------------------------------

Path_ = tuple[str | int, ...]


def leaves(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Paths of all leaves; an empty container counts as one."""
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    children = list(items)
    if not children:
        yield path
    for key, inner in children:
        yield from leaves(inner, (*path, key))


def containers(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Paths of all non-empty lists and mappings below the root."""
    if isinstance(value, dict | list):
        if path and value:
            yield path
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from containers(inner, (*path, key))


def at(document: Any, path: Path_) -> Any:
    for key in path:
        document = document[key]
    return document


def other_values(value: Any) -> list[Any]:
    """Values that a tamperer could put there instead."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1] + ([value - 1] if value > 0 else [])
    if isinstance(value, float):
        return [value * 1.001 + 1e-6, None]
    if isinstance(value, str):
        return [value + "x"]
    return [1, "x"] if value is None else [[1], {"x": 1}]


def uncheckable(path: Path_) -> bool:
    names = [str(key) for key in path]
    for pattern in NOT_CHECKABLE:
        parts = pattern.split(".")
        if len(names) >= len(parts) and all(p in ("*", n) for p, n in zip(parts, names, strict=False)):
            return True
    return False


def is_same(document: Any) -> bool:
    try:
        return plan_from_json(json.dumps(document)) == sample_plan()
    except PlanError:
        return False


def is_other_legal_layout(document: Any, path: Path_) -> bool:
    """Whether the change only names another legal layout as one that has lost, without a plan to compare."""
    if path[0] != "top_k" or path[2] != "layout":
        return False
    entry = plan_from_json(json.dumps(document)).top_k[int(path[1])]
    return entry.counts is None and layout_faults(sample_instance(), entry.layout.layout()) == []


def is_noticed(document: Any) -> bool:
    try:
        plan = plan_from_json(json.dumps(document))
    except PlanError:
        return True
    return not check_plan(plan, sample_instance(), tables=TABLES).ok


@pytest.mark.parametrize("plan", [sample_plan, infeasible_plan])
def test_every_changed_field_is_noticed(plan):
    document = json.loads(plan().to_json())
    missed, tried = [], 0
    for path in leaves(document):
        if uncheckable(path):
            continue
        for value in other_values(at(document, path)):
            tampered = copy.deepcopy(document)
            at(tampered, path[:-1])[path[-1]] = value
            tried += 1
            if not is_noticed(tampered) and not is_other_legal_layout(tampered, path):
                missed.append((path, value))
    assert missed == []
    assert tried > 100


def test_every_dropped_or_repeated_entry_is_noticed():
    document = json.loads(sample_plan().to_json())
    missed = []
    for path in containers(document):
        container = at(document, path)
        # A further layout less, or one certificate level less, is a smaller claim and no wrong one.
        if uncheckable(path) or path in (("top_k",), ("certificate", "levels")):
            continue
        for key in list(container) if isinstance(container, dict) else range(len(container)):
            tampered = copy.deepcopy(document)
            del at(tampered, path)[key]
            # Dropping a default of the embedded instance changes nothing.
            same = path[0] == "instance" and is_same(tampered)
            if not uncheckable((*path, key)) and not same and not is_noticed(tampered):
                missed.append((*path, key))
        if isinstance(container, list):
            tampered = copy.deepcopy(document)
            at(tampered, path).append(container[-1])
            if not is_noticed(tampered):
                missed.append((*path, "appended"))
    assert missed == []


def test_what_is_not_checkable_is_really_left_alone():
    document = json.loads(sample_plan().to_json())
    for change in (("seed", 4), ("notes", []), ("versions", {})):
        assert not is_noticed({**document, change[0]: change[1]})


# -- claims that are consistent in themselves but wrong ----------------------------------------------------------------


def changed(plan: Plan, **changes: Any) -> Plan:
    return Plan.model_validate({**plan.model_dump(), **changes})


def test_a_false_proof_is_noticed():
    plan = sample_plan()
    bound = plan.objective - 10
    document = {"bound": bound, "bound_s": bound * plan.time_unit_s, "gap": 10 / plan.objective}
    assert any(text.startswith("proved:") for text in findings(changed(plan, **document)))
    levels = plan.certificate.model_copy(update={"levels": ()})
    honest = changed(plan, **document, proved=False, status="feasible", certificate=levels)
    assert findings(honest) == []


def test_a_bound_above_the_plan_is_noticed():
    plan = sample_plan()
    bound = plan.objective + 10
    document = {"bound": bound, "bound_s": bound * plan.time_unit_s, "gap": -10 / plan.objective}
    assert any("above the objective" in text for text in findings(changed(plan, **document)))


def test_a_plan_that_does_not_fit_is_noticed():
    instance = sample_instance()
    result = sample_result()
    small = instance_from_mapping(
        {**json.loads(instance.model_dump_json()), "layout": {"recompute": ["none", "mla_up_proj", "full"]}},
        ["cluster.device.memory_bytes=900000000"],
    )
    plan = build_plan(small, replace(result, others=()), tables=TABLES)
    report = check_plan(plan, small, tables=TABLES)
    assert any("holds" in str(finding) and "memory units" in str(finding) for finding in report.findings)


def test_a_better_alternative_contradicts_the_claim():
    plan = sample_plan()
    other = plan.top_k[0].model_copy(
        update={"ending": "no_better", "lower_bound": 1, "lower_bound_s": plan.time_unit_s}
    )
    assert any("below the bound" in text for text in findings(changed(plan, top_k=(other,))))


def test_a_plan_of_another_instance_is_refused_with_both_names():
    other = sample_instance().model_copy(update={"name": "another"})
    with pytest.raises(PlanError, match=r"'sample'.*'another'"):
        check_plan(sample_plan(), other, tables=TABLES)


# -- legality ----------------------------------------------------------------------------------------------------------


def test_every_admissible_layout_is_legal_and_its_neighbours_are_judged_alike():
    """Two independent statements of the rules agree on all layouts one change away from an admissible one."""
    instance = sample_instance()
    admissible = set(all_layouts(instance))
    assert len(admissible) > 50
    for layout in admissible:
        assert layout_faults(instance, layout) == []
    changes = {
        "tp": (1, 2, 3, 4, 8, 16), "sp": (False, True), "cp": (1, 2), "cp_comm": ("p2p", "a2a", "ring"),
        "ep": (1, 2, 3, 4, 8, 16), "etp": (1, 2), "dp": (1, 2, 4, 8), "pp": (1, 2, 4, 8), "vpp": (1, 2),
        "mbs": (1, 2), "zero": (0, 1, 2, 3), "schedule": ("1f1b", "gpipe", "zb"), "num_microbatches": (1, 2, 4, 8, 16),
    }  # fmt: skip
    judged = 0
    for layout in admissible:
        for field, values in changes.items():
            for value in values:
                neighbour = replace(layout, **{field: value})
                assert (layout_faults(instance, neighbour) == []) == (neighbour in admissible), neighbour
                judged += neighbour not in admissible
    assert judged > 500


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tp": 3}, "tp"),
        ({"ep": 3}, "ep"),
        ({"num_microbatches": 7}, "num_microbatches"),
        ({"vpp": 2}, "schedule"),
        ({"schedule": "unknown"}, "schedule"),
        ({"etp": 2}, "etp"),
        ({"cp_comm": "ring"}, "cp_comm"),
    ],
)
def test_faults_name_the_field(change, field):
    assert field in [name for name, _ in layout_faults(sample_instance(), replace(LAYOUT, **change))]


# -- memory moments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", schedule_names())
def test_replayed_live_vectors_find_the_same_fullest_moment(schedule):
    """The solvers look at Pareto-maximal vectors, the checker at all: the largest memory of every rank is the same."""
    rng = random.Random(3)
    for _ in range(12):
        problem = random_stage_problem(rng, schedules=(schedule,), max_microbatches=10)
        plan = random_assignment(problem, rng)
        vectors = live_vectors(schedule, problem.pp, problem.vpp, problem.num_microbatches)
        fullest = fullest_rows(rank_memories(problem, plan, vectors))
        replayed = fullest_rows(rank_memories(problem, plan, replayed_live_vectors(problem)))
        assert [row.total for row in fullest] == [row.total for row in replayed]


# -- independence ------------------------------------------------------------------------------------------------------


def imported_modules(path: Path) -> set[str]:
    """Modules of this package that a file imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == "prism_cp"}


def reachable(start: str) -> set[str]:
    """Everything of this package that importing `start` may import, functions' own imports included."""
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        base = PACKAGE.parent.joinpath(*name.split("."))
        file = base.with_suffix(".py") if base.with_suffix(".py").is_file() else base / "__init__.py"
        if name in seen or not file.is_file():
            continue
        seen.add(name)
        waiting += imported_modules(file)
        parent = name.rpartition(".")[0]
        if parent:
            waiting.append(parent)
    return seen


def test_the_checker_imports_nothing_of_the_solver():
    modules = reachable("prism_cp.check")
    assert "prism_cp.check_layout" in modules
    assert "prism_cp.pipeline.reference" in modules
    forbidden = ("prism_cp.cp", "prism_cp.search", "prism_cp.baselines", "prism_cp.partition", "prism_cp.certify")
    assert [name for name in sorted(modules) if name.startswith(forbidden)] == []


def test_the_walk_would_notice_the_solver():
    assert any(name.startswith("prism_cp.search") for name in reachable("prism_cp.cli.running"))
