"""Random stage problems of every schedule for the engine's tests, small enough to enumerate."""

from __future__ import annotations

import random
from dataclasses import replace

from prism_cp.baselines.exhaustive import count_plans
from prism_cp.pipeline import schedule_names
from prism_cp.stage_problem import StageProblem
from tests.random_problems import random_stage_problem

SCHEDULES = schedule_names()


def small_problem(seed: int, most_plans: int = 1_000) -> StageProblem:
    """A problem of schedule ``seed mod number of schedules``; every fourth has forward times that strategies change."""
    rng = random.Random(seed)
    schedule = SCHEDULES[seed % len(SCHEDULES)]
    folded = schedule in ("interleaved", "zb-v", "dualpipe", "dualpipev")
    while True:
        problem = random_stage_problem(
            rng, schedules=(schedule,), max_pp=2 if folded else 3, max_microbatches=8 if folded else 6
        )
        if rng.random() < 0.25:
            problem = _varied_forward(rng, problem)
        if count_plans(problem) <= most_plans:
            return problem


def without_reduction(problem: StageProblem) -> StageProblem:
    """The same with no gradient reduction: every tail is the rank's last bucket, whatever the strategies."""
    tables = tuple(tuple(replace(kind, reduce=0) for kind in table) for table in problem.tables)
    stages = tuple(replace(stage, ends=replace(stage.ends, reduce=0)) for stage in problem.virtual_stages)
    return problem.replace(tables=tables, virtual_stages=stages)


def _varied_forward(rng: random.Random, problem: StageProblem) -> StageProblem:
    tables = tuple(
        tuple(
            replace(kind, strategies=tuple(replace(s, forward=s.forward + rng.randint(0, 5)) for s in kind.strategies))
            for kind in table
        )
        for table in problem.tables
    )
    return problem.replace(tables=tables)
