"""Benchmark room: published configurations as data: what was trained on what, how it was laid out, what was measured.

One YAML file each. ``instance`` is what an instance file holds; its layout is the space our search may use. What was
published stands beside it, every layout field with one value.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from pydantic import Field, PositiveFloat, PositiveInt

from prism_cp.errors import InstanceError, UsageError
from prism_cp.estimation.configuration import Configuration, configure
from prism_cp.estimation.statements import pinned_layout
from prism_cp.inputs.base import FrozenModel
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.load import instance_from_mapping
from prism_cp.inputs.parts import build_layout
from prism_cp.inputs.pydantic_errors import validated
from prism_cp.inputs.reading import parse_yaml

SHIPPED = Path(__file__).with_name("published_configurations")
KEYS = ("instance", "layout", "stage_layers", "recompute", "measured", "source", "differs")


class LayersWithRecomputation(FrozenModel):
    """So many further layers of the chain that recompute the same."""

    layers: PositiveInt
    recompute: str


class MeasuredRun(FrozenModel):
    """What was published of the run's speed and memory; None where nothing was."""

    step_time_s: PositiveFloat | None = None
    tokens_per_s_per_device: PositiveFloat | None = None
    tflops_per_device: PositiveFloat | None = None  # in the source's own counting
    memory_gib: PositiveFloat | None = None


class _Statement(FrozenModel):
    """Everything of a file beside the instance and the layout."""

    stage_layers: tuple[int, ...] | None = None  # decoder layers of every virtual stage; None: as even as possible
    recompute: str | tuple[LayersWithRecomputation, ...] = "none"
    measured: MeasuredRun = Field(default_factory=MeasuredRun)
    source: str
    differs: tuple[str, ...] = ()  # what the run did that the model leaves out, or that is not published


@dataclass(frozen=True)
class PublishedConfiguration:
    """A published run.

    Attributes
    ----------
    instance : Instance
        What was trained on what; its layout space is what our search may use.
    run : Configuration
        The run as published.
    measured : MeasuredRun
    source : str
    differs : tuple of str
        What the run did that the model leaves out, and what had to be assumed.
    """

    name: str
    instance: Instance
    run: Configuration
    measured: MeasuredRun
    source: str
    differs: tuple[str, ...]

    @property
    def measured_step_s(self) -> float | None:
        """Published seconds of a step, or what its published tokens per second make of them."""
        if self.measured.step_time_s is not None or self.measured.tokens_per_s_per_device is None:
            return self.measured.step_time_s
        job = self.instance.job
        return job.gbs * job.seq_len / (self.measured.tokens_per_s_per_device * self.instance.cluster.num_devices)


def published_configurations(folder: Path | None, names: Sequence[str] = ()) -> list[PublishedConfiguration]:
    """The configurations of a folder, in order of name; None: the shipped ones.

    Parameters
    ----------
    names
        Only those with one of these texts in their name; empty: all.

    Raises
    ------
    UsageError
        The folder has none, or a text is in no name.
    InstanceError
        A file's content is wrong.
    """
    if folder is not None and not folder.is_dir():
        raise UsageError(f"--folder: {folder} is no folder (accepted: a folder of published configurations, *.yaml)")
    files = {file.stem: file for file in (folder or SHIPPED).glob("*.yaml")}
    if not files:
        raise UsageError(f"--folder: no *.yaml in {folder} (accepted: a folder of published configurations)")
    for text in names:
        if not any(text in name for name in files):
            raise UsageError(f"--filter: {text!r} is in no name (accepted: parts of {', '.join(sorted(files))})")
    chosen = [name for name in sorted(files) if not names or any(text in name for text in names)]
    return [read_published(name, files[name].read_text("utf-8"), folder) for name in chosen]


def read_published(name: str, text: str, folder: Path | None = None) -> PublishedConfiguration:
    """A published configuration from the text of its file; paths in it are relative to `folder`.

    Raises
    ------
    InstanceError
        The content is wrong; the message names the key.
    """
    source = f"{name}.yaml"
    try:
        return _from_mapping(name, parse_yaml(text, source), folder)
    except InstanceError as error:
        if error.source:
            raise
        raise InstanceError(error.key, error.problem, error.accepted, source) from error


def _from_mapping(name: str, raw: object, folder: Path | None) -> PublishedConfiguration:
    if not isinstance(raw, dict):
        raise InstanceError("", "is no mapping", f"the keys {', '.join(KEYS)}")
    for key in raw:
        if key not in KEYS:
            raise InstanceError(str(key), "unknown key", ", ".join(KEYS))
    for key in ("instance", "layout"):
        if not isinstance(raw.get(key), dict):
            raise InstanceError(key, "is missing" if raw.get(key) is None else "is no mapping", "a mapping")
    rest = {key: value for key, value in raw.items() if key not in ("instance", "layout")}
    statement = validated(_Statement, rest, "")
    given = cast("dict[str, Any]", raw["instance"])
    try:
        instance = instance_from_mapping({"name": name, **given}, (), folder)
    except InstanceError as error:
        raise InstanceError(f"instance.{error.key}", error.problem, error.accepted, error.source) from error
    space = build_layout(raw["layout"])
    if space.recompute is not None:
        raise InstanceError("layout.recompute", "stands beside the layout here", "recompute as a key of the file")
    layout = pinned_layout(instance.model_copy(update={"layout": space}))
    run = configure(
        instance, layout, stage_layers=statement.stage_layers, recompute=_recomputation(statement, instance)
    )
    return PublishedConfiguration(name, instance, run, statement.measured, statement.source, statement.differs)


def _recomputation(statement: _Statement, instance: Instance) -> str | list[str]:
    if isinstance(statement.recompute, str):
        return statement.recompute
    texts = [run.recompute for run in statement.recompute for _ in range(run.layers)]
    if len(texts) != len(instance.model.chain):
        accepted = f"runs of layers that add up to {len(instance.model.chain)}"
        raise InstanceError("recompute", f"{len(texts)} layers", accepted)
    return texts
