"""Report room: the simulated pipeline in the Trace Event Format, which chrome://tracing and ui.perfetto.dev open.

Source of the format: "Trace Event Format", Google, 2016 (the Catapult project's document). One process is one
pipeline; every rank is a thread, and so is what it sends.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import prism_cp
from prism_cp.breakdown import TableSource
from prism_cp.pipeline import OpType
from prism_cp.plan import Plan
from prism_cp.report.memory_curve import memory_curves
from prism_cp.report.plan_report import layers_text, layout_text, recomputation_text
from prism_cp.report.timeline import Cut, Timeline, Transfer, plan_timeline

Event = dict[str, Any]
MOST_OPS = 20_000  # drawn unless asked for more; viewers stay quick and files below about 15 MB
PROCESS = 1
# Colour names the format reserves; their order puts unlike colours on neighbouring micro-batches.
COLOURS = (
    "thread_state_running",
    "rail_animation",
    "rail_response",
    "thread_state_iowait",
    "cq_build_passed",
    "rail_load",
    "startup",
    "cq_build_attempt_failed",
)
GREY = "grey"
OP_NAMES = {
    OpType.FORWARD: ("F", "forward"),
    OpType.BACKWARD: ("B+W", "backward"),
    OpType.INPUT_GRAD: ("B", "input gradient"),
    OpType.WEIGHT_GRAD: ("W", "weight gradient"),
    OpType.OVERLAPPED_FORWARD: ("F", "overlapped forward"),
    OpType.OVERLAPPED_BACKWARD: ("B+W", "overlapped backward"),
}


def default_microbatches(timeline: Timeline) -> int | None:
    """Micro-batches to keep at either end so that about `MOST_OPS` ops remain; None when all may stay."""
    if timeline.num_ops <= MOST_OPS:
        return None
    per_microbatch = timeline.num_ops // timeline.layout.num_microbatches
    return max(1, MOST_OPS // (2 * per_microbatch))


def trace_json(plan: Plan, microbatches: int | None = None, *, tables: TableSource | None = None) -> tuple[str, str]:
    """The trace of a plan's pipeline.

    Parameters
    ----------
    microbatches
        How many to keep at either end of the run (see `Timeline.cut`); None: all, or as many as viewers can take.

    Returns
    -------
    (str, str)
        JSON text, and a sentence on what was left out (empty when nothing was).

    Raises
    ------
    PlanError
        The plan holds no layout, or contradicts itself.
    """
    timeline = plan_timeline(plan)
    kept = default_microbatches(timeline) if microbatches is None else microbatches
    cut = None if kept is None else timeline.cut(kept)
    writer = _Writer(timeline, cut)
    events = [*writer.metadata(), *writer.ops(), *writer.transfers(), *writer.counters(tables)]
    said = ""
    if cut is not None:
        said = (
            f"{writer.omitted:,} of {timeline.num_ops:,} ops are left out: "
            f"the trace holds about {kept} micro-batches at either end"
        )
    other = {
        "instance": plan.instance_name,
        "instance_digest": plan.instance_digest,
        "status": plan.status,
        "layout": layout_text(timeline.layout),
        "step_time_s": plan.step_time_s,
        "left_out": said or "nothing",
        "prism_cp": prism_cp.__version__,
    }
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in events)
    text = f'{{"displayTimeUnit":"ms","otherData":{json.dumps(other)},\n"traceEvents":[\n{lines}\n]}}\n'
    return text, said


class _Writer:
    """Turns a timeline into events."""

    def __init__(self, timeline: Timeline, cut: Cut | None) -> None:
        self.timeline, self.plan, self.cut = timeline, timeline.plan, cut
        self.omitted = 0
        # The unit as the user wrote it: 1e-06 s is exactly one microsecond.
        self.microseconds = Fraction(str(self.plan.time_unit_s)) * 1_000_000
        self.width = len(str(timeline.layout.pp - 1))
        self.lanes: list[list[Transfer]] = []

    def time(self, units: int) -> int | float:
        """Microseconds, whole where they are."""
        exact = units * self.microseconds
        return int(exact) if exact.denominator == 1 else float(exact)

    def shown(self, start: int, end: int) -> bool:
        """Whether a piece of the run is in the trace."""
        return self.cut is None or start < self.cut.first_end or end > self.cut.last_start

    def complete(self, name: str, thread: int, start: int, end: int, colour: str, args: Event) -> Event:
        """A slice."""
        return {
            "name": name,
            "ph": "X",
            "pid": PROCESS,
            "tid": thread,
            "ts": self.time(start),
            "dur": self.time(end - start),
            "cname": colour,
            "args": args,
        }

    def metadata(self) -> Iterator[Event]:
        """Names and order of process and threads."""
        layout = self.timeline.layout
        copies = layout.tp * layout.cp * layout.dp
        text = f"{self.plan.instance_name}: pipeline ({copies} devices a rank do the same)"
        yield {"name": "process_name", "ph": "M", "pid": PROCESS, "tid": 0, "args": {"name": text}}
        for rank in range(layout.pp):
            yield from self._thread(self._rank_thread(rank), f"rank {rank:0{self.width}}")

    def _thread(self, thread: int, name: str) -> Iterator[Event]:
        yield {"name": "thread_name", "ph": "M", "pid": PROCESS, "tid": thread, "args": {"name": name}}
        yield {"name": "thread_sort_index", "ph": "M", "pid": PROCESS, "tid": thread, "args": {"sort_index": thread}}

    @staticmethod
    def _rank_thread(rank: int) -> int:
        return 1 + rank

    def ops(self) -> Iterator[Event]:
        """Head, ops, tail and barrier of every rank; a grey slice stands for what is left out."""
        stages, end_of_all = self.plan.virtual_stages, self.timeline.pipeline_time
        texts = [(layers_text(stage), recomputation_text(stage)) for stage in stages]
        for rank, run in enumerate(self.timeline.ranks):
            thread, costs = self._rank_thread(rank), self.plan.ranks[rank]
            if costs.head:
                yield self.complete("optimizer step, parameter gather", thread, 0, costs.head, GREY, {})
            gap: list[tuple[int, int]] = []
            columns = (run.op_type, run.virtual_stage, run.microbatch, run.start, run.end)
            for op_type, stage, microbatch, start, end in zip(*(column.tolist() for column in columns), strict=True):
                if not self.shown(start, end):
                    gap.append((start, end))
                    continue
                if gap:
                    yield self._omitted(thread, gap)
                    gap = []
                short, long = OP_NAMES[OpType(op_type)]
                layers, recomputation = texts[stage]
                args = {
                    "op": long,
                    "micro-batch": microbatch,
                    "virtual stage": stage,
                    "layers": layers,
                    "recomputation": recomputation,
                }
                yield self.complete(f"{short} {microbatch}", thread, start, end, self.colour(microbatch), args)
            last = int(run.end[-1])
            if costs.tail:
                yield self.complete("gradient reduction", thread, last, last + costs.tail, GREY, {})
            if self.timeline.barrier:
                after = end_of_all + self.timeline.barrier
                yield self.complete("gradient-norm all-reduce", thread, end_of_all, after, GREY, {})

    def _omitted(self, thread: int, gap: list[tuple[int, int]]) -> Event:
        self.omitted += len(gap)
        return self.complete(f"{len(gap)} ops left out", thread, gap[0][0], gap[-1][1], GREY, {})

    @staticmethod
    def colour(microbatch: int) -> str:
        """A colour that neighbouring micro-batches do not share."""
        return COLOURS[microbatch % len(COLOURS)]

    def transfers(self) -> Iterator[Event]:
        """Transfers on threads of the sending rank, each with an arrow to the op that needs it.

        Slices of a thread must not overlap, so a rank that sends while an earlier transfer is under way gets another
        thread.
        """
        if not self.plan.p2p:
            return
        pp = self.timeline.layout.pp
        free: list[list[int]] = [[] for _ in range(pp)]  # per rank and lane: when it is free again
        names: dict[int, str] = {}
        for number, transfer in enumerate(self.timeline.transfers()):
            if not self.shown(transfer.depart, transfer.arrive):
                continue
            lanes = free[transfer.source]
            lane = next((index for index, moment in enumerate(lanes) if moment <= transfer.depart), len(lanes))
            lanes[lane:] = [transfer.arrive, *lanes[lane + 1 :]]
            thread = 1 + pp * (1 + lane) + transfer.source
            names.setdefault(thread, f"rank {transfer.source:0{self.width}} sends" + (f" ({lane + 1})" if lane else ""))
            yield from self._transfer(thread, number, transfer)
        for thread, name in names.items():
            yield from self._thread(thread, name)

    def _transfer(self, thread: int, number: int, transfer: Transfer) -> Iterator[Event]:
        what = "gradient" if transfer.is_gradient else "activation"
        args = {"micro-batch": transfer.microbatch, "to rank": transfer.target, "virtual stage": transfer.virtual_stage}
        colour = self.colour(transfer.microbatch)
        name = f"{what} {transfer.microbatch} to rank {transfer.target}"
        yield self.complete(name, thread, transfer.depart, transfer.arrive, colour, args)
        if not self.shown(transfer.used, transfer.used + 1):
            return
        arrow = {"name": "data", "cat": "p2p", "id": number, "pid": PROCESS}
        yield {**arrow, "ph": "s", "tid": thread, "ts": self.time(transfer.depart)}
        target = self._rank_thread(transfer.target)
        yield {**arrow, "ph": "f", "bp": "e", "tid": target, "ts": self.time(transfer.used)}

    def counters(self, tables: TableSource | None) -> Iterator[Event]:
        """Memory of every rank in GiB."""
        gib = Fraction(self.plan.memory_unit_bytes, 2**30)
        for rank, curve in enumerate(memory_curves(self.timeline, tables)):
            name = f"memory of rank {rank:0{self.width}}"
            for moment, units in curve:
                if self.shown(moment, moment + 1):
                    args = {"GiB": float(units * gib)}
                    yield {"name": name, "ph": "C", "pid": PROCESS, "ts": self.time(moment), "args": args}
