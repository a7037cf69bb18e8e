"""Report room: why nothing fits, found on the layouts that come closest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from prism_cp.inputs.instance import Instance
from prism_cp.plan import PlanLayout

if TYPE_CHECKING:
    from prism_cp.stage_problem import RankMemory

GIB = 2**30
MOST_LAYOUTS = 8  # layouts examined exactly
MOST_CELLS = 200_000  # layouts estimated


@dataclass(frozen=True)
class RankShortage:
    """A rank that lacks memory in the plan that overshoots least."""

    rank: int
    term: str  # the largest part of its memory
    short_gib: float
    memory_gib: dict[str, float]


@dataclass(frozen=True)
class LayoutShortage:
    """One layout and what it lacks; `ranks` worst first."""

    layout: PlanLayout
    ranks: tuple[RankShortage, ...]

    @property
    def short_gib(self) -> float:
        """What its worst rank lacks."""
        return self.ranks[0].short_gib

    def as_json(self) -> dict[str, Any]:
        """Layout and ranks in JSON's types."""
        ranks = [
            {"rank": r.rank, "term": r.term, "short_gib": r.short_gib, "memory_gib": r.memory_gib} for r in self.ranks
        ]
        return {"layout": self.layout.model_dump(), "short_gib": self.short_gib, "ranks": ranks}


def closest_layouts(instance: Instance, *, limit: int = MOST_LAYOUTS) -> list[LayoutShortage]:
    """The layouts that come closest to fitting, closest first.

    All layouts are ranked by an estimate of what their first rank needs at least; the `limit` best ones are then
    examined exactly, each by the plan whose worst rank overshoots least.
    """
    from prism_cp.cp.explain import explain_infeasible
    from prism_cp.formulas.evaluate import exact_function
    from prism_cp.formulas.overheads import capacity_bytes, usable_bytes
    from prism_cp.integer_tables import CostModel, build_stage_problem
    from prism_cp.layouts.admissible import AdmissibleLayouts, layout_at

    admissible = AdmissibleLayouts(instance)
    model = CostModel(instance)
    cells = np.arange(min(len(admissible.cells["tp"]), MOST_CELLS))
    columns, _ = admissible.expand(cells)
    order = np.argsort(_least_need(model.evaluate(columns), columns, instance), kind="stable")
    [margin] = exact_function([usable_bytes(instance) - capacity_bytes(instance)], ())()
    found = []
    for index in order[:limit]:
        layout = layout_at(columns, int(index))
        shortages = explain_infeasible(build_stage_problem(instance, layout, model))
        ranks = tuple(
            RankShortage(
                shortage.rank,
                shortage.term,
                shortage.short_by * instance.memory_unit_bytes / GIB,
                {**_row_gib(shortage.row, instance.memory_unit_bytes), "margin": float(margin / GIB)},
            )
            for shortage in shortages
            if shortage.row is not None
        )
        if ranks:
            found.append(LayoutShortage(PlanLayout.of(layout), ranks))
    return sorted(found, key=lambda shortage: shortage.short_gib)


def _row_gib(row: RankMemory, unit_bytes: int) -> dict[str, float]:
    parts = {
        "static": row.static,
        "activations": row.activation,
        "transient": row.transient,
        "buffers": row.buffers,
        "fixed": row.fixed,
        "total": row.total,
        "capacity": row.capacity,
    }
    return {name: units * unit_bytes / GIB for name, units in parts.items()}


def _least_need(costs: Any, columns: dict[str, np.ndarray], instance: Instance) -> np.ndarray:
    """Bytes over capacity of an average rank with every layer at its smallest; only ranks layouts."""
    chain, kinds = instance.model.chain, instance.model.chain_kinds
    total: Any = 0.0
    for index, kind in enumerate(kinds):
        cost = costs.kinds[index]
        smallest = np.minimum.reduce([np.broadcast_to(a, columns["tp"].shape) for a in cost.activation_bytes])
        live = np.minimum(columns["num_microbatches"], columns["pp"])
        state = cost.weight_bytes + cost.gradient_bytes + cost.optimizer_bytes
        total = total + chain.count(kind) * (state + live * smallest)
    return np.asarray(total / columns["pp"] + costs.fixed_bytes - costs.capacity_bytes)
