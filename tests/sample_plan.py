"""A complete plan made without any solver, for tests of plan, checker and reports: every part of the schema is used."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import yaml

from prism_cp.breakdown import ExactTables, Tables
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.inputs.load import instance_from_mapping
from prism_cp.plan import Plan
from prism_cp.plan_builder import build_plan, simulated_time
from prism_cp.result import LayoutOutcome, SearchResult, SearchStatistics
from prism_cp.stage_problem import Assignment

INSTANCE = """
name: sample
model:
  name: sample-model
  hidden_size: 1024
  vocab_size: 32000
  num_mtp_layers: 1
  mtp_kind: mla+moe
  kinds:
    - name: mla+dense
      attention: &mla {type: latent_attention, num_attention_heads: 16, q_lora_rank: 384, kv_lora_rank: 256,
                       qk_nope_head_dim: 64, qk_rope_head_dim: 32, v_head_dim: 64}
      feed_forward: {type: dense, intermediate_size: 2816}
    - name: mla+moe
      attention: *mla
      feed_forward: {type: moe, num_experts: 16, top_k: 4, intermediate_size: 512, shared_intermediate_size: 512}
  layers: [{kind: mla+dense, count: 1}, {kind: mla+moe, count: 3}]
cluster:
  name: 8-small-cards
  num_devices: 8
  device: {like: h100, name: small-h100, memory_bytes: 3221225472}
  links: [{name: NVLink, domain_size: 8, bytes_per_s: 1.0e+11, efficiency: 0.8, latency_s: 5.0e-6}]
profile: {like: megatron, memory_margin: 0.02, context_bytes: 0, communicator_bytes: 16777216, workspace_bytes: 0}
job: {gbs: 16, seq_len: 2048}
layout: {recompute: [none, mla_up_proj, full], cp: 1, etp: 1, mbs: 1}
"""
LAYOUT = Layout(
    tp=2, sp=True, cp=1, cp_comm="p2p", ep=2, etp=1, dp=2, pp=2, vpp=1, mbs=1, zero=1, schedule="1f1b",
    num_microbatches=8,
)  # fmt: skip
# Kinds in chain order: dense, moe, mtp; strategies none, mla_up_proj, full.
ASSIGNMENT = Assignment((0, 3, 5), (((1, 0, 0), (1, 0, 1), (0, 0, 0)), ((0, 0, 0), (0, 1, 0), (1, 0, 0))))


@dataclass(frozen=True)
class Certificate:
    """As the certifying room's, which imports solvers."""

    levels: tuple[str, ...] = ()
    details: dict[str, Any] = field(default_factory=dict)


class CachedTables:
    """Exact tables, each layout's computed once."""

    def __init__(self) -> None:
        self._exact = ExactTables()
        self._known: dict[Layout, Tables] = {}

    def __call__(self, instance: Instance, layout: Layout) -> Tables:
        if instance is not sample_instance():
            return self._exact(instance, layout)
        if layout not in self._known:
            self._known[layout] = self._exact(instance, layout)
        return self._known[layout]


TABLES = CachedTables()


@cache
def sample_instance() -> Instance:
    """Latent attention, one dense layer, three with experts, one prediction layer, eight small cards."""
    return instance_from_mapping(yaml.safe_load(INSTANCE))


@cache
def sample_result() -> SearchResult:
    """What a search could have returned: proved, with a solved, a pruned and an infeasible alternative."""
    problem = TABLES(sample_instance(), LAYOUT).problem
    value = simulated_time(problem, ASSIGNMENT) + problem.barrier
    best = LayoutOutcome(LAYOUT, "solved", value, value, "bound met", problem, ASSIGNMENT)
    slower = replace(LAYOUT, schedule="gpipe")
    slower_problem = TABLES(sample_instance(), slower).problem
    slower_value = simulated_time(slower_problem, ASSIGNMENT) + slower_problem.barrier
    assert slower_value >= value
    narrower = replace(LAYOUT, tp=4, dp=1, zero=0, num_microbatches=16)
    others = (
        LayoutOutcome(slower, "solved", slower_value, slower_value, "bound met", slower_problem, ASSIGNMENT),
        LayoutOutcome(narrower, "pruned", value + 7, None, "work bound"),
        LayoutOutcome(replace(LAYOUT, ep=4), "infeasible", value, None, "nothing fits"),
    )
    statistics = SearchStatistics(20, 10, 3, 4, 3, 0, wall_s=1.5, deterministic_time=0.25)
    return SearchResult(
        "optimal", True, value, value, best, others, (best, *others), statistics, seed=3, workers=2, notes=("a note",)
    )


@cache
def sample_plan() -> Plan:
    """The plan of `sample_result`, with every certificate level that needs details."""
    certificate = Certificate(("bound", "reproved"), {"reproved": {"layouts_reproved": 4}})
    return build_plan(sample_instance(), sample_result(), certificate, tables=TABLES)


@cache
def infeasible_plan() -> Plan:
    """The plan of a proved infeasible search."""
    result = replace(
        sample_result(), status="infeasible", objective=None, bound=None, best=None, others=(), opened=(),
        statistics=SearchStatistics(20, 0, 0, 0, 20, 0, 1.0, 0.0),
    )  # fmt: skip
    return build_plan(sample_instance(), result, tables=TABLES)
