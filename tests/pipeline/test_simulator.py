"""The simulator is exact: closed forms where there are any, three independent encodings everywhere."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prism_cp.errors import InstanceError
from prism_cp.pipeline import (
    OpType,
    event_graph,
    get_schedule,
    longest_path,
    pipeline_time,
    pipeline_times,
    reference_pipeline_time,
    schedule_names,
    simulate,
    with_options,
)
from tests.pipeline.runs import Run, admissible_sizes, plain_run, runs


def time_of(run: Run) -> int:
    return pipeline_time(*run.sizes, *run.times)


@given(runs())
@settings(max_examples=150, deadline=None)
def test_three_encodings_agree(run: Run) -> None:
    simulation = simulate(*run.sizes, *run.times)
    assert simulation.pipeline_time == reference_pipeline_time(*run.sizes, *run.times)
    assert simulation.pipeline_time == longest_path(event_graph(*run.sizes, *run.times))[0]
    assert simulation.pipeline_time == time_of(run)
    assert simulation.pipeline_time == simulation.critical_path.value(*run.times)


@given(runs())
@settings(max_examples=100, deadline=None)
def test_starts_and_critical_ops_are_those_of_the_event_graph(run: Run) -> None:
    simulation = simulate(*run.sizes, *run.times)
    graph = event_graph(*run.sizes, *run.times)
    starts = {}
    orders = get_schedule(run.schedule).orders(*run.sizes[1:])
    for order, times in zip(orders, simulation.starts, strict=True):
        starts.update(zip(map(tuple, order.tolist()), times.tolist(), strict=True))
    for op in graph:
        if op in ("start", "end"):
            continue
        arrivals = [
            (0 if before == "start" else starts[before]) + edge["weight"]
            for before, _, edge in graph.in_edges(op, data=True)
        ]
        assert starts[op] == max(arrivals)
    if get_schedule(run.schedule).overlap_factor != 1:
        return  # of an overlapped pair a path may have one op only
    path = simulation.critical_ops
    length = sum(graph.edges[edge]["weight"] for edge in pairwise(path))
    length += graph.edges["start", path[0]]["weight"] + graph.edges[path[-1], "end"]["weight"]
    assert length == simulation.pipeline_time


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=8),
    st.integers(1, 12),
    st.integers(0, 9),
)
@settings(deadline=None)
def test_gpipe_closed_form(stages: list[tuple[int, int]], m: int, p2p: int) -> None:
    forward, backward = [f for f, _ in stages], [b for _, b in stages]
    expected = sum(forward) + sum(backward) + (m - 1) * (max(forward) + max(backward)) + 2 * p2p * (len(stages) - 1)
    assert time_of(plain_run("gpipe", m, forward, backward, p2p=p2p)) == expected


@pytest.mark.parametrize("pp", [1, 2, 4, 7, 16])
@pytest.mark.parametrize("m", [1, 3, 16, 40])
def test_1f1b_with_equal_stages(pp: int, m: int) -> None:
    assert time_of(plain_run("1f1b", m, [2] * pp, [5] * pp)) == (m + pp - 1) * 7


@pytest.mark.parametrize(
    ("m", "forward", "backward", "expected"),
    [
        # Stages whose times make the textbook sum c + (m-1) max c wrong: it gives 322, 81 and 90.
        (16, [10, 1], [10, 1], 320),
        (8, [3, 1, 1, 1], [6, 2, 2, 2], 72),
        (8, [10, 0, 0, 0, 0, 0, 0, 0], [0, 10, 0, 0, 0, 0, 0, 0], 150),
    ],
)
def test_1f1b_where_the_textbook_formula_fails(m: int, forward: list[int], backward: list[int], expected: int) -> None:
    assert time_of(plain_run("1f1b", m, forward, backward)) == expected


@pytest.mark.parametrize(("pp", "vpp", "m"), [(2, 2, 4), (4, 2, 16), (4, 3, 8), (8, 4, 32)])
def test_interleaved_with_equal_stages(pp: int, vpp: int, m: int) -> None:
    """Narayanan et al. 2021, section 2.2: the bubble shrinks by vpp."""
    stages = pp * vpp
    assert time_of(plain_run("interleaved", m, [1] * stages, [2] * stages, pp, vpp)) == (m * vpp + pp - 1) * 3


@pytest.mark.parametrize("pp", [2, 3, 4, 8])
@pytest.mark.parametrize("m", [1, 5, 8, 33])
def test_1f1b_transfers_between_equal_stages(pp: int, m: int) -> None:
    """A transfer each way delays all but every pp-th micro-batch, besides filling and draining the pipeline."""
    c, p2p = 300, 5
    waits = (pp - 1) + (m - 1) - -(-(m - 1) // pp)
    run = plain_run("1f1b", m, [c // 3] * pp, [2 * c // 3] * pp, p2p=p2p)
    assert time_of(run) == (m + pp - 1) * c + 2 * p2p * waits


def bubble(schedule: str, pp: int, vpp: int, m: int, f: int, b: int, w: int) -> int:
    """Pipeline time beyond a rank's own work, all virtual stages equal."""
    stages = len(get_schedule(schedule).virtual_stages(pp, vpp))
    run = Run(schedule, pp, vpp, m, [f] * stages, [b] * stages, [w] * stages, [0] * pp, [0] * pp, 0)
    return time_of(run) - m * (f + b + w) * vpp


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize(("f", "b", "w"), [(1, 1, 1), (3, 4, 2), (5, 4, 1), (2, 3, 5)])
def test_published_bubbles_of_zero_bubble_schedules(pp: int, f: int, b: int, w: int) -> None:
    """Qi et al. 2023, table 2: (pp-1)(f+b-w) for ZB-H1 when f = b = w; in general the longest of three paths."""
    for m in (pp, 3 * pp + 1, 8 * pp):
        assert bubble("zb-h1", pp, 1, m, f, b, w) == (pp - 1) * max(f, b, f + b - w)
    for m in (2 * pp, 3 * pp + 1, 8 * pp):
        if max(f, w) <= b:
            assert bubble("zb-v", pp, 2, m, f, b, w) == (pp - 1) * max(f, b)


