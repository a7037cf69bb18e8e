"""Benchmark room: what is measured, as named `prism-cp solve` arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from prism_cp.errors import UsageError
from prism_cp.inputs.layout import SCHEDULES

UNMEASURED = ("tiny",)  # families for tests; measured when named
LARGE = ("moe/deepseek-v3-2048xh800", "moe/qwen3-235b-256xh100", "ascend/deepseek-v3-512x910b")
EVERY_SCHEDULE = ("--set", "layout.schedule=all")
VPP_TO_4 = ("--set", "layout.vpp=[1,2,3,4]")
PINNED, PINNED_PP = "moe/qwen3-235b-256xh100", 8
GROWTH_MODEL = ("llama-3.1-8b", 32)  # catalogue name and decoder layers
GROWTH_DEVICES, GROWTH_GBS, GROWTH_SEQ_LEN = 64, 512, 8192


@dataclass(frozen=True)
class Point:
    """One row of a table."""

    name: str
    arguments: tuple[str, ...]


def instance_points(folder: Path, families: Sequence[str] = ()) -> list[Point]:
    """Every instance of the named sub-folders of `folder`; by default of all but `UNMEASURED`, and of `folder` itself.

    Raises
    ------
    UsageError
        The folder or a family does not exist, or there is no instance in them.
    """
    if not folder.is_dir():
        raise UsageError(f"--folder: {folder} is no folder (accepted: a folder of instance files)")
    present = sorted(path.name for path in folder.iterdir() if path.is_dir())
    for family in families:
        if family not in present:
            raise UsageError(f"--family: {family!r} is not in {folder} (accepted: {', '.join(present) or 'none'})")
    chosen = list(families) or [name for name in present if name not in UNMEASURED]
    paths = [] if families else sorted(folder.glob("*.yaml"))
    for family in dict.fromkeys(chosen):
        paths += sorted((folder / family).glob("*.yaml"))
    if not paths:
        raise UsageError(f"--folder: no *.yaml in {folder} or its families (accepted: a folder of instance files)")
    return [Point(path.relative_to(folder).with_suffix("").as_posix(), (str(path),)) for path in paths]


def schedule_points(folder: Path) -> list[Point]:
    """Three large instances with every schedule, also with more virtual stages, and one with each schedule alone.

    Raises
    ------
    UsageError
        The folder lacks one of them.
    """
    missing = [name for name in (*LARGE, PINNED) if not (folder / f"{name}.yaml").is_file()]
    if missing:
        raise UsageError(f"--folder: {folder} has no {missing[0]}.yaml (accepted: the folder of shipped instances)")
    points = [Point(f"{name}, every schedule", (str(folder / f"{name}.yaml"), *EVERY_SCHEDULE)) for name in LARGE]
    points += [
        Point(f"{name}, every schedule, vpp to 4", (str(folder / f"{name}.yaml"), *EVERY_SCHEDULE, *VPP_TO_4))
        for name in LARGE
    ]
    pinned = str(folder / f"{PINNED}.yaml")
    for schedule in SCHEDULES:
        settings = ("--set", f"layout.schedule={schedule}", "--set", f"layout.pp={PINNED_PP}")
        points.append(Point(f"{PINNED}, {schedule}, pp {PINNED_PP}", (pinned, *settings)))
    return points


def growth_points() -> list[Point]:
    """One model from a base point along three axes: layers, devices (weak scaling: the batch grows too), micro-batches
    (the batch alone grows)."""
    layers = GROWTH_MODEL[1]
    points = [Point(f"base: {layers} layers, {GROWTH_DEVICES} devices, gbs {GROWTH_GBS}", _growth_arguments(1, 1, 1))]
    points += [Point(f"layers x{k}", _growth_arguments(k, 1, 1)) for k in (4, 16)]
    points += [Point(f"devices x{k}, gbs x{k}", _growth_arguments(1, k, k)) for k in (4, 16, 64)]
    points += [Point(f"micro-batches (gbs) x{k}", _growth_arguments(1, 1, k)) for k in (4, 16, 64)]
    return points


def _growth_arguments(layers: int, devices: int, gbs: int) -> tuple[str, ...]:
    model, base_layers = GROWTH_MODEL
    cluster = f"{GROWTH_DEVICES * devices}xh100"
    options = ("--model", model, "--cluster", cluster, "--gbs", str(GROWTH_GBS * gbs))
    changed = () if layers == 1 else ("--set", f"model.huggingface.num_hidden_layers={base_layers * layers}")
    return (*options, "--seq-len", str(GROWTH_SEQ_LEN), "--set", "layout.schedule=gpipe,1f1b", *changed)
