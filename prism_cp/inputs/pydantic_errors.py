"""Inputs room: pydantic's validation errors as `InstanceError`: dotted key, value, what would be accepted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from prism_cp.errors import InstanceError
from prism_cp.inputs.suggest import accepted_names, shown

T = TypeVar("T", bound=BaseModel)
_TAGS = ("self_attention", "latent_attention", "gated_delta_net", "mamba2", "dense", "moe")  # no keys of the input


def validated(kind: type[T], value: Mapping[str, Any], key: str, source: str = "") -> T:
    """The mapping as a `kind`, strictly: no text for numbers, no booleans for integers.

    Raises
    ------
    InstanceError
        The first thing that is wrong, its key prefixed by `key`.
    """
    try:
        # Strict mode over JSON is the one that takes lists for tuples but nothing else for anything else.
        return kind.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise _translated(error, kind, value, key, source) from error


def _translated(
    error: ValidationError, kind: type[BaseModel], value: Mapping[str, Any], prefix: str, source: str
) -> InstanceError:
    details = error.errors(include_url=False)
    # A misspelt key also leaves a required one missing: the misspelling is the thing to say.
    first = next((item for item in details if item["type"] == "extra_forbidden"), details[0])
    path = [part for part in first["loc"] if part not in _TAGS]
    key = ".".join(str(part) for part in ([prefix] if prefix else []) + path)
    context, name = first.get("ctx", {}), first["type"]
    if name == "extra_forbidden":
        known = _fields(kind, list(first["loc"][:-1]))
        return InstanceError(key, "unknown key", accepted_names(path[-1], known, limit=40), source)
    if name == "missing":
        return InstanceError(key, "is missing", "", source)
    if name in ("literal_error", "union_tag_invalid"):
        accepted = str(context.get("expected") or context.get("expected_tags"))
        return InstanceError(key, shown(_at(value, path)), accepted, source)
    accepted = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return InstanceError(key, shown(_at(value, path)), accepted, source)


def _at(value: Any, path: list[Any]) -> Any:
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return value
    return value


def _fields(kind: type[BaseModel], path: list[int | str]) -> list[str]:
    """Field names of the type that stands at `path` inside `kind`."""
    found: list[type[BaseModel]] = [kind]
    for part in path:
        if isinstance(part, int):
            continue
        step = [model for model in found if part in model.model_fields]
        if step:
            found = [inner for model in step for inner in _models(model.model_fields[str(part)].annotation)]
        elif part in _TAGS:
            found = [model for model in found if model.model_fields["type"].default == part]
    return [name for model in found[:1] for name in model.model_fields]


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for inner in getattr(annotation, "__args__", ()) for model in _models(inner)]
