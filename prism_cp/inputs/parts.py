"""Inputs room: model, cluster, profile, job and layout from what a user may write for each of them.

Every part may be inline, a catalogue name or a path; `expand_*` turn it into a full mapping (so that overrides can
reach every value), `build_*` turn the mapping into the validated type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prism_cp.errors import InstanceError
from prism_cp.inputs.catalog import catalog_entry, catalog_names
from prism_cp.inputs.cluster import Cluster, Device
from prism_cp.inputs.huggingface import model_from_huggingface
from prism_cp.inputs.job import Profile
from prism_cp.inputs.layout import LayoutSpace
from prism_cp.inputs.model import Model
from prism_cp.inputs.pydantic_errors import validated
from prism_cp.inputs.reading import read_mapping
from prism_cp.inputs.suggest import accepted_names, shown

Raw = dict[str, Any]
_SHORTHAND = re.compile(r"^\s*(\d{1,9})\s*x\s*(\S+)\s*$")
_SUFFIXES = (".json", ".yaml", ".yml")
_HUGGINGFACE_FILE_KEYS = ("name", "source", "huggingface")


def expand(section: str, value: object, folder: Path, key: str | None = None) -> Raw:
    """The full mapping of a ``model``, ``profile`` or ``device``.

    Text is a path when it ends in .json, .yaml or .yml (relative to `folder`), else a catalogue name. A mapping may
    say ``like: NAME`` to start from a catalogue entry and change some of its keys. Errors are about `key`, by default
    the section.
    """
    key = key or section
    if isinstance(value, str):
        if value.lower().endswith(_SUFFIXES):
            return _from_file(value, folder)
        return {"name": value, **_entry(section, value, key)}
    if not isinstance(value, dict):
        accepted = "a mapping, a catalogue name or a path ending in " + ", ".join(_SUFFIXES)
        raise InstanceError(key, shown(value), accepted)
    if "like" not in value:
        return dict(value)
    changes = {name: item for name, item in value.items() if name != "like"}
    base = {"name": value["like"], **_entry(section, _text(value["like"], f"{key}.like"), f"{key}.like")}
    changed_source = changes.pop("source", None)
    merged = {**base, **changes}
    if isinstance(base.get("source"), dict):
        # A changed value must not keep the catalogue's source.
        kept = {name: text for name, text in base["source"].items() if name not in changes}
        extra = changed_source if isinstance(changed_source, dict) else dict.fromkeys(changes, "stated by the instance")
        extra.pop("name", None)
        merged["source"] = {**kept, **extra}
    elif changed_source is not None:
        merged["source"] = changed_source
    return merged


def _entry(section: str, name: str, key: str) -> Raw:
    try:
        return catalog_entry(section + "s", name)
    except InstanceError as error:
        raise InstanceError(key, error.problem, error.accepted) from error


def _from_file(value: str, folder: Path) -> Raw:
    path = Path(value) if Path(value).is_absolute() else folder / value
    mapping = read_mapping(path)
    mapping.setdefault("name", path.stem)
    if "huggingface" not in mapping and _is_huggingface(mapping):
        name = mapping.pop("name")
        return {"name": name, "source": path.name, "huggingface": mapping}
    return mapping


def _is_huggingface(mapping: Mapping[str, Any]) -> bool:
    return "model_type" in mapping or "architectures" in mapping


def build_model(raw: Raw) -> Model:
    """A `Model` from explicit layer groups, or from a configuration under ``huggingface``."""
    if "huggingface" not in raw and _is_huggingface(raw):
        config = {key: item for key, item in raw.items() if key not in ("name", "source")}
        raw = {**{key: raw[key] for key in ("name", "source") if key in raw}, "huggingface": config}
    if "huggingface" not in raw:
        return validated(Model, raw, "model")
    for key in raw:
        if key not in _HUGGINGFACE_FILE_KEYS:
            accepted = accepted_names(key, _HUGGINGFACE_FILE_KEYS)
            raise InstanceError(f"model.{key}", "unknown key beside huggingface", accepted)
    name = _text(raw.get("name", "model"), "model.name")
    source = _text(raw.get("source", ""), "model.source")
    try:
        return model_from_huggingface(raw["huggingface"], name, source)
    except InstanceError as error:
        key = f"model.huggingface.{error.key}" if error.key else "model.huggingface"
        raise InstanceError(key, error.problem, error.accepted) from error


def cluster_reference(value: object, folder: Path) -> Raw:
    """A cluster as a mapping that still names its catalogue family: the shorthand ``64xh100`` is taken apart."""
    if isinstance(value, str):
        if value.lower().endswith(_SUFFIXES):
            return _from_file(value, folder)
        match = _SHORTHAND.match(value)
        return {"name": match[2], "num_devices": int(match[1])} if match else {"name": value}
    if not isinstance(value, dict):
        accepted = "a mapping, 64xh100 (number x catalogue name), or a path ending in " + ", ".join(_SUFFIXES)
        raise InstanceError("cluster", shown(value), accepted)
    return dict(value)


def expand_cluster(value: object, folder: Path) -> Raw:
    """The full mapping of a cluster: links and device of its catalogue family filled in."""
    raw = cluster_reference(value, folder)
    if "links" not in raw or "like" in raw:
        family = raw.pop("like", None) or raw.get("name")
        if family is None:
            raise InstanceError("cluster.links", "is missing", "links, or name of a catalogue family")
        family = _text(family, "cluster.name")
        if family not in catalog_names("clusters") and "device" in raw:
            raise InstanceError("cluster.links", "is missing", "a list of link levels, innermost first")
        raw = {**_entry("cluster", family, "cluster"), **raw}
    if "device" in raw:
        raw["device"] = expand("device", raw["device"], folder, "cluster.device")
    return raw


def build_cluster(raw: Raw) -> Cluster:
    """A `Cluster`; ``domain_size: all`` becomes the number of devices, levels beyond it are dropped."""
    number, links = raw.get("num_devices"), raw.get("links")
    if number is None:
        name = raw.get("name", "NAME")
        raise InstanceError("cluster.num_devices", "is missing", f"an integer, e.g. cluster: 64x{name}")
    raw = dict(raw)
    if isinstance(links, list) and isinstance(number, int):
        links = [dict(link) if isinstance(link, dict) else link for link in links]
        for link in links:
            if isinstance(link, dict) and link.get("domain_size") == "all":
                link["domain_size"] = number
        spanning = [
            isinstance(link, dict) and isinstance(link.get("domain_size"), int) and link["domain_size"] >= number
            for link in links
        ]
        # A level above one that already reaches every device never carries anything.
        raw["links"] = links[: spanning.index(True) + 1] if any(spanning) else links
    if isinstance(raw.get("device"), dict):
        validated(Device, raw["device"], "cluster.device")
    return validated(Cluster, raw, "cluster")


def default_profile(cluster: Raw) -> str:
    """Catalogue profile for a cluster that names none: MindSpeed on Ascend, Megatron elsewhere."""
    device = cluster.get("device")
    vendor = device.get("vendor") if isinstance(device, dict) else None
    return "mindspeed" if vendor == "ascend" else "megatron"


def build_profile(raw: Raw) -> Profile:
    """A `Profile`."""
    return validated(Profile, raw, "profile")


def build_layout(raw: object) -> LayoutSpace:
    """A `LayoutSpace`: scalars become one-element lists, null, ``any`` and ``all`` leave a field open."""
    if raw is None:
        return LayoutSpace()
    if not isinstance(raw, dict):
        raise InstanceError("layout", shown(raw), "a mapping of layout fields to values")
    fields: Raw = {}
    for name, value in raw.items():
        field = LayoutSpace.model_fields.get(name)
        if field is None or field.annotation is bool:
            fields[name] = value
            continue
        if value is None or value in ("any", "all"):
            continue
        values = value if isinstance(value, list) else [value]
        if not values:
            raise InstanceError(f"layout.{name}", "an empty list allows no value", "values, or any")
        fields[name] = list({str(item): item for item in values}.values())  # a value given twice counts once
    return validated(LayoutSpace, fields, "layout")


def _text(value: object, key: str) -> str:
    if not isinstance(value, str):
        raise InstanceError(key, shown(value), "text")
    return value
