"""Inputs room: ``path=value`` overrides, applied to an instance's mapping before it is validated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prism_cp.errors import InstanceError
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.job import Job
from prism_cp.inputs.layout import LayoutSpace
from prism_cp.inputs.parts import Raw, cluster_reference, default_profile, expand, expand_cluster
from prism_cp.inputs.reading import parse_yaml
from prism_cp.inputs.suggest import accepted_names, shown

_TOP = tuple(Instance.model_fields)
_CHOICES = (["cluster", "name"], ["cluster", "num_devices"])


def apply_overrides(raw: Raw, overrides: Sequence[str], folder: Path) -> Raw:
    """A copy of `raw` with every ``path=value`` set.

    A path is dotted keys; list items are counted from 0 (``cluster.links.0.efficiency=0.7``). A value is YAML; in the
    layout a comma-separated list pins a set (``layout.tp=4,8``). Whole parts come first, then ``cluster.name`` and
    ``cluster.num_devices``, then the rest in the order given.

    Raises
    ------
    InstanceError
        Not of the form path=value, or a path that does not exist; close names are suggested.
    """
    result = dict(raw)
    pairs = [_parsed(text) for text in overrides]
    for path, value in sorted(pairs, key=lambda pair: _rank(pair[0])):
        if len(path) == 1:
            result[path[0]] = value
        else:
            _set(result, path, value, folder)
    return result


def _parsed(text: str) -> tuple[list[str], Any]:
    name, equals, value = text.partition("=")
    path = [part.strip() for part in name.strip().split(".")]
    if not equals or not all(path):
        raise InstanceError(name.strip(), f"{shown(text)} is no override", "path=value, e.g. layout.tp=8")
    if path[0] not in _TOP:
        raise InstanceError(".".join(path), "unknown path", accepted_names(path[0], _TOP))
    parsed = parse_yaml(value, f"--set {path[0]}")
    if path[0] == "layout" and isinstance(parsed, str) and "," in parsed:
        parsed = [parse_yaml(item, f"--set {path[0]}") for item in parsed.split(",") if item.strip()]
    return path, parsed


def _rank(path: list[str]) -> int:
    """Whole parts first, then what chooses a catalogue entry, then values inside."""
    return 0 if len(path) == 1 else 1 if path in _CHOICES else 2


def _set(raw: Raw, path: list[str], value: Any, folder: Path) -> None:
    section = path[0]
    if section in ("job", "layout"):
        target: Any = raw.get(section)
        if target is not None and not isinstance(target, dict):
            raise InstanceError(section, shown(target), "a mapping")
        fields = list((Job if section == "job" else LayoutSpace).model_fields)
        if len(path) != 2 or path[1] not in fields:
            raise InstanceError(".".join(path), "unknown path", accepted_names(path[1], fields, limit=40))
        raw[section] = {**(target or {}), path[1]: value}
        return
    if path in _CHOICES:
        # These two choose the catalogue entry, so they must be set before it is looked up.
        raw["cluster"] = {**cluster_reference(raw.get("cluster"), folder), path[1]: value}
        return
    if section == "cluster":
        raw["cluster"] = expand_cluster(raw.get("cluster"), folder)
    elif section == "model":
        raw["model"] = expand("model", raw.get("model"), folder)
    elif section == "profile":
        given = raw.get("profile")
        name = default_profile(expand_cluster(raw.get("cluster"), folder)) if given is None else given
        raw["profile"] = expand("profile", name, folder)
    else:
        raise InstanceError(".".join(path), f"{section} has no keys inside", f"{section}=VALUE")
    _set_inside(raw[section], path, value)


def _set_inside(target: Any, path: list[str], value: Any) -> None:
    """Set an existing value; in a mapping of a part the last key may be new, validation then judges it."""
    for depth, part in enumerate(path[1:], start=1):
        last, key = depth == len(path) - 1, ".".join(path[: depth + 1])
        if isinstance(target, list):
            if not part.isdecimal() or int(part) >= len(target):
                raise InstanceError(key, "unknown path", f"0 … {len(target) - 1}" if target else "no items")
            index: Any = int(part)
        elif isinstance(target, dict):
            # Configurations of HuggingFace ignore unknown keys, so a misspelt one would change nothing.
            if part not in target and (not last or "huggingface" in path[:depth] or "huggingface" in target):
                raise InstanceError(key, "unknown path", accepted_names(part, target, limit=40))
            index = part
        else:
            raise InstanceError(key, f"{path[depth - 1]} is {shown(target)} and has no keys inside", "a shorter path")
        if last:
            target[index] = value
        else:
            target = target[index]
