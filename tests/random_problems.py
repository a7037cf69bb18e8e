"""Random small stage problems of every feature: kinds, strategies, transients, buffers, tails, tight memory."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

from prism_cp.pipeline import get_schedule
from prism_cp.stage_problem import (
    EndCosts,
    KindCosts,
    RankCosts,
    SharedBuffer,
    StageProblem,
    StrategyCosts,
    VirtualStage,
)


def random_stage_problem(
    rng: random.Random,
    *,
    schedules: tuple[str, ...] = ("gpipe", "1f1b"),
    max_layers: int = 7,
    max_pp: int = 3,
    max_kinds: int = 3,
    max_strategies: int = 4,
    max_microbatches: int = 6,
    interleaved_vpp: int = 2,
) -> StageProblem:
    """A random problem small enough to enumerate; about one in ten has no feasible plan."""
    chosen = rng.choice(schedules)
    schedule = get_schedule(chosen)
    unit = schedule.overlap_factor.denominator
    while True:
        pp = rng.randint(1, max_pp)
        vpp = 1 if schedule.name in ("gpipe", "1f1b", "zb-h1", "dualpipe") else 2
        if schedule.name == "interleaved":
            vpp = interleaved_vpp
        num_microbatches = rng.randint(1, max_microbatches)
        if schedule.why_not(pp, vpp, num_microbatches) is None:
            break
    placement = schedule.virtual_stages(pp, vpp)
    num_pieces = schedule.num_pieces(pp, vpp)
    num_layers = rng.randint(max(1, num_pieces - 1), max(max_layers, num_pieces))
    num_kinds = rng.randint(1, max_kinds)
    if rng.random() < 0.5:  # runs of kinds, as in most models
        layers = tuple(sorted(rng.randrange(num_kinds) for _ in range(num_layers)))
    else:
        layers = tuple(rng.randrange(num_kinds) for _ in range(num_layers))
    num_tables = 2 if rng.random() < 0.2 else 1
    strategies = [rng.randint(1, max_strategies) for _ in range(num_kinds)]
    tables = tuple(tuple(_kind(rng, kind, strategies[kind]) for kind in range(num_kinds)) for _ in range(num_tables))
    stages = tuple(
        VirtualStage(rank, piece, rng.randrange(num_tables), _ends(rng, index in (0, len(placement) - 1)))
        for index, (rank, piece) in enumerate(placement)
    )
    buffers = tuple(
        SharedBuffer(
            rng.randint(0, 8),
            frozenset(k for k in range(num_kinds) if rng.random() < 0.6),
            frozenset(i for i in range(len(stages)) if rng.random() < 0.2),
        )
        for _ in range(rng.randint(0, 2))
    )
    least = tuple(int(rng.random() < 0.4 and num_layers >= num_pieces) for _ in range(num_pieces))
    most = tuple(num_layers if rng.random() < 0.7 else rng.randint(max(1, n), num_layers) for n in least)
    # From tight to roomy; activations dominate.
    per_rank = num_layers / max(1, pp)
    capacity = int(rng.uniform(0.6, 2.2) * (20 + per_rank * (8 + 7 * min(num_microbatches, pp + vpp))))
    return StageProblem(
        schedule=chosen,
        pp=pp,
        vpp=vpp,
        num_microbatches=num_microbatches,
        p2p=rng.choice((0, 0, 1, 3)),
        barrier=rng.randint(0, 5),
        layers=layers,
        num_pieces=num_pieces,
        min_layers=least,
        max_layers=most,
        tables=tuple(tuple(_coarse(kind, unit) for kind in table) for table in tables),
        virtual_stages=tuple(replace(stage, ends=_times(stage.ends, unit)) for stage in stages),
        ranks=tuple(
            RankCosts(capacity + rng.randint(-4, 4), rng.randint(0, 6), rng.randint(0, 3), rng.randint(0, 4))
            for _ in range(pp)
        ),
        buffers=buffers,
    )


def _times(costs: Any, unit: int) -> Any:
    """Forward, input-gradient and weight-gradient times as multiples of `unit`."""
    if unit == 1:
        return costs
    times = {name: unit * getattr(costs, name) for name in ("forward", "input_grad", "weight_grad")}
    return replace(costs, **times)


def _coarse(kind: KindCosts, unit: int) -> KindCosts:
    return replace(kind, strategies=tuple(_times(strategy, unit) for strategy in kind.strategies))


def _kind(rng: random.Random, kind: int, num_strategies: int) -> KindCosts:
    forward, backward, activation = rng.randint(1, 12), rng.randint(1, 20), rng.randint(3, 12)
    weight = rng.randint(0, 6)
    strategies = []
    for index in range(num_strategies):
        again = rng.randint(0, forward) if index else 0
        kept = rng.randint(0, activation) if index else activation
        slow = backward + again
        strategies.append(
            StrategyCosts(
                f"s{index}",
                forward,
                slow,
                weight,
                rng.randint(0, slow + weight),
                kept,
                rng.choice((0, 2, 5, 9)),
            )
        )
    state = rng.randint(1, 12), rng.randint(0, 25), rng.randint(0, 3), rng.randint(0, 15)
    return KindCosts(f"kind{kind}", *state, tuple(strategies), activation + state[0] - 6)


def _ends(rng: random.Random, outer: bool) -> EndCosts:
    if not outer:
        return EndCosts()
    costs = [rng.randint(0, high) for high in (6, 9, 4, 5, 6, 9, 10, 10, 3, 8)]
    return EndCosts(*costs, deferred=costs[4] + costs[3] - 2)
