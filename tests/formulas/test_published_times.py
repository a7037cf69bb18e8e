"""Iteration times that others measured, against uniform pipelines of the predicted layer times."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from tests.formulas.time_instances import at, expressions, layer_seconds, strategy_index

DATA = Path(__file__).parents[1] / "data"

# model, devices, pp, vpp, mbs, gbs, layers, seconds with full recomputation, seconds with the attention core recomputed
# and sequence parallelism: Korthikanti et al., arXiv 2205.05198, table 5 (A100-80GB, fp16, tp = 8, dp = 1)
KORTHIKANTI = [
    ("megatron-22b", 8, 1, 1, 4, 4, 48, 1.42, 1.10),
    ("gpt3-175b", 64, 8, 3, 1, 64, 96, 18.13, 13.75),
    ("megatron-530b", 280, 35, 3, 1, 280, 105, 49.05, 37.83),
    ("megatron-1t", 512, 64, 1, 1, 512, 128, 94.42, 71.49),
]


def korthikanti_seconds(row: tuple[Any, ...], strategy: str) -> float:
    """Uniform pipeline: (m·v + p - 1) chunks, each with a transfer there and back, and the ends on top."""
    model, devices, pp, vpp, mbs, gbs, layers, _, _ = row
    times = expressions(
        model, f"{devices}xa100", 2048, "job.precision=fp16", "job.dropout=true", profile="megatron-2022"
    )
    layout: dict[str, Any] = {"tp": 8, "pp": pp, "vpp": vpp, "mbs": mbs, "num_microbatches": gbs // mbs, "zero": 0}
    result = at(times, sp=int(strategy == "core_attn"), **layout)
    layer = layer_seconds(result.kinds[0], strategy_index(times, 0, strategy))
    # That Megatron release split every transfer over the tensor-parallel ranks also without sequence parallelism.
    transfer = float(at(times, sp=1, **layout).p2p_s)
    ends = sorted(layer_seconds(end) for end in (result.embedding, result.head))
    m = gbs // mbs
    chunk = layers // (pp * vpp) * layer + 2 * transfer
    pipeline = (m * vpp + pp - 1) * chunk + m * ends[1] + (m if pp == 1 else 1) * ends[0]
    optimizer = layers // pp * float(result.kinds[0].optimizer_s) + float(result.head.optimizer_s)
    return pipeline + optimizer + float(result.norm_s)


@pytest.mark.parametrize("row", KORTHIKANTI, ids=lambda row: row[0])
def test_korthikanti_iteration_times(row: tuple[Any, ...]) -> None:
    full, selective = (korthikanti_seconds(row, strategy) for strategy in ("full", "core_attn"))
    assert full == pytest.approx(row[-2], rel=0.10)
    assert selective == pytest.approx(row[-1], rel=0.10)


def _simumax_rows() -> list[dict[str, str]]:
    with (DATA / "simumax_b200_times.csv").open() as file:
        return [row for row in csv.DictReader(file) if row["model"].startswith("llama3-70b")]


@pytest.mark.parametrize("row", _simumax_rows(), ids=lambda row: row["case"])
def test_simumax_dense_iteration_times(row: dict[str, str]) -> None:
    """Measured by MooreThreads/SimuMax with no overlap of any communication; uniform stages."""
    size = {name: int(row[name]) for name in ("tp", "pp", "cp", "dp", "mbs", "gbs", "seq_len", "n_devices")}
    match = re.search(r"\((\d+) layers", row["model"])
    assert match is not None
    layers = int(match[1]) // size["pp"]
    times = expressions("llama-3.1-70b", f"{size['n_devices']}xb200", size["seq_len"])
    m = size["gbs"] // (size["mbs"] * size["dp"])
    layout = {name: size[name] for name in ("tp", "pp", "cp", "dp", "mbs")}
    result = at(times, sp=int(row["sp"]), cp_comm="a2a", num_microbatches=m, **layout)
    (kind,) = result.kinds
    embedding, head = (layer_seconds(end) for end in (result.embedding, result.head))
    first = layers * layer_seconds(kind)
    stages = [first + embedding + head] if size["pp"] == 1 else [first + embedding, first + head]
    pipeline = sum(stages) + (m - 1) * max(stages) + 2 * m * float(result.p2p_s)
    state = layers * float(kind.optimizer_s + kind.grad_reduce_s)
    state += float(result.head.optimizer_s + result.head.grad_reduce_s)
    assert pipeline + state + float(result.norm_s) == pytest.approx(float(row["iteration_s"]), rel=0.15)
