"""Pipeline room: the event graph in networkx, for reading, explaining and testing.

Its longest path is the pipeline time. It is built from the op orders and the dependencies as stated, not from the
arrays of the fast simulator.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import networkx as nx

from prism_cp.pipeline.program import check_sizes
from prism_cp.pipeline.schedules import get_schedule
from prism_cp.pipeline.schedules.base import FORWARDS, WHOLE_BACKWARDS, Op, OpType, Schedule

START, END = "start", "end"


def event_graph(
    schedule: str | Schedule,
    pp: int,
    vpp: int,
    num_microbatches: int,
    forward: Sequence[int],
    input_grad: Sequence[int],
    weight_grad: Sequence[int],
    head: Sequence[int],
    tail: Sequence[int],
    p2p: int,
) -> nx.DiGraph:
    """Event graph of one run; parameters as for the simulator.

    Returns
    -------
    networkx.DiGraph
        Nodes are ``Op`` with attributes ``rank``, ``duration`` and ``label``, besides ``"start"`` and ``"end"``. An
        edge says "not before": ``weight`` is the time from the start of one op to the earliest start of the other, and
        ``reason`` is ``"order"``, ``"data"``, ``"head"`` or ``"tail"``.
    """
    chosen = get_schedule(schedule)
    check_sizes(chosen, pp, vpp, num_microbatches)
    ranks = [rank for rank, _ in chosen.virtual_stages(pp, vpp)]
    duration = {
        OpType.FORWARD: [int(f) for f in forward],
        OpType.BACKWARD: [int(b) + int(w) for b, w in zip(input_grad, weight_grad, strict=True)],
        OpType.INPUT_GRAD: [int(b) for b in input_grad],
        OpType.WEIGHT_GRAD: [int(w) for w in weight_grad],
    }
    duration[OpType.OVERLAPPED_FORWARD] = duration[OpType.FORWARD]
    duration[OpType.OVERLAPPED_BACKWARD] = duration[OpType.BACKWARD]
    partner: dict[Op, Op] = {}
    graph = nx.DiGraph()
    for rank, rows in enumerate(chosen.orders(pp, vpp, num_microbatches)):
        before: Op | None = None
        for row in rows.tolist():
            op = Op(OpType(row[0]), row[1], row[2])
            graph.add_node(op, rank=rank, duration=duration[op.type][op.virtual_stage], label=describe(op))
            if before is not None and op.type == OpType.OVERLAPPED_BACKWARD:
                partner[before], partner[op] = op, before
                alone, other = graph.nodes[before]["duration"], graph.nodes[op]["duration"]
                pair = max(Fraction(alone), Fraction(other), chosen.overlap_factor * (alone + other))
                assert pair.denominator == 1, f"an overlapped pair would last {pair}"
                graph.add_edge(before, op, weight=int(pair) - other, reason="order")  # both end together
            elif before is None:
                graph.add_edge(START, op, weight=int(head[rank]), reason="head")
            else:
                graph.add_edge(before, op, weight=graph.nodes[before]["duration"], reason="order")
            before = op
        if before is not None:
            graph.add_edge(before, END, weight=graph.nodes[before]["duration"] + int(tail[rank]), reason="tail")

    previous_stage, next_stage = {}, {}
    for chain in chosen.chains(pp, vpp):
        for left, right in pairwise(chain):
            previous_stage[right], next_stage[left] = left, right
    for op in [node for node in graph if isinstance(node, Op)]:
        for needed in _needs(op, previous_stage, next_stage):
            source = next((candidate for candidate in needed if candidate in graph), None)
            assert source is not None, f"{op} needs {needed}, which no rank executes"
            latency = int(p2p) if ranks[source.virtual_stage] != ranks[op.virtual_stage] else 0
            if source.type == OpType.OVERLAPPED_FORWARD:  # results of a block leave at its end
                source = partner[source]
            for waiting in (op, partner[op]) if op.type == OpType.OVERLAPPED_BACKWARD else (op,):
                weight = graph.nodes[source]["duration"] + latency
                graph.add_edge(source, waiting, weight=weight, reason="data")
    return graph


def longest_path(graph: nx.DiGraph) -> tuple[int, list[Op]]:
    """Pipeline time and the ops of one longest path of an event graph."""
    path = nx.dag_longest_path(graph, weight="weight")
    return int(nx.path_weight(graph, path, weight="weight")), [node for node in path if isinstance(node, Op)]


def describe(op: Op) -> str:
    """An op in words."""
    words = {
        OpType.FORWARD: "forward",
        OpType.BACKWARD: "backward",
        OpType.INPUT_GRAD: "input gradient",
        OpType.WEIGHT_GRAD: "weight gradient",
        OpType.OVERLAPPED_FORWARD: "overlapped forward",
        OpType.OVERLAPPED_BACKWARD: "overlapped backward",
    }
    return f"{words[op.type]} of micro-batch {op.microbatch} on virtual stage {op.virtual_stage}"


def _needs(op: Op, previous_stage: dict[int, int], next_stage: dict[int, int]) -> list[list[Op]]:
    """For every dependency the ops that may fulfil it (a backward is whole or split)."""
    stage, microbatch = op.virtual_stage, op.microbatch
    if op.type == OpType.WEIGHT_GRAD:
        return [[Op(OpType.INPUT_GRAD, stage, microbatch)]]
    if op.type in FORWARDS:
        return [[Op(t, previous_stage[stage], microbatch) for t in FORWARDS]] if stage in previous_stage else []
    needs = [[Op(t, stage, microbatch) for t in FORWARDS]]
    if stage in next_stage:
        needs.append([Op(t, next_stage[stage], microbatch) for t in (*WHOLE_BACKWARDS, OpType.INPUT_GRAD)])
    return needs
