"""Inputs room: an instance from a YAML file, from options, or from both, as one validated value."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from fractions import Fraction
from os import PathLike
from pathlib import Path
from typing import Any

from pydantic import PositiveFloat, PositiveInt

from prism_cp.errors import InstanceError, UsageError
from prism_cp.inputs.base import FrozenModel
from prism_cp.inputs.consistency import check_consistency
from prism_cp.inputs.expert_load import with_expert_loads
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.job import Job
from prism_cp.inputs.layout import OVERLAPPING
from prism_cp.inputs.overrides import apply_overrides
from prism_cp.inputs.parts import (
    Raw,
    build_cluster,
    build_layout,
    build_model,
    build_profile,
    default_profile,
    expand,
    expand_cluster,
)
from prism_cp.inputs.pydantic_errors import validated
from prism_cp.inputs.reading import plain, read_mapping
from prism_cp.inputs.suggest import accepted_names, shown

_TOP = tuple(Instance.model_fields)


class _Scalars(FrozenModel):
    """The keys of an instance that are no part of their own, validated like the parts."""

    name: str
    time_unit_s: PositiveFloat = 1e-6
    memory_unit_bytes: PositiveInt = 1024
    source: str = ""
    note: str = ""


def load_instance(
    path: str | PathLike[str] | None,
    overrides: Sequence[str] = (),
    *,
    model: str | None = None,
    cluster: str | None = None,
    gbs: int | None = None,
    seq_len: int | None = None,
    profile: str | None = None,
) -> Instance:
    """Read, override, resolve and validate an instance.

    Parameters
    ----------
    path : path or None
        YAML file with the keys of `Instance`; None when the options say everything. ``model``, ``cluster`` and
        ``profile`` in it are inline mappings, catalogue names, or paths relative to the file.
    overrides : sequence of str
        ``path=value`` each, applied before validation (see `prism_cp.inputs.overrides`).
    model, cluster, gbs, seq_len, profile
        Replace the part or value of the file; `cluster` may be ``64xh100``. Paths are relative to the working
        directory.

    Returns
    -------
    Instance
        Frozen and consistent. Without a profile, MindSpeed is taken on Ascend devices and Megatron elsewhere.

    Raises
    ------
    UsageError
        The file cannot be opened, or neither a file nor the needed options are given.
    InstanceError
        The content is wrong; key, value and what would be accepted are in the message.
    """
    folder, source = Path(), ""
    raw: Raw = {}
    if path is not None:
        file = Path(path)
        folder, source = file.parent, str(file)
        raw = read_mapping(file)
    elif model is None or cluster is None or gbs is None or seq_len is None:
        missing = [
            name
            for name, value in (("model", model), ("cluster", cluster), ("gbs", gbs), ("seq_len", seq_len))
            if value is None
        ]
        raise UsageError(
            f"no instance: {', '.join(missing)} not given (accepted: a file, or model, cluster, gbs, seq_len)"
        )
    options = {"model": model, "cluster": cluster, "profile": profile}
    for key, value in options.items():
        if value is not None:
            raw[key] = _absolute(value)
    job = {key: value for key, value in (("gbs", gbs), ("seq_len", seq_len)) if value is not None}
    if job:
        given = {} if raw.get("job") is None else raw["job"]
        raw["job"] = {**given, **job} if isinstance(given, dict) else given
    name = Path(path).stem if path is not None else f"{model}-{cluster}"
    try:
        return instance_from_mapping({"name": name, **raw}, overrides, folder)
    except InstanceError as error:
        if error.source or not source:
            raise
        raise InstanceError(error.key, error.problem, error.accepted, source) from error


def instance_from_mapping(raw: object, overrides: Sequence[str] = (), folder: Path | None = None) -> Instance:
    """An instance from a mapping with the keys of `Instance`; paths in it are relative to `folder`.

    Raises
    ------
    InstanceError
        As `load_instance`.
    """
    folder = Path() if folder is None else folder
    mapping = plain(raw)
    if not isinstance(mapping, dict):
        raise InstanceError("", f"{shown(mapping)} is no instance", "a mapping of keys to values")
    if "schema_version" in mapping and "instance" in mapping:
        raise InstanceError("", "holds a plan where an instance is expected", "an instance; arguments in their order")
    for key in mapping:
        if key not in _TOP:
            raise InstanceError(key, "unknown key", accepted_names(key, _TOP))
    for key in ("model", "cluster"):
        if mapping.get(key) is None and not any(text.strip().startswith(f"{key}=") for text in overrides):
            raise InstanceError(key, "is missing", "an inline mapping, a catalogue name or a path")
    mapping = apply_overrides(mapping, overrides, folder)
    job = mapping.get("job")
    if not isinstance(job, dict):
        raise InstanceError("job", "is missing" if job is None else shown(job), "a mapping with gbs and seq_len")
    cluster = expand_cluster(mapping["cluster"], folder)
    profile = mapping["profile"] if mapping.get("profile") is not None else default_profile(cluster)
    model, job = with_expert_loads(build_model(expand("model", mapping["model"], folder)), job)
    parts: dict[str, Any] = {
        "model": model,
        "cluster": build_cluster(cluster),
        "job": validated(Job, job, "job"),
        "profile": build_profile(expand("profile", profile, folder)),
        "layout": build_layout(mapping.get("layout")),
    }
    rest = {key: value for key, value in mapping.items() if key not in parts and value is not None}
    scalars = validated(_Scalars, rest, "")
    instance = Instance(**parts, **scalars.model_dump(exclude_unset=True))
    check_consistency(instance)
    if "time_unit_s" not in rest and set(OVERLAPPING) & set(instance.layout.schedules):
        # Times of overlapped ops are rounded to multiples of the factor's denominator, which this keeps at 1 us.
        denominator = Fraction(str(instance.job.overlap_factor)).denominator
        instance = instance.model_copy(update={"time_unit_s": float(Fraction(1, 1_000_000 * denominator))})
    return instance


def instance_digest(instance: Instance) -> str:
    """SHA-256 (hex) of the instance's canonical JSON: equal exactly for equal instances, on every machine."""
    text = json.dumps(instance.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _absolute(value: str) -> str:
    """An option's path is relative to the working directory, not to the instance file."""
    is_path = value.lower().endswith((".json", ".yaml", ".yml"))
    return str(Path(value).absolute()) if is_path else value
