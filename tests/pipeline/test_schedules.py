"""Orders of the schedules, the registry, and a schedule added from outside."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import pytest

from prism_cp.errors import InstanceError
from prism_cp.inputs.layout import SCHEDULES
from prism_cp.pipeline import (
    OpType,
    Schedule,
    event_graph,
    get_schedule,
    live_vectors,
    longest_path,
    pipeline_time,
    program,
    reference_pipeline_time,
    schedule_names,
    simulate,
    static_cuts,
    with_options,
)
from prism_cp.pipeline.program import get_program
from prism_cp.pipeline.schedules import REGISTRY
from prism_cp.pipeline.schedules.base import Orders
from tests.pipeline.runs import admissible_sizes

F, B, IG, W, OF, OB = OpType


class Reversed(Schedule):
    """A toy: all forwards, all input gradients with the last micro-batch first, then all weight gradients."""

    name = "reversed"
    splits_backward = True

    def why_not(self, pp: int, vpp: int, num_microbatches: int) -> str | None:
        return None if num_microbatches % 2 == 0 else "reversed needs an even number of micro-batches"

    def virtual_stages(self, pp: int, vpp: int) -> tuple[tuple[int, int], ...]:
        """A V: down the ranks and up again, as often as asked."""
        down = list(range(pp))
        ranks = [rank for turn in range(vpp) for rank in (down if turn % 2 == 0 else down[::-1])]
        return tuple((rank, piece) for piece, rank in enumerate(ranks))

    def orders(self, pp: int, vpp: int, num_microbatches: int) -> Orders:
        orders = []
        for rank in range(pp):
            held = [piece for holder, piece in self.virtual_stages(pp, vpp) if holder == rank]
            rows = [(F, piece, i) for piece in held for i in range(num_microbatches)]
            rows += [(IG, piece, i) for piece in held[::-1] for i in reversed(range(num_microbatches))]
            rows += [(W, piece, i) for piece in held for i in range(num_microbatches)]
            orders.append(np.array(rows, dtype=np.int32))
        return orders


def test_a_schedule_of_ones_own_needs_nothing_but_its_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REGISTRY, "reversed", Reversed())
    assert "reversed" in schedule_names()
    pp, vpp, m = 3, 2, 4
    times = ([3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8], [9, 7, 9, 3, 2, 3], [8, 4, 6], [2, 6, 4], 3)
    run = ("reversed", pp, vpp, m, *times)
    time = simulate(*run).pipeline_time
    assert time == pipeline_time(*run) == reference_pipeline_time(*run) == longest_path(event_graph(*run))[0]
    assert simulate(*run).critical_path.value(*times) == time
    assert max(cut.value(*times) for cut in static_cuts("reversed", pp, vpp, m)) <= time
    assert live_vectors("reversed", pp, vpp, m) == (((0, 0, m, m),),) * pp
    with pytest.raises(InstanceError, match="even number"):
        pipeline_time("reversed", pp, vpp, 3, *times)


def test_registry_knows_every_schedule_a_layout_may_name() -> None:
    assert set(SCHEDULES) <= set(schedule_names())
    with pytest.raises(InstanceError, match=r"layout\.schedule: unknown schedule 'pipedream'.*1f1b, .*gpipe"):
        get_schedule("pipedream")


def test_1f1b_order_written_out() -> None:
    orders = get_schedule("1f1b").orders(3, 1, 4)
    words = ["".join("FB"[t] + str(i) for t, _, i in order.tolist()) for order in orders]
    assert words == ["F0F1F2B0F3B1B2B3", "F0F1B0F2B1F3B2B3", "F0B0F1B1F2B2F3B3"]


def test_zb_h1_order_written_out() -> None:
    orders = get_schedule("zb-h1").orders(3, 1, 4)
    words = [" ".join("FxBW"[t] + str(i) for t, _, i in order.tolist()) for order in orders]
    assert words[0] == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3"
    assert words[1] == "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3"
    assert words[2] == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3"


def test_interleaved_order_written_out() -> None:
    """Narayanan et al. 2021, figure 4 for two ranks: chunk letters a and b, micro-batches from 0."""
    orders = get_schedule("interleaved").orders(2, 2, 4)
    words = [" ".join("FB"[t] + "ab"[stage // 2] + str(i) for t, stage, i in order.tolist()) for order in orders]
    assert words[0] == "Fa0 Fa1 Fb0 Fb1 Fa2 Bb0 Fa3 Bb1 Fb2 Ba0 Fb3 Ba1 Bb2 Bb3 Ba2 Ba3"
    assert words[1] == "Fa0 Fa1 Fb0 Bb0 Fb1 Bb1 Fa2 Ba0 Fa3 Ba1 Fb2 Bb2 Fb3 Bb3 Ba2 Ba3"


def written(order: np.ndarray, pp: int) -> str:
    """An interleaved order in letters; overlapped pairs joined by &."""
    words = ["FBxWFB"[t] + "ab"[stage // pp] + str(i) for t, stage, i in order.tolist()]
    joints = ["&" if t == OpType.OVERLAPPED_FORWARD else " " for t, _, _ in order.tolist()]
    return "".join(word + joint for word, joint in zip(words, joints, strict=True)).strip()


def test_interleaved_order_with_a_smaller_last_group_written_out() -> None:
    """Megatron-LM ``get_schedule_table``: two ranks, five micro-batches, groups of three and two."""
    orders = get_schedule("interleaved").orders(2, 2, 5)
    assert written(orders[0], 2) == ("Fa0 Fa1 Fa2 Fb0 Fb1 Fb2 Bb0 Fa3 Bb1 Fa4 Bb2 Fb3 Ba0 Fb4 Ba1 Ba2 Bb3 Bb4 Ba3 Ba4")
    assert written(orders[1], 2) == ("Fa0 Fa1 Fa2 Fb0 Bb0 Fb1 Bb1 Fb2 Bb2 Fa3 Ba0 Fa4 Ba1 Fb3 Ba2 Fb4 Bb3 Bb4 Ba3 Ba4")


def test_interleaved_order_with_overlapped_expert_communication_written_out() -> None:
    """Megatron-LM ``get_pp_rank_microbatches``: one forward more before the pairs."""
    orders = get_schedule(with_options("interleaved", overlap_moe_expert_parallel_comm=True)).orders(2, 2, 4)
    assert written(orders[0], 2) == "Fa0 Fa1 Fb0 Fb1 Fa2 Fa3&Bb0 Fb2&Bb1 Fb3&Ba0 Ba1 Bb2 Bb3 Ba2 Ba3"
    assert written(orders[1], 2) == "Fa0 Fa1 Fb0 Fb1&Bb0 Fa2&Bb1 Fa3&Ba0 Fb2&Ba1 Fb3&Bb2 Bb3 Ba2 Ba3"


@pytest.mark.parametrize(
    ("pp", "m", "size"), [(4, 8, 4), (4, 9, 5), (4, 10, 5), (4, 11, 6), (4, 13, 7), (4, 7, 7), (4, 4, 4), (4, 3, None)]
)
def test_interleaved_takes_the_smallest_group_that_megatron_accepts(pp: int, m: int, size: int | None) -> None:
    """Groups of pp to m micro-batches, the last one empty or at least pp."""
    assert REGISTRY["interleaved"].group_size(pp, m) == size  # type: ignore[attr-defined]
    assert (REGISTRY["interleaved"].why_not(pp, 2, m) is None) == (size is not None)


@pytest.mark.parametrize(
    ("size", "m", "legal"), [(4, 8, True), (5, 9, True), (5, 8, False), (3, 9, False), (9, 8, False)]
)
def test_stated_group_sizes_follow_the_same_rules(size: int, m: int, legal: bool) -> None:
    schedule = get_schedule(with_options("interleaved", microbatch_group_size_per_vp_stage=size))
    reason = schedule.why_not(4, 2, m)
    assert (reason is None) == legal
    if reason is not None:
        assert f"microbatch_group_size_per_vp_stage = {size} must be from pp = 4 to {m}" in reason


def test_interleaving_with_one_chunk_would_be_1f1b() -> None:
    """Narayanan et al. 2021: for vpp = 1 both orders are built from the same table, but for the warm-up."""
    for pp, m in ((2, 4), (3, 6), (4, 8)):
        for rank, order in enumerate(get_schedule("1f1b").orders(pp, 1, m)):
            interleaved = get_schedule("interleaved").orders(pp, 1, m)[rank]
            kinds = [order[order[:, 0] == kind].tolist() for kind in (F, B)]
            assert kinds == [interleaved[interleaved[:, 0] == kind].tolist() for kind in (F, B)]
            ahead = [int(np.argmax(each[:, 0] == B)) for each in (order, interleaved)]
            assert ahead == [min(m, pp - rank), min(m, 2 * (pp - 1 - rank) + 1)]


@pytest.mark.parametrize(
    ("schedule", "pp", "vpp", "m", "reason"),
    [
        ("gpipe", 2, 2, 4, "vpp is 2"),
        ("1f1b", 2, 2, 4, "vpp is 2"),
        ("interleaved", 2, 1, 4, "vpp is 1"),
        ("interleaved", 1, 2, 4, "pp is 1"),
        ("interleaved", 4, 2, 3, "at least pp = 4"),
        ("zb-h1", 2, 2, 4, "vpp is 2"),
        ("zb-v", 2, 1, 4, "vpp is 1"),
        ("zb-v", 4, 2, 6, "at least 2·pp-1 = 7"),
        ("dualpipe", 3, 1, 12, "even number of pipeline ranks"),
        ("dualpipe", 4, 1, 9, "even number of at least 2·pp = 8"),
        ("dualpipe", 4, 2, 8, "vpp is 2"),
        ("dualpipev", 4, 1, 8, "vpp is 1"),
        ("dualpipev", 4, 2, 7, "at least 2·pp = 8"),
        ("1f1b", 0, 1, 4, "pp: 0 is not positive"),
        ("1f1b", 2, 1, 0, "num_microbatches: 0 is not positive"),
    ],
)
def test_sizes_that_cannot_run_are_refused_everywhere(schedule: str, pp: int, vpp: int, m: int, reason: str) -> None:
    for ask in (get_program, live_vectors, static_cuts):
        with pytest.raises(InstanceError, match=reason):
            ask(schedule, pp, vpp, m)


class Broken(Reversed):
    """The toy with its orders replaced."""

    name = "broken"

    def __init__(self, orders: Orders) -> None:
        self._orders = orders

    def orders(self, pp: int, vpp: int, num_microbatches: int) -> Orders:
        return self._orders


def rows(*ops: tuple[int, int, int]) -> np.ndarray:
    return np.array(ops, dtype=np.int32)


@pytest.mark.parametrize(
    ("orders", "problem"),
    [
        (
            [rows((F, 0, 0), (B, 0, 0), (F, 0, 1), (B, 0, 1)), rows((F, 1, 1), (B, 1, 1), (F, 1, 0), (B, 1, 0))],
            "deadlock",
        ),
        ([rows((F, 0, 0), (B, 0, 0))], "1 of 2 ranks"),
        ([rows((F, 0, 0), (B, 0, 0)), rows((F, 0, 1), (B, 0, 1))], "does not hold"),
        ([rows((F, 0, 0), (F, 0, 0), (B, 0, 0)), rows((F, 1, 0), (B, 1, 0))], "twice"),
        ([rows((B, 0, 0), (F, 0, 0)), rows((F, 1, 0), (B, 1, 0))], "no backward after it"),
        ([rows((F, 0, 0)), rows((F, 1, 0), (B, 1, 0))], "no backward after it"),
        ([rows((F, 0, 0), (IG, 0, 0)), rows((F, 1, 0), (B, 1, 0))], "no weight gradient after it"),
        ([rows((F, 0, 0), (W, 0, 0), (IG, 0, 0)), rows((F, 1, 0), (B, 1, 0))], "no weight gradient after it"),
        ([rows((F, 0, 0), (B, 0, 0)), rows((F, 1, 1), (B, 1, 1))], "does not pass every"),
        ([rows((OF, 0, 0), (B, 0, 0)), rows((F, 1, 0), (B, 1, 0))], "not followed by the overlapped"),
        ([rows((OF, 0, 0), (OB, 0, 0)), rows((F, 1, 0), (B, 1, 0))], "not followed by the overlapped"),
    ],
)
def test_unusable_orders_are_refused(orders: Orders, problem: str) -> None:
    with pytest.raises(InstanceError, match=problem):
        get_program(Broken(orders), 2, 1, 2)


def test_programs_kept_in_memory_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: OrderedDict[object, program.Program] = OrderedDict()
    monkeypatch.setattr(program, "_kept", kept)
    monkeypatch.setattr(program, "MOST_OPS_KEPT", 40)
    small = get_program("1f1b", 2, 1, 4)  # 16 ops
    other = get_program("1f1b", 2, 1, 5)  # 20 ops
    assert get_program("1f1b", 2, 1, 4) is small  # and now asked for later than the other
    assert len(get_program("1f1b", 2, 1, 6).code) == 24
    assert list(kept.values()) == [small, get_program("1f1b", 2, 1, 6)]
    assert get_program("1f1b", 2, 1, 5) is not other
    assert len(get_program("gpipe", 4, 1, 50).code) == 400
    assert len(kept) == 1


@pytest.mark.parametrize("schedule", schedule_names())
def test_every_schedule_runs_all_its_ops_once(schedule: str) -> None:
    chosen = get_schedule(schedule)
    for pp, vpp, m in admissible_sizes(schedule, 6, 18):
        built = get_program(schedule, pp, vpp, m)
        chains = chosen.chains(pp, vpp)
        stages = chosen.virtual_stages(pp, vpp)
        assert sorted(stage for chain in chains for stage in chain) == list(range(len(stages)))
        assert {piece for _, piece in stages} == set(range(chosen.num_pieces(pp, vpp)))
        passed = [int((built.index[0, chain[0]] >= 0).sum()) for chain in chains]
        assert sum(passed) == m
        assert bool((built.op_type == OpType.WEIGHT_GRAD).any()) <= chosen.splits_backward
