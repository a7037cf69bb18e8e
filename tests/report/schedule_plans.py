"""Plans of the sample instance under every schedule, made without any search."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from prism_cp.plan import Plan
from prism_cp.plan_builder import build_plan, simulated_time
from prism_cp.result import LayoutOutcome
from prism_cp.stage_problem import Assignment
from tests.sample_plan import ASSIGNMENT, LAYOUT, TABLES, sample_instance, sample_result

NUM_MICROBATCHES = 8
# Four pieces of the chain of five: dense; moe, moe; moe; mtp. Strategies none, mla_up_proj, full.
FOUR_PIECES = Assignment(
    (0, 1, 3, 4, 5),
    (
        ((0, 1, 0), (0, 0, 0), (0, 0, 0)),
        ((0, 0, 0), (1, 0, 1), (0, 0, 0)),
        ((0, 0, 0), (1, 0, 0), (0, 0, 0)),
        ((0, 0, 0), (0, 0, 0), (0, 0, 1)),
    ),
)
VPP = {"interleaved": 2, "zb-v": 2, "dualpipev": 2}


@cache
def schedule_plan(schedule: str) -> Plan:
    """A plan of the sample instance under a schedule: two ranks, eight micro-batches."""
    layout = replace(LAYOUT, schedule=schedule, vpp=VPP.get(schedule, 1), num_microbatches=NUM_MICROBATCHES)
    assignment = FOUR_PIECES if layout.vpp == 2 else ASSIGNMENT
    problem = TABLES(sample_instance(), layout).problem
    value = simulated_time(problem, assignment) + problem.barrier
    best = LayoutOutcome(layout, "solved", value, value, "", problem, assignment)
    result = replace(sample_result(), objective=value, bound=value, best=best, others=())
    return build_plan(sample_instance(), result, tables=TABLES)
