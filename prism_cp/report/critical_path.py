"""Report room: what bounds the step time, as the longest path of the pipeline's event graph in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from prism_cp.errors import PlanError
from prism_cp.pipeline import simulate
from prism_cp.pipeline_schedule import pipeline_schedule
from prism_cp.plan import Plan
from prism_cp.report.numbers import percent, seconds

LARGE_SHARE = 0.02  # contributions below this share of the step are summed up
NEARLY_AS_MUCH = 0.8  # ranks with this share of the busiest rank's time are named with it


@dataclass(frozen=True)
class Contribution:
    """Time the critical path spends in one way.

    Attributes
    ----------
    what : str
        ``forward``, ``backward``, ``head``, ``tail``, ``transfers`` or ``barrier``.
    virtual_stage, rank : int or None
        Where; None for transfers and the barrier.
    times : int
        How often.
    time : int
        Altogether, in time units.
    """

    what: str
    virtual_stage: int | None
    rank: int | None
    times: int
    time: int


@dataclass(frozen=True)
class CriticalPath:
    """A longest path: its contributions add up to pipeline time plus barrier."""

    contributions: tuple[Contribution, ...]
    total: int
    time_unit_s: float

    def share(self, contribution: Contribution) -> float:
        """Part of the step."""
        return contribution.time / self.total

    def as_json(self) -> list[dict[str, Any]]:
        """Contributions, largest first, in seconds."""
        return [
            {
                "what": one.what,
                "virtual_stage": one.virtual_stage,
                "rank": one.rank,
                "times": one.times,
                "time_s": one.time * self.time_unit_s,
                "share": self.share(one),
            }
            for one in self.contributions
        ]


def critical_path(plan: Plan) -> CriticalPath:
    """The longest path under the plan's own stage times."""
    assert plan.layout is not None
    assert plan.p2p is not None
    assert plan.barrier is not None
    layout, stages = plan.layout, plan.virtual_stages
    forward = [stage.forward for stage in stages]
    input_grad = [stage.input_grad for stage in stages]
    weight_grad = [stage.weight_grad for stage in stages]
    head, tail = [rank.head for rank in plan.ranks], [rank.tail for rank in plan.ranks]
    simulation = simulate(
        pipeline_schedule(plan.instance, layout.schedule),
        layout.pp,
        layout.vpp,
        layout.num_microbatches,
        forward,
        input_grad,
        weight_grad,
        head,
        tail,
        plan.p2p,
    )
    cut = simulation.critical_path
    parts: list[Contribution] = []
    for index, stage in enumerate(stages):
        backward = cut.input_grad[index] * input_grad[index] + cut.weight_grad[index] * weight_grad[index]
        backwards = max(cut.input_grad[index], cut.weight_grad[index])
        ahead = cut.forward[index] * forward[index] // cut.scale
        parts.append(Contribution("forward", index, stage.rank, -(-cut.forward[index] // cut.scale), ahead))
        parts.append(Contribution("backward", index, stage.rank, -(-backwards // cut.scale), backward // cut.scale))
    for rank in range(layout.pp):
        heads, tails = cut.head[rank] // cut.scale, cut.tail[rank] // cut.scale
        parts.append(Contribution("head", None, rank, heads, heads * head[rank]))
        parts.append(Contribution("tail", None, rank, tails, tails * tail[rank]))
    transfers = cut.p2p // cut.scale
    parts.append(Contribution("transfers", None, None, transfers, transfers * plan.p2p))
    parts.append(Contribution("barrier", None, None, 1, plan.barrier))
    used = sorted((part for part in parts if part.time), key=lambda part: -part.time)
    return CriticalPath(tuple(used), sum(part.time for part in used), plan.time_unit_s)


def stated_critical_path(plan: Plan) -> CriticalPath:
    """`critical_path`, of a plan whose stated time follows from its stage times.

    Raises
    ------
    PlanError
        It does not: somebody changed the plan.
    """
    path = critical_path(plan)
    if plan.pipeline_time is None or plan.barrier is None or path.total != plan.pipeline_time + plan.barrier:
        problem = f"{plan.pipeline_time}, but the stage times give {path.total - (plan.barrier or 0)}"
        raise PlanError("pipeline_time", problem, "a plan as solve wrote it; see check")
    return path


def path_in_words(path: CriticalPath) -> list[str]:
    """Sentences, the largest contribution first."""
    sentences = [_busiest(path)]
    rest = 0
    for part in path.contributions:
        if path.share(part) < LARGE_SHARE:
            rest += part.time
            continue
        sentences.append(f"{_phrase(part)}: {seconds(part.time * path.time_unit_s)}, {percent(path.share(part))}")
    if rest:
        sentences.append(f"everything else on the path: {seconds(rest * path.time_unit_s)}")
    return sentences


def _busiest(path: CriticalPath) -> str:
    """Which ranks the path spends most time on."""
    by_rank: dict[int, int] = {}
    for part in path.contributions:
        if part.rank is not None:
            by_rank[part.rank] = by_rank.get(part.rank, 0) + part.time
    most = max(by_rank.values())
    ranks = sorted(rank for rank, time in by_rank.items() if time >= NEARLY_AS_MUCH * most)
    share = percent(sum(by_rank[rank] for rank in ranks) / path.total)
    rest = "the rest fills and drains the pipeline, transfers or synchronises"
    if len(by_rank) == 1:
        rest = "no other rank is on it"
    if len(ranks) == 1:
        return f"The longest path spends {share} of the step on rank {ranks[0]}; {rest}."
    named = ", ".join(str(rank) for rank in ranks[:-1]) + f" and {ranks[-1]}"
    return f"The longest path spends {share} of the step on ranks {named}, about as much on each; {rest}."


def _phrase(part: Contribution) -> str:
    passes = "pass" if part.times == 1 else "passes"
    if part.what in ("forward", "backward"):
        return f"{part.times} {part.what} {passes} of virtual stage {part.virtual_stage} (rank {part.rank})"
    return {
        "head": f"optimizer step and parameter gather before the first forward of rank {part.rank}",
        "tail": f"gradient reduction of rank {part.rank} that no backward hides",
        "transfers": f"{part.times} transfers between ranks",
        "barrier": "gradient-norm all-reduce",
    }[part.what]
