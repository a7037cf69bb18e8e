"""Plan room: the versioned answer a user gets, as one frozen value that goes to JSON and back without loss.

Nothing is computed here; `prism_cp.plan_builder` fills the fields and `prism_cp.check` recomputes them. Running this
module (``python -m prism_cp.plan FILE``) writes the JSON Schema, shipped as ``prism_cp/schemas/plan.schema.json``.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue, ValidationError

from prism_cp.errors import InstanceError, PlanError
from prism_cp.inputs.base import FrozenModel
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.inputs.reading import parse_json, parse_yaml, read_text
from prism_cp.inputs.suggest import shown

SCHEMA_VERSION = 1
Count = Annotated[int, Field(ge=0)]
Size = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(ge=0)]
Gib = Annotated[float, Field(ge=0)]
Ratio = Annotated[float, Field(ge=0)]
CertificateLevel = Literal["checked", "bound", "reproved", "cross-engine", "exhaustive"]


class PlanLayout(FrozenModel):
    """One value for every layout field, with the derived expert data-parallel size."""

    tp: Size
    sp: bool
    cp: Size
    cp_comm: str
    ep: Size
    etp: Size
    edp: Size = Field(description="expert data parallel: tp*cp*dp / (ep*etp)")
    dp: Size
    pp: Size
    vpp: Size
    mbs: Size
    zero: Annotated[int, Field(ge=0, le=3)]
    schedule: str
    num_microbatches: Size = Field(description="gbs / (mbs*dp)")

    @classmethod
    def of(cls, layout: Layout) -> PlanLayout:
        """The plan's record of a layout."""
        return cls.model_validate({**layout.as_dict(), "edp": layout.edp})

    def layout(self) -> Layout:
        """The layout itself (`edp` follows from the other fields)."""
        return Layout(**self.model_dump(exclude={"edp"}))


class StageLayers(FrozenModel):
    """The piece of the chain a virtual stage holds. Positions count from 0 and include both ends; a multi-token-
    prediction block is the one chain item after the last decoder layer."""

    first: Count | None = Field(description="null when the stage holds no chain item")
    last: Count | None
    count: Count
    kinds: dict[str, Size] = Field(description="chain items by kind")
    embedding: bool
    mtp: bool
    head: bool


class VirtualStagePlan(FrozenModel):
    """One virtual stage. Times are for one micro-batch, in units of `Plan.time_unit_s`."""

    rank: Count
    piece: Count = Field(description="which piece of the chain; two virtual stages share one in mirrored schedules")
    layers: StageLayers
    strategies: dict[str, dict[str, Size]] = Field(description="kind -> recomputation strategy -> layers")
    forward: Count
    input_grad: Count = Field(description="recomputation included")
    weight_grad: Count


class MemoryGib(FrozenModel):
    """A rank's fullest moment, in GiB; the terms add up to `total`."""

    total: Gib
    capacity: Gib = Field(description="what the plan may fill: device memory less fragmentation and margin")
    margin: Gib = Field(description="kept free besides, against errors of the memory model: profile.memory_margin")
    headroom: float = Field(description="capacity - total")
    weights: Gib
    gradients: Gib
    optimizer: Gib
    activations: Gib = Field(description="of all live micro-batches")
    transient: Gib
    buffers: Gib
    fixed: Gib = Field(description="context, communicators, workspaces")
    rounding: float = Field(description="what rounding table entries up to memory units added")


class RankTime(FrozenModel):
    """Where a rank spends the pipeline's time, in seconds.

    All but `recomputation` and `overlap` add up to the pipeline time plus `overlap`.
    """

    forward: Seconds
    backward: Seconds = Field(description="input and weight gradients, recomputation included")
    recomputation: Seconds | None = Field(
        description="part of backward; null where a layer kind has no strategy 'none' to compare with"
    )
    head: Seconds = Field(description="optimizer step and exposed parameter gather, before the first forward")
    tail: Seconds = Field(description="gradient reduction that no backward hides")
    overlap: Seconds = Field(description="time in which a forward and a backward run at once, counted in both")
    bubble: Seconds = Field(description="waiting")


