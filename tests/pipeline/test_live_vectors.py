"""Live vectors: published counts, and a slow replay."""

from __future__ import annotations

import numpy as np
import pytest

from prism_cp.pipeline import OpType, get_schedule, live_vectors, schedule_names, with_options
from prism_cp.pipeline.live_vectors import pareto_maximal
from tests.pipeline.runs import INTERLEAVED, admissible_sizes


@pytest.mark.parametrize(("pp", "m"), [(1, 1), (4, 2), (4, 9), (64, 20_000)])
def test_gpipe_holds_every_microbatch(pp: int, m: int) -> None:
    assert live_vectors("gpipe", pp, 1, m) == (((m,),),) * pp


@pytest.mark.parametrize("pp", [1, 2, 5, 16, 64])
@pytest.mark.parametrize("m", [1, 3, 16, 17, 20_000])
def test_1f1b_holds_as_many_as_ranks_follow(pp: int, m: int) -> None:
    assert live_vectors("1f1b", pp, 1, m) == tuple(((min(m, pp - rank),),) for rank in range(pp))


def test_interleaved_needs_several_vectors() -> None:
    assert [set(vectors) for vectors in live_vectors("interleaved", 4, 2, 16)] == [
        {(7, 4), (8, 3)},
        {(5, 4), (6, 3), (7, 2), (8, 1)},
        {(4, 3), (5, 2), (6, 1), (7, 0)},
        {(4, 1), (5, 0)},
    ]


@pytest.mark.parametrize("pp", [2, 3, 4, 8])
@pytest.mark.parametrize("vpp", [2, 3, 4])
@pytest.mark.parametrize("groups", [1, 2, 4, 8])
def test_interleaved_total(pp: int, vpp: int, groups: int) -> None:
    """Megatron-LM's warm-up plus one: min(m·vpp, (vpp-1)·pp + 2 (pp-rank-1) + 1) chunks."""
    m = groups * pp
    for rank, vectors in enumerate(live_vectors("interleaved", pp, vpp, m)):
        assert max(map(sum, vectors)) == min(m * vpp, (vpp - 1) * pp + 2 * (pp - rank - 1) + 1)
    if groups == 1:
        assert all(len(vectors) == 1 for vectors in live_vectors("interleaved", pp, vpp, m))


@pytest.mark.parametrize("pp", [2, 3, 4])
@pytest.mark.parametrize("vpp", [2, 3])
@pytest.mark.parametrize("m", [4, 8, 12, 24])
@pytest.mark.parametrize(("size", "overlap"), [(4, False), (4, True), (None, True)])
def test_interleaved_total_with_options(pp: int, vpp: int, m: int, size: int | None, overlap: bool) -> None:
    """Megatron-LM's warm-up with groups of any size, and one forward more where expert communication is overlapped."""
    options: dict[str, object] = {} if size is None else {"microbatch_group_size_per_vp_stage": size}
    if overlap:
        options["overlap_moe_expert_parallel_comm"] = True
    schedule = get_schedule(with_options("interleaved", **options))
    group = schedule.group_size(pp, m)  # type: ignore[attr-defined]
    if group is None:
        assert schedule.why_not(pp, vpp, m) is not None
        return
    for rank, vectors in enumerate(live_vectors(schedule, pp, vpp, m)):
        most = (vpp - 1) * group + 2 * (pp - rank - 1) + 1 + overlap
        assert max(map(sum, vectors)) == min(m * vpp, most)


