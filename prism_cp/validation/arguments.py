"""Arguments: the argument lists that were published beside a measurement file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from prism_cp.errors import UsageError
from prism_cp.validation.rows import Row


def arguments_of(row: Row) -> Mapping[str, Any] | None:
    """The row's argument list from ``<name>_args.json`` beside ``<name>.csv``, or None.

    A list's key is the case's name, or ``name@release``; the release is the one in the row's address.

    Raises
    ------
    UsageError
        The file is no JSON mapping of mappings.
    """
    cases = _read(row.path.with_name(f"{row.path.stem}_args.json"))
    name = row.text("model").removeprefix("case:")
    if name in cases:
        return cases[name]
    release = re.search(r"@([^:]+):", row.text("url"))
    return cases.get(f"{name}@{release[1]}") if release else None


@cache
def _read(path: Path) -> Mapping[str, Mapping[str, Any]]:
    if not path.exists():
        return {}
    try:
        cases = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(cases, dict) or not all(isinstance(case, dict) for case in cases.values()):
        raise UsageError(f"{path}: no mapping of cases (accepted: a mapping from case names to argument mappings)")
    return cases