class RankPlan(FrozenModel):
    """One pipeline rank. `head` and `tail` are in units of `Plan.time_unit_s`."""

    rank: Count
    head: Count
    tail: Count
    memory_gib: MemoryGib
    memory_phase: Literal["forward-backward", "optimizer-step"] = Field(description="when memory is fullest")
    live_microbatches: tuple[Count, ...] = Field(
        description="micro-batches alive then, one entry per virtual stage of the rank; empty in the optimizer step"
    )
    deferred_microbatches: tuple[Count, ...] = Field(
        description="of these, the ones between input gradient and weight gradient; empty where backwards are whole",
    )
    time_s: RankTime


class SearchSummary(FrozenModel):
    """What became of the admissible layouts, and the effort."""

    layouts_total: Count
    pruned: Count
    no_better: Count
    solved: Count
    infeasible: Count
    open: Count
    wall_s: Seconds
    deterministic_time: Ratio = Field(description="CP-SAT's deterministic time, summed over all solves")
    workers: Size
    interrupted: bool


class PlanCertificate(FrozenModel):
    """What supports the claim, weakest level first, and what each level's prover reported."""

    levels: tuple[CertificateLevel, ...]
    details: dict[str, JsonValue] = Field(default_factory=dict)


class Alternative(FrozenModel):
    """Another layout and how it ended. Values are pipeline time plus barrier."""

    layout: PlanLayout
    ending: Literal["pruned", "no_better", "solved", "infeasible", "open"]
    lower_bound: Count = Field(description="time units")
    lower_bound_s: Seconds
    best: Count | None = Field(description="best known value in time units; null when no plan is known")
    best_s: Seconds | None
    boundaries: tuple[Count, ...] | None = Field(description="where its best known plan cuts the chain")
    counts: tuple[tuple[tuple[Count, ...], ...], ...] | None = Field(description="[piece][kind][strategy] -> layers")
    reason: str


class NominalPlan(FrozenModel):
    """The best plan known under one load. Values are pipeline time plus barrier there."""

    layout: PlanLayout
    boundaries: tuple[Count, ...]
    counts: tuple[tuple[tuple[Count, ...], ...], ...] = Field(description="[piece][kind][strategy] -> layers")
    objective: Count = Field(description="time units")
    bound: Count = Field(description="no plan is faster at that load; equal to objective: proved")


class RobustPoint(FrozenModel):
    """Both plans under one load; step times are null where a plan does not fit."""

    load: Ratio
    step_time: Count | None = Field(description="of the robust plan, time units")
    step_time_s: Seconds | None
    headroom_gib: float = Field(description="of the fullest rank; negative: what is missing")
    nominal_step_time: Count | None
    nominal_step_time_s: Seconds | None
    nominal_headroom_gib: float | None


class RobustSummary(FrozenModel):
    """How the plan does over a range of expert loads, beside the plan that is best at the lowest one."""

    parameter: Literal["load"]
    low: Ratio
    high: Ratio
    proved: bool = Field(description="worst_case_at_most equals lower_bound: no plan has a better worst case")
    lower_bound: Count = Field(description="no plan's largest step time over the range is smaller, time units")
    worst_case_at_least: Count = Field(description="largest step time at the loads of bounded_loads, time units")
    worst_case_at_most: Count | None = Field(
        description="no load of the range has a larger one; null where the plan is not shown to fit at all of them"
    )
    worst_case_s: Seconds | None
    bounded_loads: tuple[Ratio, ...] = Field(description="ends of the ranges that were bounded one by one")
    nominal: NominalPlan | None = Field(description="best at the lowest load")
    adapted: NominalPlan | None = Field(
        description="in the nominal plan's layout, with stages and recomputation chosen anew: best at the highest load"
    )
    adapted_status: Literal["optimal", "feasible", "infeasible", "unknown"] = Field(
        description="of the search for it; infeasible: the nominal layout does not fit there whatever is recomputed"
    )
    price: float | None = Field(description="step time of the plan over nominal.objective at the lowest load, less 1")
    regret: float | None = Field(
        description="nominal plan's step time over this plan's at the highest load, less 1; null: it does not fit"
    )
    adapted_regret: float | None = Field(description="as regret, of the adapted plan; null: none is known")
    points: tuple[RobustPoint, ...]


