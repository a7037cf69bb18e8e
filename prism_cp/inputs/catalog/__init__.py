"""Inputs room, catalogue: models, devices, clusters and framework profiles as data files, each value with its source.

One model is one file; devices, clusters and profiles are one file each. Nothing is read before it is asked for.
"""

from __future__ import annotations

import copy
from functools import cache
from importlib import resources
from typing import Any

from prism_cp.errors import InstanceError
from prism_cp.inputs.reading import parse_yaml
from prism_cp.inputs.suggest import accepted_names, shown

SECTIONS = ("models", "devices", "clusters", "profiles")


def catalog_names(section: str) -> list[str]:
    """Sorted entry names of a section (``models``, ``devices``, ``clusters`` or ``profiles``).

    Raises
    ------
    InstanceError
        The section does not exist.
    """
    return list(_names(_checked(section)))


def catalog_entry(section: str, name: str) -> dict[str, Any]:
    """A fresh copy of an entry as written in its data file (a mapping, not validated).

    Raises
    ------
    InstanceError
        No such section or entry; the message suggests close names.
    """
    names = _names(_checked(section))
    if name not in names:
        key = section[:-1]
        raise InstanceError(key, f"{shown(name)} is not in the catalogue", accepted_names(name, names))
    entry = _model_file(name) if section == "models" else _section_file(section)[name]
    return copy.deepcopy(entry)


def _checked(section: str) -> str:
    if section not in SECTIONS:
        raise InstanceError("section", f"{shown(section)} is no catalogue section", accepted_names(section, SECTIONS))
    return section


@cache
def _names(section: str) -> tuple[str, ...]:
    if section == "models":
        files = resources.files(__package__).joinpath("models").iterdir()
        return tuple(sorted(file.name[: -len(".yaml")] for file in files if file.name.endswith(".yaml")))
    return tuple(sorted(_section_file(section)))


@cache
def _section_file(section: str) -> dict[str, dict[str, Any]]:
    return _parsed(f"{section}.yaml")


@cache
def _model_file(name: str) -> dict[str, Any]:
    return _parsed("models", f"{name}.yaml")


def _parsed(*parts: str) -> dict[str, Any]:
    value = parse_yaml(resources.files(__package__).joinpath(*parts).read_text("utf-8"), f"catalogue {'/'.join(parts)}")
    assert isinstance(value, dict), f"catalogue file {parts} is no mapping"
    return value