@pytest.mark.parametrize("pp", [2, 4, 8])
@pytest.mark.parametrize(("f", "b", "w"), [(1, 1, 1), (3, 3, 2), (4, 4, 1)])
def test_published_bubbles_of_dualpipe(pp: int, f: int, b: int, w: int) -> None:
    """deepseek-ai/DualPipe, README: (pp/2-1)(F&B+B-3W), and (pp-1)(F&B+B-3W) folded; B is the whole backward."""
    unit = (f + b + w) + (b + w) - 3 * w
    for m in (2 * pp, 4 * pp, 6 * pp + 2):
        assert bubble("dualpipe", pp, 1, m, f, b, w) == (pp // 2 - 1) * unit
        assert bubble("dualpipev", pp, 2, m, f, b, w) == (pp - 1) * unit


def test_dualpipe_bubble_differs_from_the_published_one_when_the_backward_is_longer() -> None:
    assert bubble("dualpipe", 4, 1, 16, 10, 20, 10) == 30  # the README's expression says 40


@given(runs(), st.integers(1, 5), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_batch_equals_one_by_one(run: Run, count: int, random: object) -> None:
    plans = []
    for _ in range(count):
        unit = run.unit
        plans.append([[unit * random.randint(0, 99) for _ in row] for row in run.times[:-1]])  # type: ignore[attr-defined]
    arrays = [np.array([plan[i] for plan in plans]) for i in range(5)]
    times = pipeline_times(*run.sizes, *arrays, run.p2p)
    assert times.tolist() == [pipeline_time(*run.sizes, *plan, run.p2p) for plan in plans]


@given(runs(), st.integers(0, 4), st.integers(0, 10**6), st.integers(1, 50))
@settings(max_examples=100, deadline=None)
def test_longer_times_never_shorten_the_pipeline(run: Run, which: int, where: int, by: int) -> None:
    longer = [list(row) for row in run.times[:-1]]
    by *= run.unit
    longer[which][where % len(longer[which])] += by
    assert time_of(run) <= pipeline_time(*run.sizes, *longer, run.p2p) <= time_of(run) + by * run.num_microbatches


@pytest.mark.parametrize("schedule", schedule_names())
def test_times_scale_and_are_exact_far_beyond_floating_point(schedule: str) -> None:
    pp, vpp, m = admissible_sizes(schedule, 4, 8)[-1]
    stages = len(get_schedule(schedule).virtual_stages(pp, vpp))
    small = Run(schedule, pp, vpp, m, [3] * stages, [4] * stages, [2] * stages, [1] * pp, [2] * pp, 1)
    factor = 2**48 + 1
    large = [[t * factor for t in row] for row in small.times[:-1]]
    assert pipeline_time(*small.sizes, *large, small.p2p * factor) == factor * time_of(small)


@pytest.mark.parametrize("huge", [2**58, 2**63, 2**70])
def test_overflow_is_refused(huge: int) -> None:
    with pytest.raises(InstanceError, match=r"time_unit_s.*coarser"):
        time_of(plain_run("1f1b", 64, [huge, 1], [1, 1]))


def test_times_must_be_integers() -> None:
    with pytest.raises(TypeError):
        time_of(plain_run("1f1b", 2, [1.5, 1], [1, 1]))  # type: ignore[list-item]


def test_a_rank_starts_after_its_head_and_ends_with_its_tail() -> None:
    run = Run("1f1b", 2, 1, 1, [1, 1], [1, 1], [0, 0], [0, 10], [0, 0], 0)
    assert time_of(run) == 13  # the second rank's head, its forward and backward, then the first rank's backward
    assert time_of(Run("1f1b", 2, 1, 1, [1, 1], [1, 1], [0, 0], [0, 0], [0, 10], 0)) == 13
    assert time_of(Run("1f1b", 2, 1, 1, [1, 1], [1, 1], [0, 0], [5, 0], [7, 0], 0)) == 16


@pytest.mark.parametrize(("factor", "length"), [("1", 30), ("4/5", 24), ("1/2", 20), ("0", 20)])
def test_an_overlapped_pair_takes_its_share_but_never_less_than_its_longer_half(factor: str, length: int) -> None:
    """One rank at the turning point of DualPipeV: 10 forward, 20 backward, everything on it one after the other."""
    schedule = get_schedule(with_options("dualpipev", overlap_factor=factor))
    m = 6
    order = schedule.orders(1, 2, m)[0]
    pairs = int((order[:, 0] == OpType.OVERLAPPED_FORWARD).sum())
    assert pairs == 2 * m - 3  # the first forwards of both legs, the first pair and the last backwards stand alone
    run = Run(with_options("dualpipev", overlap_factor=factor), 1, 2, m, [10] * 2, [10] * 2, [10] * 2, [0], [0], 0)
    assert time_of(run) == 2 * m * 30 - pairs * (30 - length)


def test_overlapped_times_must_be_multiples_of_the_denominator() -> None:
    run = Run(with_options("dualpipev", overlap_factor="3/5"), 1, 2, 4, [2] * 2, [1] * 2, [1] * 2, [0], [0], 0)
    with pytest.raises(AssertionError, match="multiples of 5"):
        time_of(run)
    with pytest.raises(ValueError, match="would last"):
        reference_pipeline_time(*run.sizes, *run.times)


def test_only_schedules_with_pairs_take_an_overlap_factor() -> None:
    with pytest.raises(InstanceError, match=r"1f1b has no option overlap_factor=1/2"):
        get_schedule(with_options("1f1b", overlap_factor="1/2"))
    with pytest.raises(InstanceError, match=r"dualpipe has no option speed"):
        get_schedule(with_options("dualpipe", speed=2))
    with pytest.raises(InstanceError, match=r"3/2 is out of range"):
        get_schedule(with_options("dualpipe", overlap_factor="3/2"))