class Plan(FrozenModel):
    """The answer to one instance; without a feasible plan the fields of the plan proper are null.

    `objective` and `bound` are integers in `time_unit_s`: pipeline time plus barrier. `pipeline_time` is the longest
    path of the schedule's event graph over the stage times given here, heads and tails included.
    """

    schema_version: Literal[1]
    instance_name: str
    instance_digest: str
    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    proved: bool
    objective: Count | None
    bound: Count | None
    gap: float | None = Field(description="(objective - bound) / objective")
    step_time_s: Seconds | None
    bound_s: Seconds | None
    tokens_per_s: Ratio | None
    mfu: Ratio | None = Field(description="model FLOP/s over peak FLOP/s of all devices")
    hfu: Ratio | None = Field(description="as mfu, with the recomputed FLOPs counted as well")
    flops_convention: str
    layout: PlanLayout | None
    time_unit_s: Annotated[float, Field(gt=0)]
    memory_unit_bytes: Size
    pipeline_time: Count | None
    barrier: Count | None = Field(description="gradient-norm all-reduce, time units")
    p2p: Count | None = Field(description="one transfer between ranks, time units")
    virtual_stages: tuple[VirtualStagePlan, ...] = Field(description="in forward order")
    ranks: tuple[RankPlan, ...]
    search: SearchSummary
    certificate: PlanCertificate
    versions: dict[str, str]
    seed: int
    top_k: tuple[Alternative, ...] = Field(description="further layouts, best bound first")
    robust: RobustSummary | None = Field(
        default=None, description="over a range of loads; the plan is then stated at one end of it"
    )
    notes: tuple[str, ...]
    instance: Instance = Field(description="the whole problem, so that the plan explains itself")

    def to_json(self) -> str:
        """Indented JSON text; `plan_from_json` gives back an equal plan."""
        return self.model_dump_json(indent=2)


def plan_from_json(text: str, source: str = "") -> Plan:
    """Plan from its JSON text.

    Raises
    ------
    PlanError
        The text is no JSON object, of another schema version, or a field is missing, unknown or of the wrong type.
    """
    try:
        value = parse_json(text, source)
    except InstanceError as error:
        raise PlanError(error.key, error.problem, error.accepted, source) from error
    if not isinstance(value, dict):
        raise PlanError("", "file holds no JSON object", "a plan written by `prism-cp solve --json`", source)
    version = value.get("schema_version")
    if version != SCHEMA_VERSION or isinstance(version, bool):
        raise PlanError("schema_version", f"is {shown(version)}", str(SCHEMA_VERSION), source)
    try:
        return Plan.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        raise PlanError(key, f"{first['msg']}, found {shown(first['input'])}", "", source) from error


def read_plan(path: Path) -> Plan:
    """Plan from a file.

    Raises
    ------
    UsageError
        The file cannot be opened.
    PlanError
        It holds no valid plan.
    """
    text = read_text(path)
    try:
        return plan_from_json(text, str(path))
    except PlanError as error:
        if not _is_instance(text):
            raise
        accepted = "a plan written by `prism-cp solve --out`; arguments in their order"
        raise PlanError("", "holds an instance where a plan is expected", accepted, str(path)) from error


def _is_instance(text: str) -> bool:
    """Whether a text is YAML with the keys that every instance has."""
    try:
        value = parse_yaml(text, "")
    except InstanceError:
        return False
    return isinstance(value, dict) and "schema_version" not in value and len({"model", "cluster", "job"} & {*value}) > 1


def plan_schema() -> dict[str, Any]:
    """JSON Schema of `Plan.to_json`."""
    schema = Plan.model_json_schema(mode="serialization")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def plan_schema_text() -> str:
    """The shipped schema file's content."""
    return json.dumps(plan_schema(), indent=2) + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(plan_schema_text(), encoding="utf-8")
