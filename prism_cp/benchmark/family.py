"""Benchmark room: the family of hard stage problems the engine is measured on.

Real tables: DeepSeek-V3 (61 decoder layers and one for multi-token prediction) on H800 and Qwen3-235B-A22B (94 layers)
on H100, with pinned layouts. Memory is scaled: tightness 0 is what an even split needs with the most memory-saving
strategies, 1 what it needs with the fastest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from prism_cp.inputs.layout import Layout
from prism_cp.inputs.load import load_instance
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.pipeline import live_vectors
from prism_cp.stage_problem import Assignment, StageProblem, rank_memories


@dataclass(frozen=True)
class Pins:
    """A catalogue model on a catalogue cluster, and the layout fields the family does not vary."""

    model: str
    cluster: str
    gbs: int
    tp: int
    sp: bool
    ep: int
    dp: int


MODELS = {
    "ds": Pins("deepseek-v3", "2048xh800", gbs=15360, tp=1, sp=False, ep=64, dp=256),
    "qw": Pins("qwen3-235b-a22b", "256xh100", gbs=2048, tp=2, sp=True, ep=16, dp=16),
}


@dataclass(frozen=True)
class FamilyCase:
    """One stage problem of the family."""

    model: str
    schedule: str
    pp: int
    vpp: int
    num_microbatches: int
    tightness: float

    @property
    def name(self) -> str:
        """Readable and unique."""
        return f"{self.model}-{self.schedule}-pp{self.pp}-vpp{self.vpp}-m{self.num_microbatches}-{self.tightness:g}"


def _cases() -> tuple[FamilyCase, ...]:
    rows = {
        ("ds", "interleaved", 2): (
            (4, 16, 0.3), (4, 64, 0.3), (8, 64, 0.15), (8, 64, 1.0), (8, 128, 0.3), (16, 64, 0.3),
        ),
        ("qw", "interleaved", 2): (
            (4, 64, 0.3), (8, 16, 0.3), (8, 64, 1.0), (8, 128, 0.15), (8, 256, 0.6), (16, 64, 0.3),
        ),
        ("ds", "interleaved", 4): ((4, 16, 0.3), (4, 64, 1.0), (8, 16, 0.7), (8, 64, 0.3)),
        ("qw", "interleaved", 4): ((4, 16, 0.3), (4, 64, 1.0), (8, 64, 0.3), (8, 64, 1.0)),
        ("ds", "1f1b", 1): ((4, 16, 0.6), (8, 64, 0.3), (16, 128, 0.3)),
        ("qw", "1f1b", 1): ((4, 64, 0.6), (8, 64, 0.3), (16, 256, 0.15)),
        ("ds", "zb-h1", 1): ((8, 64, 0.3),),
        ("qw", "zb-v", 2): ((8, 64, 0.3),),
        ("ds", "dualpipe", 1): ((8, 64, 0.3),),
        ("qw", "dualpipev", 2): ((8, 64, 0.3),),
    }  # fmt: skip
    return tuple(
        FamilyCase(model, schedule, pp, vpp, m, tightness)
        for (model, schedule, vpp), sizes in rows.items()
        for pp, m, tightness in sizes
    )


FAMILY = _cases()


@lru_cache(maxsize=2)
def _cost_model(model: str) -> CostModel:
    pins = MODELS[model]
    return CostModel(load_instance(None, model=pins.model, cluster=pins.cluster, gbs=pins.gbs, seq_len=4096))


def family_problem(case: FamilyCase) -> StageProblem:
    """The stage problem of a case."""
    pins = MODELS[case.model]
    model = _cost_model(case.model)
    layout = Layout(
        tp=pins.tp, sp=pins.sp, cp=1, cp_comm="p2p", ep=pins.ep, etp=1, dp=pins.dp,
        pp=case.pp, vpp=case.vpp, mbs=1, zero=1, schedule=case.schedule, num_microbatches=case.num_microbatches,
    )  # fmt: skip
    problem = build_stage_problem(model.instance, layout, model)
    least, most = (_even_memory(problem, fast) for fast in (False, True))
    capacity = least + int((most - least) * case.tightness)
    return problem.replace(ranks=tuple(replace(rank, capacity=capacity) for rank in problem.ranks))


def _even_memory(problem: StageProblem, fast: bool) -> int:
    """Most memory any rank needs under an even cut, with the fastest or the most memory-saving strategies."""
    pieces, length = problem.num_pieces, len(problem.layers)
    bounds = tuple(piece * length // pieces for piece in range(pieces + 1))
    prefix = problem.prefix_counts
    counts = []
    for start, stop in pairwise(bounds):
        rows = []
        for kind, costs in enumerate(problem.tables[0]):
            strategies = costs.strategies
            best = min(
                range(len(strategies)),
                key=lambda q: (
                    (strategies[q].input_grad, strategies[q].activation)
                    if fast
                    else (strategies[q].activation, strategies[q].input_grad)
                ),
            )
            layers = prefix[kind][stop] - prefix[kind][start]
            rows.append(tuple(layers if q == best else 0 for q in range(len(strategies))))
        counts.append(tuple(rows))
    live = live_vectors(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)
    return max(row.total for row in rank_memories(problem, Assignment(bounds, tuple(counts)), live))
