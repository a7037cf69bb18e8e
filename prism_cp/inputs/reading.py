"""Inputs room: bounded, safe reading of YAML and JSON files into plain dicts, lists and scalars."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import yaml

from prism_cp.errors import InstanceError, UsageError
from prism_cp.inputs.suggest import shown

MAX_FILE_BYTES = 10 * 1024 * 1024
MAX_DEPTH = 40  # nesting of real inputs is below 10
MAX_VALUES = 200_000  # after anchors are expanded; the longest real input has a few thousand
Plain = Any  # None | bool | int | float | str | list[Plain] | dict[str, Plain]

_BaseLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_BaseLoader):  # type: ignore[misc]
    """Safe loader that refuses a key given twice (YAML would silently keep the last)."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is not None and key != "<<" and key in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key!r} is given twice", key_node.start_mark)
            seen.add(key)
            if key_node.tag == "tag:yaml.org,2002:int":
                key_node.tag = "tag:yaml.org,2002:str"  # {3: 1.6} names layer 3; no key is a number
        result: dict[Any, Any] = super().construct_mapping(node, deep)
        return result


# YAML 1.1 reads 5e-6 as text; everybody means the number.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def read_text(path: Path) -> str:
    """Text of a file; UsageError when it cannot be opened, InstanceError when it is not text."""
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a directory (accepted: a YAML or JSON file)")
        if not path.is_file():
            raise UsageError(f"{path} does not exist or is no regular file (accepted: a YAML or JSON file)")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InstanceError("", f"file has {path.stat().st_size} bytes", f"at most {MAX_FILE_BYTES}", str(path))
        data = path.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise UsageError(f"{shown(str(path))} cannot be read: {error} (accepted: a YAML or JSON file)") from error
    if b"\0" in data:
        raise InstanceError("", "file is binary", "UTF-8 text in YAML or JSON", str(path))
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InstanceError("", f"byte {error.start} is not UTF-8", "UTF-8 text in YAML or JSON", str(path)) from error


def parse_yaml(text: str, source: str) -> Plain:
    """Plain value of a YAML text; InstanceError with the line when it is broken, too deep or explodes by aliases."""
    try:
        depth = 0
        # Events come without recursion, so depth is known before any recursive constructor runs.
        for event in yaml.parse(text, Loader=_BaseLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_DEPTH:
                where = f" (line {event.start_mark.line + 1})" if event.start_mark else ""
                raise InstanceError("", f"nested deeper than {MAX_DEPTH}{where}", "flatter YAML", source)
        value = yaml.load(text, Loader=_Loader)  # a subclass of the safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InstanceError("", f"broken YAML, {line}{error.problem or error.context}", "valid YAML", source) from error
    except yaml.YAMLError as error:
        raise InstanceError("", f"broken YAML: {error}", "valid YAML", source) from error
    except (ValueError, OverflowError, TypeError) as error:  # unreadable dates, giant integers, unhashable keys
        raise InstanceError(
            "", f"unreadable value in YAML: {error}", "numbers, text, lists, mappings", source
        ) from error
    return plain(value, source)


def _without_duplicates(pairs: list[tuple[str, Any]], source: str) -> dict[str, Any]:
    """A JSON object's mapping; a key given twice is refused, because one of the values would be lost."""
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        seen: set[str] = set()
        twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise InstanceError(twice, "key given twice", "every key once", source)
    return mapping


def parse_json(text: str, source: str) -> Plain:
    """Plain value of a JSON text; InstanceError with the line when it is broken."""
    try:
        value = json.loads(text, object_pairs_hook=lambda pairs: _without_duplicates(pairs, source))
    except json.JSONDecodeError as error:
        raise InstanceError(
            "", f"broken JSON, line {error.lineno}, column {error.colno}: {error.msg}", "valid JSON", source
        ) from error
    except (RecursionError, ValueError) as error:
        raise InstanceError("", f"unreadable JSON: {error}", "numbers, text, lists, mappings", source) from error
    return plain(value, source)


def read_mapping(path: Path) -> dict[str, Plain]:
    """The mapping that a ``.json``, ``.yaml`` or ``.yml`` file holds."""
    text = read_text(path)
    value = parse_json(text, str(path)) if path.suffix.lower() == ".json" else parse_yaml(text, str(path))
    if value is None:
        raise InstanceError("", "file is empty", "a mapping of keys to values", str(path))
    if not isinstance(value, dict):
        raise InstanceError("", f"file holds {_type_name(value)}", "a mapping of keys to values", str(path))
    return value


def plain(value: object, source: str = "") -> Plain:
    """Deep copy made of JSON's types only; InstanceError for anything else, for cycles and for explosions."""
    budget = [MAX_VALUES]

    def copy(item: object, key: str, depth: int) -> Plain:
        budget[0] -= 1
        if budget[0] < 0 or depth > MAX_DEPTH:
            limit = f"at most {MAX_VALUES} values, nested at most {MAX_DEPTH} deep"
            raise InstanceError(key, "holds too many or too deeply nested values", limit, source)
        if isinstance(item, dict):
            result = {}
            for name, inner in item.items():
                if not isinstance(name, str):
                    raise InstanceError(key, f"key {shown(name)} is no text", "keys that are words", source)
                result[name] = copy(inner, f"{key}.{name}" if key else name, depth + 1)
            return result
        if isinstance(item, (list, tuple)):
            return [copy(inner, f"{key}.{index}", depth + 1) for index, inner in enumerate(item)]
        if item is None or isinstance(item, (bool, str)):
            return item
        if isinstance(item, int):
            # No quantity of a training plan needs more, and other software reads integers as doubles.
            if abs(item) > 2**53:
                raise InstanceError(key, f"{shown(item)} is too large", "an integer below 2^53", source)
            return item
        if isinstance(item, float):
            if not math.isfinite(item):
                raise InstanceError(key, f"{item} is no number", "a finite number", source)
            return item
        raise InstanceError(key, f"{shown(item)} is {_type_name(item)}", "number, text, list or mapping", source)

    return copy(value, "", 0)


def _type_name(value: object) -> str:
    names = {list: "a list", str: "text", dict: "a mapping", bool: "true/false", int: "a number", float: "a number"}
    return names.get(type(value), f"a {type(value).__name__}")
