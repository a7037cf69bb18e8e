"""Fronts: what is asked, what is claimed, and that the claims hold for every cap."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_cp.errors import InstanceError, UsageError
from prism_cp.inputs.load import instance_digest, instance_from_mapping
from prism_cp.search.front import GIB, Front, FrontPoint
from prism_cp.search.front_file import FrontFile
from prism_cp.search.options import SearchOptions
from prism_cp.search.solve import solve_instance
from prism_cp.search.value import plan_value
from tests.sample_plan import INSTANCE, infeasible_plan, sample_plan

UNIT = 2**24  # bytes: 3 GiB are a few hundred units, so that every cap can be tried


@cache
def sample(overrides: tuple[str, ...] = ()):
    return instance_from_mapping({**yaml.safe_load(INSTANCE), "memory_unit_bytes": UNIT}, overrides)


def load(overrides):
    return sample(tuple(overrides))


def point(value: int, objective: int | None, peak_units: int = 0, proved: bool = True) -> FrontPoint:
    """A solved point whose plan has that objective and peak."""
    if objective is None:
        plan = infeasible_plan().model_copy(update={"memory_unit_bytes": UNIT})
    else:
        memory = sample_plan().ranks[0].memory_gib.model_copy(update={"total": peak_units * UNIT / GIB})
        ranks = tuple(rank.model_copy(update={"memory_gib": memory}) for rank in sample_plan().ranks)
        changes = {"objective": objective, "ranks": ranks, "memory_unit_bytes": UNIT, "proved": proved}
        plan = sample_plan().model_copy(update=changes)
    return FrontPoint(value, f"digest of {value}", plan, "", 1.0)


def solve(plans: list[tuple[int, int]], front: Front, value: int) -> FrontPoint:
    """What a search over plans given as (objective, peak in units) would answer; of equally fast ones the first."""
    fitting = [plan for plan in plans if plan[1] <= front.units_of(value)]
    if not fitting:
        return point(value, None)
    objective, peak = min(fitting, key=lambda plan: plan[0])
    return point(value, objective, peak)


def run(front: Front, plans: list[tuple[int, int]]) -> int:
    """Solve until nothing is asked; the number of solves."""
    solves = 0
    while (value := front.next_value()) is not None:
        assert value not in front.points
        front.add(solve(plans, front, value))
        solves += 1
    return solves


def claim(front: Front, units: int) -> int | None:
    """Optimum that the points prove for a cap outside every gap."""
    proved = [one for one in front.points.values() if one.peak_units is not None and one.peak_units <= units]
    return min((one.objective for one in proved), default=None)


PLANS = st.lists(st.tuples(st.integers(100, 130), st.integers(1, 200)), max_size=12)


@settings(deadline=None)
@given(PLANS, st.none() | st.integers(1, 30))
def test_claims_hold_for_every_cap(plans, most_points):
    front = Front(load, "memory", None, most_points)
    solves = run(front, plans)
    top = front.units_of(front.base.cluster.device.memory_bytes)
    open_caps = {units for gap in front.gaps() for units in range(gap.low, gap.high + 1)}
    for units in range(1, top + 1):
        if units not in open_caps:
            assert claim(front, units) == min((time for time, peak in plans if peak <= units), default=None)
    if most_points is None:
        assert not open_caps
        best = {min((time for time, peak in plans if peak <= units), default=None) for units in range(1, top + 1)}
        assert {one.objective for one in front.points.values()} == best
    else:
        assert solves <= most_points


def test_equally_fast_plans_do_not_make_a_complete_front_long():
    plans = [(100, peak) for peak in range(20, 160)] + [(200, 10)]
    front = Front(load, "memory", None, None)
    assert run(front, plans) < 40
    assert not front.gaps()
    assert {one.objective for one in front.points.values()} == {100, 200, None}


def test_given_memory_sizes_are_not_solved_when_they_follow():
    front = Front(load, "memory", [GIB, 2 * GIB, 3 * GIB, GIB // 2, GIB // 4], None)
    peak = front.units_of(2 * GIB) - 1
    assert run(front, [(100, peak)]) == 2  # 3 GiB answers 2 GiB; 1 GiB is infeasible, and so is less
    assert sorted(front.points) == [GIB, 3 * GIB]
    assert front.decided(2 * GIB)
    assert not front.decided(GIB + GIB // 2)


def test_memory_units_and_bytes_fit_each_other():
    front = Front(load, "memory")
    for units in range(1, 200):
        size = front.bytes_for(units)
        assert front.units_of(size) == units
        assert front.units_of(size - 1) == units - 1


def test_unproved_points_support_no_claim():
    front = Front(load, "memory")
    top = front.base.cluster.device.memory_bytes
    front.add(point(top, 100, 50, proved=False))
    assert front.gaps()[0].high == front.units_of(top)
    assert front.next_value() < front.bytes_for(50)  # but what is asked next lies below its need


def test_device_numbers_are_divisors_that_go_with_the_node():
    front = Front(load, "devices")
    assert front.values == [8, 4, 2, 1]
    assert Front(load, "devices", None, 2).values == [8, 4]
    assert front.instance_at(4).cluster.num_devices == 4
    assert front.override(4) == "cluster.num_devices=4"


def test_batch_sizes_double_and_halve_and_skip_what_contradicts():
    assert Front(load, "gbs").values == [128, 64, 32, 16, 8, 4, 2]
    assert Front(load, "gbs", None, 3).values == [32, 16, 8]

    def pinned(overrides):
        return sample((*overrides, "layout.dp=8"))

    front = Front(pinned, "gbs")
    assert front.values == [128, 64, 32, 16, 8]
    assert len(front.skipped) == 2
    assert "gbs" in front.skipped[0]
    with pytest.raises(InstanceError):
        front.instance_at(4)


def test_pareto_points():
    front = Front(load, "devices")
    for value, objective in ((8, 100), (4, 100), (2, 300), (1, None)):
        front.add(point(value, objective, 5))
    assert [one.value for one in front.pareto()] == [4, 2]
    front = Front(load, "gbs")
    for value, objective in ((16, 100), (8, 100), (4, 50)):
        front.add(point(value, objective, 5))
    assert [one.value for one in front.pareto()] == [16, 4]
    front = Front(load, "memory")
    front.add(point(3 * GIB, 100, 90))
    front.add(point(GIB, 100, 40))
    front.add(point(GIB // 2, 120, 20))
    assert [one.value for one in front.pareto()] == [GIB, GIB // 2]


def test_a_known_plan_starts_the_search_and_changes_no_answer():
    overrides = ("layout.tp=2", "layout.pp=2", "layout.ep=2", "layout.zero=1")
    tight = sample((*overrides, f"cluster.device.memory_bytes={3 * GIB // 2}"))
    roomy = sample(overrides)
    options = SearchOptions(top_k=0)
    small = solve_instance(tight, options)
    assert small.best is not None
    known = [(small.best.layout, small.best.assignment)]
    seen = []
    with_known = solve_instance(roomy, options, progress=seen.append, known=known)
    alone = solve_instance(roomy, options)
    assert with_known.objective == alone.objective == alone.bound == with_known.bound
    assert plan_value(with_known.best.problem, with_known.best.assignment) == with_known.objective
    assert seen[0].incumbent_s == pytest.approx(small.objective * roomy.time_unit_s)
    assert small.objective >= alone.objective
    best = [(alone.best.layout, alone.best.assignment)]
    again = solve_instance(roomy, options, known=best)
    assert (again.status, again.objective, again.best.layout) == ("optimal", alone.objective, alone.best.layout)
    tiny = sample((*overrides, f"cluster.device.memory_bytes={GIB // 8}"))
    assert solve_instance(tiny, options, known=known).status == "infeasible"


# -- the file ----------------------------------------------------------------------------------------------------------


def stored_point() -> FrontPoint:
    plan = sample_plan()
    return FrontPoint(3 * GIB, plan.instance_digest, plan, "", 2.5)


def test_points_survive_in_the_file(tmp_path):
    path = tmp_path / "front.jsonl"
    file = FrontFile(path)
    assert not path.exists()
    file.append(stored_point())
    without_layout = FrontPoint(1, "other digest", None, "no layout divides", 0.5)
    file.append(without_layout)
    again = FrontFile(path)
    assert again.get(sample_plan().instance_digest) == stored_point()
    assert again.get("other digest") == without_layout
    assert again.get(instance_digest(sample())) is None


def test_a_line_cut_short_is_dropped_and_replaced(tmp_path):
    path = tmp_path / "front.jsonl"
    FrontFile(path).append(stored_point())
    whole = path.read_bytes()
    path.write_bytes(whole + whole[: len(whole) // 2])
    file = FrontFile(path)
    assert len(file.points) == 1
    file.append(replace(stored_point(), instance_digest="x", plan=None))
    assert path.read_bytes().startswith(whole)
    assert len(FrontFile(path).points) == 2


def test_points_of_another_version_do_not_count(tmp_path):
    path = tmp_path / "front.jsonl"
    FrontFile(path).append(stored_point())
    text = path.read_text()
    path.write_text(text.replace('"prism_cp":"', '"prism_cp":"0.0.0-', 1))
    file = FrontFile(path)
    assert (file.points, file.other_versions) == ({}, 1)


@pytest.mark.parametrize(
    ("content", "part"),
    [
        (b"hello", "last line is no point of a front"),
        (b"hello\n", "line 1: broken JSON"),
        (b"\xff\n", "line 1: is no text"),
        (b"[]\n", "line 1: is no point of a front"),
        (b"{}\n", "line 1: is no point of a front"),
    ],
)
def test_other_files_are_refused_and_left_alone(tmp_path, content, part):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(InstanceError, match=part):
        FrontFile(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("key", ["value", "instance_digest", "wall_s", "reason", "plan"])
def test_a_wrong_field_is_named(tmp_path, key):
    path = tmp_path / "front.jsonl"
    FrontFile(path).append(stored_point())
    record = json.loads(path.read_text())
    record[key] = {"plan": {"schema_version": 1}}.get(key, [])
    path.write_text(json.dumps(record) + "\n")
    with pytest.raises(InstanceError, match=rf"line 1: {key}|line 1: .*Field required|line 1: instance_name"):
        FrontFile(path)


def test_unusable_places_for_the_file(tmp_path):
    with pytest.raises(UsageError, match=r"--resume: .* is a directory"):
        FrontFile(tmp_path)
    with pytest.raises(UsageError, match=r"--resume: folder .* does not exist"):
        FrontFile(tmp_path / "no" / "front.jsonl")
