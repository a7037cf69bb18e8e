"""Rows: one published measurement, as a frozen value with typed columns and the facts of its note."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from prism_cp.errors import PrismError, UsageError

# Columns a file of measurements must have; what else is known is read where it is there.
REQUIRED_COLUMNS = ("model", "system", "n_devices")
# Files of FLOPs per token have columns of their own.
FLOP_COLUMNS = ("model", "seq", "task", "n", "min", "median", "max")
_NOTHING = ("n/a", "none", "default", "unset")  # words of notes for what is not stated
_PAIR = re.compile(r"(?:^|[\s;,])([A-Za-z_]\w*)=([^;,\s]+)")


class Skipped(PrismError):
    """A row that cannot be predicted: a fact is missing, or a feature is unknown; the reason names it."""


@dataclass(frozen=True)
class Row:
    """One row of a measurement file.

    Attributes
    ----------
    columns
        Every column as printed, empty text where nothing was published.
    path, number
        File and line it was read from.
    """

    columns: Mapping[str, str]
    path: Path
    number: int

    def text(self, column: str) -> str:
        """A column as stripped text, empty when it is blank or absent."""
        return (self.columns.get(column) or "").strip()

    def integer(self, column: str) -> int | None:
        """A whole number, or None when the column is blank.

        Raises
        ------
        Skipped
            The column holds something else.
        """
        value = self.number_of(column)
        if value is None:
            return None
        if value != int(value):
            raise Skipped(f"{column}={self.text(column)!r} is no whole number")
        return int(value)

    def number_of(self, column: str) -> float | None:
        """A number, or None when the column is blank."""
        text = self.text(column)
        if not text:
            return None
        try:
            value = float(text)
        except ValueError:
            raise Skipped(f"{column}={text!r} is no number") from None
        if not math.isfinite(value):
            raise Skipped(f"{column}={text!r} is no finite number")
        return value

    def measurement(self, column: str) -> float | None:
        """A positive number, or None when the column is blank."""
        value = self.number_of(column)
        if value is not None and value <= 0:
            raise Skipped(f"{column}={self.text(column)!r} is not positive")
        return value

    def required(self, column: str) -> int:
        """A whole number of at least 1 that the prediction cannot do without."""
        value = self.integer(column)
        if value is None:
            raise Skipped(f"{column} is not published")
        if value < 1:
            raise Skipped(f"{column}={value} is not positive")
        return value

    def size(self, column: str) -> int:
        """A parallel size; blank means 1."""
        return self.required(column) if self.text(column) else 1

    @cached_property
    def note(self) -> Mapping[str, str]:
        """``key=value`` facts of the note, keys in lower case, in order; the first of equal keys counts."""
        facts: dict[str, str] = {}
        for key, value in _PAIR.findall(self.text("note")):
            facts.setdefault(key.lower(), value)
        return facts

    def note_integer(self, key: str) -> int | None:
        """A whole number of the note, or None when the key is absent or stands for nothing.

        Raises
        ------
        Skipped
            The note says something else for it.
        """
        value = self.note.get(key)
        if value is None or value.lower() in _NOTHING:
            return None
        if not value.isdecimal():
            raise Skipped(f"{key}={value!r} in the note is no whole number")
        return int(value)


def read_rows(paths: Sequence[Path]) -> list[Row]:
    """Rows of measurement files, in order.

    Raises
    ------
    UsageError
        A file is unreadable, empty, or lacks a column.
    """
    return [row for path in paths for row in _read(path)]


def is_flop_row(row: Row) -> bool:
    """Whether the row states FLOPs per token instead of a run."""
    return "task" in row.columns


def _read(path: Path) -> list[Row]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = list(file)
            comments = next((index for index, line in enumerate(lines) if not line.startswith("#")), 0)
            reader = csv.DictReader(lines[comments:])
            columns = tuple(reader.fieldnames or ())
            _check_columns(path, columns)
            _check_once(path, columns)
            rows = []
            for values in reader:
                number = comments + reader.line_num
                if None in values or any(value is None for value in values.values()):
                    accepted = f"{len(columns)} fields, as in the first line"
                    raise UsageError(f"{path}: line {number}: wrong number of fields (accepted: {accepted})")
                rows.append(Row({str(key): str(value) for key, value in values.items()}, path, number))
    except OSError as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read: {error.strerror}"
        raise UsageError(f"{path}: {reason} (accepted: a CSV file of measurements)") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path}: is no CSV text: {error} (accepted: comma-separated columns in UTF-8)") from error
    if not rows:
        raise UsageError(f"{path}: holds no rows (accepted: a first line of column names, then one line a run)")
    return rows


def _check_columns(path: Path, columns: Sequence[str]) -> None:
    if set(FLOP_COLUMNS) <= set(columns):
        return
    missing = [name for name in REQUIRED_COLUMNS if name not in columns]
    if missing:
        accepted = f"at least {', '.join(REQUIRED_COLUMNS)}; or {', '.join(FLOP_COLUMNS)}"
        raise UsageError(f"{path}: no column {', '.join(missing)} (accepted: {accepted})")


def _check_once(path: Path, columns: Sequence[str]) -> None:
    for name in columns:
        if columns.count(name) > 1:
            raise UsageError(f"{path}: column {name!r} stands {columns.count(name)} times (accepted: once)")
