"""The shipped instances: all load, and the index lists exactly them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from prism_cp.inputs.load import instance_digest, load_instance

ROOT = Path(__file__).parents[2] / "instances"
FILES = sorted(ROOT.glob("*/*.yaml"))
NAMED = {
    "moe": [
        "deepseek-v3-2048xh800",
        "qwen3-235b-256xh100",
        "kimi-k2-1024xh100",
        "mixtral-8x22b-128xh100",
        "llama4-maverick-512xh100",
        "gpt-oss-120b-64xh100",
    ],
    "dense": ["llama-3.1-8b-8xh100", "llama-3.1-70b-64xh100", "llama-3.1-405b-16384xh100", "gpt3-175b-1024xa100"],
    "ascend": ["deepseek-v3-512x910b", "llama-3.1-70b-256x910b"],
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_instance_loads(path: Path) -> None:
    instance = load_instance(path)
    assert instance.name == path.stem
    assert instance.source
    assert instance_digest(instance) == instance_digest(load_instance(path))
    if path.parent.name != "tiny":
        assert str(instance.cluster.num_devices) in path.stem
        assert all(getattr(instance.layout, field) is None for field in ("tp", "cp", "ep", "etp", "dp", "pp", "mbs"))
        assert instance.layout.recompute is None


def test_named_instances_and_index() -> None:
    files = {path.relative_to(ROOT).as_posix() for path in FILES}
    assert {f"{family}/{name}.yaml" for family, names in NAMED.items() for name in names} <= files
    tiny = [path for path in FILES if path.parent.name == "tiny"]
    assert len(tiny) >= 12
    assert sum(path.stem.startswith("infeasible") for path in tiny) == 2
    assert sum(path.stem.startswith("hybrid") for path in tiny) >= 1
    index = json.loads((ROOT / "index.json").read_text())
    assert {entry["file"] for entry in index} == files
    assert all(entry["file"].startswith(entry["family"] + "/") and entry["description"] for entry in index)


def test_digests_differ() -> None:
    assert len({instance_digest(load_instance(path)) for path in FILES}) == len(FILES)


def test_published_facts() -> None:
    v3 = load_instance(ROOT / "moe/deepseek-v3-2048xh800.yaml")
    assert (v3.job.gbs, v3.job.seq_len, v3.job.precision, v3.model.num_mtp_layers) == (15360, 4096, "fp8", 1)
    assert v3.cluster.links[0].bytes_per_s == 200e9
    llama = load_instance(ROOT / "dense/llama-3.1-405b-16384xh100.yaml")
    assert llama.job.gbs * llama.job.seq_len == 2**24
    ascend = load_instance(ROOT / "ascend/deepseek-v3-512x910b.yaml")
    assert ascend.profile.name == "mindspeed"
    assert ascend.cluster.links[0].topology == "mesh"
