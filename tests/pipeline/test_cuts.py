"""Static cuts: true paths, hence valid bounds; exact for GPipe; the four 1F1B families with their formulas."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_cp.pipeline import event_graph, get_schedule, pipeline_time, schedule_names, simulate, static_cuts
from prism_cp.pipeline.cuts import rank_paths, turning_paths
from prism_cp.pipeline.path_cut import path_cut
from prism_cp.pipeline.program import get_program
from tests.pipeline.runs import VARIANTS, Run, admissible_sizes, runs


@given(runs())
@settings(max_examples=60, deadline=None)
def test_static_cuts_are_lower_bounds(run: Run) -> None:
    time = pipeline_time(*run.sizes, *run.times)
    assert max(cut.value(*run.times) for cut in static_cuts(*run.sizes)) <= time


@pytest.mark.parametrize("schedule", [*schedule_names(), *VARIANTS])
def test_static_cuts_exist_for_all_sizes(schedule: str) -> None:
    """The generator asserts that each is a path; with equal times none is longer than the pipeline."""
    for sizes in admissible_sizes(schedule, 5, 12):
        stages = len(get_schedule(schedule).virtual_stages(*sizes[:2]))
        times = [60] * stages, [60] * stages, [20] * stages, [20] * sizes[0], [0] * sizes[0], 20
        best = max(cut.value(*times) for cut in static_cuts(schedule, *sizes))
        assert best <= pipeline_time(schedule, *sizes, *times)


@given(runs(), st.data())
@settings(max_examples=60, deadline=None)
def test_critical_path_of_one_plan_bounds_every_other(run: Run, data: st.DataObject) -> None:
    cut = simulate(*run.sizes, *run.times).critical_path
    unit = get_schedule(run.schedule).overlap_factor.denominator
    other = [
        [unit * time for time in data.draw(st.lists(st.integers(0, 30), min_size=len(row), max_size=len(row)))]
        for row in run.times[:-1]
    ]
    assert cut.value(*other, run.p2p) <= pipeline_time(*run.sizes, *other, run.p2p)


@given(runs(names=schedule_names()))
@settings(max_examples=60, deadline=None)
def test_static_cuts_are_paths_of_the_event_graph(run: Run) -> None:
    graph = event_graph(*run.sizes, *run.times)
    program = get_program(*run.sizes)
    paths = [path for rank in range(run.pp) for path in rank_paths(program, rank)]
    for turn in get_schedule(run.schedule).turns(*run.sizes[1:]):
        paths += turning_paths(program, turn)
    cuts = [path_cut(program, path) for path in paths]
    assert set(cuts) == set(static_cuts(*run.sizes))
    for path, cut in zip(paths, cuts, strict=True):
        ops = [program.op(int(number)) for number in path]
        length = sum(graph.edges[edge]["weight"] for edge in pairwise(ops)) + graph.nodes[ops[-1]]["duration"]
        length += run.head[graph.nodes[ops[0]]["rank"]] + run.tail[graph.nodes[ops[-1]]["rank"]]
        assert cut.value(*run.times) == length


@given(runs(names=("gpipe",)))
@settings(max_examples=60, deadline=None)
def test_gpipe_cuts_are_exact_without_heads_and_tails(run: Run) -> None:
    times = (run.forward, run.input_grad, run.weight_grad, [0] * run.pp, [0] * run.pp, run.p2p)
    best = max(cut.value(*times) for cut in static_cuts(*run.sizes))
    assert best == pipeline_time(*run.sizes, *times)


@given(runs(names=("1f1b",)))
@settings(max_examples=60, deadline=None)
def test_1f1b_families(run: Run) -> None:
    """Each family's value, written out, is the value of one of the cuts."""
    p, m, lat = run.pp, run.num_microbatches, run.p2p
    f = run.forward
    b = [x + y for x, y in zip(run.input_grad, run.weight_grad, strict=True)]
    c = [x + y for x, y in zip(f, b, strict=True)]
    values = {cut.value(*run.times) for cut in static_cuts(*run.sizes)}
    ends = run.head[0] + run.tail[0]
    for i in range(p):
        before = sum(c[:i]) + 2 * lat * i + ends
        after = sum(c[i + 1 :]) + 2 * lat * (p - 1 - i)
        w = min(m, p - 1 - i)
        assert before + m * c[i] in values
        assert run.head[i] + m * c[i] + run.tail[i] in values
        if m > w:
            assert before + after + m * c[i] - w * f[i] in values
            assert before + after + m * c[i] - w * b[i] in values
        if m - w >= 2:
            assert before + 2 * after + (m - w) * c[i] in values


@pytest.mark.parametrize("schedule", schedule_names())
def test_rank_work_is_among_the_cuts(schedule: str) -> None:
    for pp, vpp, m in admissible_sizes(schedule, 4, 8):
        stages = get_schedule(schedule).virtual_stages(pp, vpp)
        cuts = static_cuts(schedule, pp, vpp, m)
        for rank in range(pp):
            held = [int(holder == rank) for holder, _ in stages]
            own = [cut for cut in cuts if cut.head[rank] and cut.tail[rank] and cut.p2p == 0]
            chains = len(get_schedule(schedule).chains(pp, vpp))
            assert any(cut.forward == tuple(m // chains * h for h in held) for cut in own)


def test_value_needs_times_of_the_right_length() -> None:
    cut = static_cuts("1f1b", 2, 1, 2)[0]
    with pytest.raises(ValueError, match="zip"):
        cut.value([1], [1, 1], [1, 1], [0, 0], [0, 0], 0)
