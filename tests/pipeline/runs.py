"""Random runs of every schedule, small enough for the plain simulator and networkx."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from prism_cp.pipeline import get_schedule, schedule_names, with_options

OVERLAPPING = tuple(
    with_options(name, overlap_factor=factor) for name in ("dualpipe", "dualpipev") for factor in ("0", "3/5", "17/20")
)
INTERLEAVED = (
    with_options("interleaved", overlap_moe_expert_parallel_comm=True),
    with_options("interleaved", microbatch_group_size_per_vp_stage=3),
    with_options("interleaved", microbatch_group_size_per_vp_stage=4, overlap_moe_expert_parallel_comm=True),
)
VARIANTS = (*OVERLAPPING, *INTERLEAVED)


@dataclass(frozen=True)
class Run:
    """Sizes and times of one pipeline run."""

    schedule: str
    pp: int
    vpp: int
    num_microbatches: int
    forward: list[int]
    input_grad: list[int]
    weight_grad: list[int]
    head: list[int]
    tail: list[int]
    p2p: int

    @property
    def sizes(self) -> tuple[str, int, int, int]:
        return self.schedule, self.pp, self.vpp, self.num_microbatches

    @property
    def unit(self) -> int:
        """Of which times are multiples: the denominator of the schedule's overlap factor."""
        return get_schedule(self.schedule).overlap_factor.denominator

    @property
    def times(self) -> tuple[Any, ...]:
        return self.forward, self.input_grad, self.weight_grad, self.head, self.tail, self.p2p


def admissible_sizes(name: str, most_ranks: int = 5, most_microbatches: int = 12) -> list[tuple[int, int, int]]:
    """All small (pp, vpp, num_microbatches) that the schedule accepts."""
    return [
        (pp, vpp, m)
        for pp in range(1, most_ranks + 1)
        for vpp in (1, 2, 3)
        for m in range(1, most_microbatches + 1)
        if get_schedule(name).why_not(pp, vpp, m) is None
    ]


@st.composite
def runs(draw: st.DrawFn, names: tuple[str, ...] | None = None) -> Run:
    name = draw(st.sampled_from(names or (*schedule_names(), *VARIANTS)))
    unit = get_schedule(name).overlap_factor.denominator
    pp, vpp, m = draw(st.sampled_from(admissible_sizes(name)))
    stages = len(get_schedule(name).virtual_stages(pp, vpp))

    def times(count: int) -> list[int]:
        return [unit * time for time in draw(st.lists(st.integers(0, 30), min_size=count, max_size=count))]

    return Run(
        name, pp, vpp, m, times(stages), times(stages), times(stages), times(pp), times(pp), draw(st.integers(0, 9))
    )


def plain_run(
    schedule: str, m: int, forward: list[int], backward: list[int], pp: int | None = None, vpp: int = 1, p2p: int = 0
) -> Run:
    """No heads, no tails, the whole backward in one number."""
    pp = pp or len(forward)
    return Run(schedule, pp, vpp, m, forward, backward, [0] * len(forward), [0] * pp, [0] * pp, p2p)
