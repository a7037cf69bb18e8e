"""Check room: what a disagreement is, and how two values are compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

RELATIVE_TOLERANCE = 1e-9  # of floats; every integer must be equal


@dataclass(frozen=True)
class Finding:
    """One disagreement: the plan's key, and what is wrong with its value."""

    key: str
    problem: str

    def __str__(self) -> str:
        return f"{self.key}: {self.problem}"


def differences(found: object, expected: object, key: str) -> Iterator[Finding]:
    """Leaves that differ, with dotted keys; integers and text exactly, floats up to `RELATIVE_TOLERANCE`."""
    found, expected = _tree(found), _tree(expected)
    if isinstance(found, Mapping) and isinstance(expected, Mapping):
        for name in dict.fromkeys((*expected, *found)):
            inner = f"{key}.{name}" if key else str(name)
            if name not in found or name not in expected:
                yield Finding(inner, "is missing" if name not in found else "does not belong here")
            else:
                yield from differences(found[name], expected[name], inner)
    elif isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        for index, (left, right) in enumerate(zip(found, expected, strict=True)):
            yield from differences(left, right, f"{key}.{index}")
    elif isinstance(found, float) and isinstance(expected, float):
        # Differences of close numbers (head-room, bubble) keep the rounding of their terms: a small absolute part.
        if not math.isclose(found, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=1e-12):
            yield Finding(key, f"{found!r}, recomputed {expected!r}")
    elif type(found) is not type(expected) or found != expected:
        yield Finding(key, f"{found!r}, recomputed {expected!r}")


def _tree(value: object) -> Any:
    """Models as dictionaries, tuples as lists."""
    if hasattr(value, "model_dump"):
        return value.model_dump()
    if isinstance(value, Iterable) and not isinstance(value, str | Mapping):
        return list(value)
    return value