def alive_and_deferred(vector: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """All live micro-batches per virtual stage, and the deferred ones among them."""
    half = len(vector) // 2
    return tuple(n + d for n, d in zip(vector[:half], vector[half:], strict=True)), vector[half:]


@pytest.mark.parametrize("pp", [1, 2, 4, 8])
def test_zb_h1_holds_no_more_than_the_first_rank_of_1f1b(pp: int) -> None:
    """Qi et al. 2023, section 3.1: pp micro-batches on every rank, of which rank r defers r.

    The one whose input gradient runs is counted as deferred too, for layers the gradient has passed.
    """
    for rank, vectors in enumerate(live_vectors("zb-h1", pp, 1, 3 * pp)):
        assert vectors == ((pp - rank - 1, rank + 1),)


@pytest.mark.parametrize("pp", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("m", [1, 2, 3, 5, 8, 9, 20])
def test_zb_h1_needs_one_vector_whatever_the_number_of_microbatches(pp: int, m: int) -> None:
    for rank, vectors in enumerate(live_vectors("zb-h1", pp, 1, m)):
        assert [alive_and_deferred(vector) for vector in vectors] == [((min(m, pp),), (min(m, rank + 1),))]


@pytest.mark.parametrize("pp", [1, 2, 4, 8])
def test_zb_v_holds_pp_microbatches_on_every_rank(pp: int) -> None:
    """Qi et al. 2023, section 6: 2·pp halves, equal on all ranks."""
    for vectors in live_vectors("zb-v", pp, 2, 4 * pp):
        assert max(sum(alive_and_deferred(vector)[0]) for vector in vectors) == 2 * pp


@pytest.mark.parametrize("pp", [2, 4, 8, 16])
def test_dualpipe_holds_pp_plus_one_pieces(pp: int) -> None:
    """deepseek-ai/DualPipe, table of the README; pieces p-i of stage i and i+1 of stage p-1-i.

    At that moment nothing is deferred; a weight gradient waits only while fewer are alive.
    """
    for rank, vectors in enumerate(live_vectors("dualpipe", pp, 1, 4 * pp)):
        assert vectors[0] == (pp - rank, rank + 1, 0, 0)
        assert all(sum(vector) <= pp + 1 for vector in vectors)
    for rank, vectors in enumerate(live_vectors("dualpipev", pp, 2, 4 * pp)):
        assert vectors[0] == (2 * pp - rank, rank + 1, 0, 0)
        assert all(sum(vector) <= 2 * pp + 1 for vector in vectors)


def slow_live_vectors(schedule: str, pp: int, vpp: int, m: int) -> list[set[tuple[int, ...]]]:
    """Every (alive, deferred) that occurs, and of those the ones no other dominates, one op at a time."""
    chosen = get_schedule(schedule)
    stages = chosen.virtual_stages(pp, vpp)
    result = []
    for rank, order in enumerate(chosen.orders(pp, vpp, m)):
        held = [stage for stage, (holder, _) in enumerate(stages) if holder == rank]
        live, deferred = dict.fromkeys(held, 0), dict.fromkeys(held, 0)
        seen = set()
        for op_type, stage, _ in order.tolist():
            if op_type in (OpType.FORWARD, OpType.OVERLAPPED_FORWARD):
                live[stage] += 1
            if op_type == OpType.INPUT_GRAD:
                deferred[stage] += 1
            seen.add((*live.values(), *deferred.values()))
            if op_type in (OpType.BACKWARD, OpType.OVERLAPPED_BACKWARD, OpType.WEIGHT_GRAD):
                live[stage] -= 1
            if op_type == OpType.WEIGHT_GRAD:
                deferred[stage] -= 1
        assert not any(live.values())
        assert not any(deferred.values())
        result.append(
            {u for u in seen if not any(v != u and all(a >= b for a, b in zip(v, u, strict=True)) for v in seen)}
        )
    return result


@pytest.mark.parametrize("schedule", [*schedule_names(), *INTERLEAVED])
def test_equal_to_a_slow_replay(schedule: str) -> None:
    for pp, vpp, m in admissible_sizes(schedule, 5, 24):
        got = [set(vectors) for vectors in live_vectors(schedule, pp, vpp, m)]
        slow = slow_live_vectors(schedule, pp, vpp, m)
        if get_schedule(schedule).splits_backward:
            got = [{sum(alive_and_deferred(vector), ()) for vector in vectors} for vectors in got]
        else:
            slow = [{vector[: len(vector) // 2] for vector in vectors} for vectors in slow]
        assert got == slow, (pp, vpp, m)


def test_pareto_maximal() -> None:
    rows = np.array([[0, 3], [1, 1], [1, 2], [2, 0], [2, 2]])
    assert pareto_maximal(rows) == ((2, 2), (0, 3))
