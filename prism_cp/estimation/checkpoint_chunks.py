"""Checkpoints of several layers: full recomputation that keeps the input of every N-th layer only.

Megatron-LM ``--recompute-method uniform --recompute-num-layers N`` (core/transformer/transformer_block.py): fewer
inputs are kept, and the backward pass has the activations of N layers at once.
"""

from __future__ import annotations

from prism_cp.breakdown import Tables
from prism_cp.estimation.configuration import Configuration
from prism_cp.stage_problem import RankMemory, VirtualStage, live_counts


def live_terms(configuration: Configuration, tables: Tables, row: RankMemory) -> tuple[int, int]:
    """Activations and transient of a row of live micro-batches, in memory units, with checkpoints of N layers."""
    chunk = configuration.uniform_chunk_layers
    if chunk == 1:
        return row.activation, row.transient
    stages = [stage for stage in tables.problem.virtual_stages if stage.rank == row.rank]
    whole, deferred = live_counts(row.live, len(stages))
    activation, more = row.activation, 0
    for stage, alive, waiting in zip(stages, whole, deferred, strict=True):
        saved, again = _chunked(configuration, tables, stage, chunk)
        activation -= alive * saved
        if alive + waiting:
            more = max(more, again)
    return activation, row.transient + more


def _chunked(configuration: Configuration, tables: Tables, stage: VirtualStage, chunk: int) -> tuple[int, int]:
    """What a micro-batch keeps less on a virtual stage, and what further layers of a chunk add to the transient."""
    layers = inputs = 0
    largest = 0
    for row, kind in zip(configuration.assignment.counts[stage.piece], tables.problem.tables[stage.table], strict=True):
        by_name = {strategy.name: (n, strategy) for n, strategy in zip(row, kind.strategies, strict=True)}
        number, full = by_name.get("full", (0, None))
        if not number or full is None:
            continue
        layers += number
        inputs += number * full.activation
        largest = max(largest, by_name["none"][1].activation)
    if not layers:
        return 0, 0
    kept = -(-layers // chunk)
    return inputs - inputs * kept // layers, (min(chunk, layers) - 1) * largest
