"""Arguments of one run: values by flag, typed, with unusable ones refused by name."""

from __future__ import annotations

import difflib
import json
import math
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prism_cp.errors import InstanceError, UsageError
from prism_cp.estimation.megatron_arguments.flags import IRRELEVANT, REFUSED, UNDERSTOOD
from prism_cp.estimation.megatron_arguments.yaml_form import SUFFIXES, arguments_from_yaml

LARGEST = 10**9  # no size of a run is beyond
_FALSE = frozenset({"false", "0", "no", "off"})
_KNOWN = UNDERSTOOD | frozenset(IRRELEVANT) | frozenset(REFUSED)
_COMMENT = re.compile(r"(^|\s)#.*$")


class UnsupportedArgument(InstanceError):
    """A flag, or a value of one, that the model of memory and time does not know."""

    def __init__(self, flag: str, value: str, reason: str, accepted: str = "") -> None:
        self.flag, self.value, self.reason = flag, value, reason
        shown = "" if value in ("", "true") else f" {value}"
        super().__init__(f"--{flag}{shown}", reason, accepted)


class Arguments:
    """Flags without their leading dashes, and what was given for them.

    Raises
    ------
    UnsupportedArgument
        A flag is refused, or in no table.
    """

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = {name.lstrip("-"): str(value).strip() for name, value in given.items() if value is not None}
        for flag, value in self.given.items():
            if flag in REFUSED and not self._off(value):
                raise UnsupportedArgument(flag, value, REFUSED[flag])
            # 0 of a flag that nobody knows may mean anything
            if flag not in _KNOWN and value.lower() not in _FALSE - {"0"}:
                raise UnsupportedArgument(flag, value, "unknown flag", _close_to(flag))

    @staticmethod
    def _off(value: str) -> bool:
        return value.lower() in _FALSE

    def has(self, flag: str) -> bool:
        """Whether a flag is given and not switched off."""
        return flag in self.given and not self._off(self.given[flag])

    def text(self, flag: str, default: str = "") -> str:
        """The value as text, without quotes; a bare flag has none."""
        value = self.given.get(flag, default).strip("\"'")
        return default if value == "true" else value

    def integer(self, flag: str, default: int | None = None, least: int = 0) -> int:
        """The value as an integer of at least `least`."""
        if flag not in self.given:
            if default is None:
                raise UnsupportedArgument(flag, "", "is missing", "an integer")
            return default
        return self._whole(flag, self.text(flag), least)

    def size(self, flag: str, default: int | None = None) -> int:
        """The value as a positive integer."""
        return self.integer(flag, default, 1)

    def integers(self, flag: str) -> list[int]:
        """The value as integers separated by commas; none when the flag is not given."""
        return [self._whole(flag, part, 0) for part in self.text(flag).split(",") if part.strip()]

    @staticmethod
    def _whole(flag: str, text: str, least: int) -> int:
        try:
            number = float(text)
            if number != int(number) or not least <= number <= LARGEST:
                raise ValueError
        except (ValueError, OverflowError):
            raise UnsupportedArgument(flag, text, "is out of range", f"an integer from {least} on") from None
        return int(number)

    def number(self, flag: str, default: float, most: float = LARGEST) -> float:
        """The value as a number of at most `most`."""
        value = self.text(flag, str(default))
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not 0 <= number <= most:
            accepted = "a number from 0 on" if most == LARGEST else f"a number from 0 to {most:g}"
            raise UnsupportedArgument(flag, value, "is no number in range", accepted)
        return number

    def one_of(self, flag: str, default: str, accepted: tuple[str, ...]) -> str:
        """The value, which must be one of `accepted`."""
        value = self.text(flag, default)
        if value not in accepted:
            raise UnsupportedArgument(flag, value, "is not modelled", ", ".join(accepted))
        return value


def _close_to(flag: str) -> str:
    """Known flags of almost the same name, as text."""
    plain = flag.replace("_", "-")
    return ", ".join(f"--{name}" for name in difflib.get_close_matches(plain, sorted(_KNOWN), n=2, cutoff=0.85))


def read_arguments(path: Path, case: str | None = None) -> dict[str, str]:
    """Arguments from a file: JSON (flags to values, or cases to such), YAML, or text as on a command line.

    Parameters
    ----------
    case
        Name of the case in a JSON file of several.

    Raises
    ------
    UsageError
        The file cannot be read, or it holds cases and `case` names none of them.
    """
    if path.suffix.lower() in SUFFIXES:
        if case is not None:
            raise UsageError(f"--case {case}: {path} is YAML and holds one case (accepted: no --case)")
        return arguments_from_yaml(path)
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: is no text file") from error
    if text.lstrip().startswith("{"):
        return _from_json(text, path, case)
    if case is not None:
        raise UsageError(f"--case {case}: {path} is text and holds one case (accepted: no --case)")
    return arguments_from_text(text, str(path))


def _from_json(text: str, path: Path, case: str | None) -> dict[str, str]:
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"{path}: is no JSON ({error.msg} in line {error.lineno})") from error
    cases = {name: value for name, value in content.items() if isinstance(value, dict)}
    if cases and len(cases) == len(content):
        if case not in cases:
            few = ", ".join(list(cases)[:3])
            problem = "holds several cases" if case is None else f"holds no case {case}"
            raise UsageError(f"{path}: {problem} (accepted: --case NAME, one of {len(cases)}: {few}, …)")
        content = cases[case]
    elif case is not None:
        raise UsageError(f"--case {case}: {path} holds one case (accepted: no --case)")
    given = {str(name): value for name, value in content.items() if value is not None}
    return {name: "true" if value is True else str(value) for name, value in given.items()}


def arguments_from_text(text: str, source: str = "") -> dict[str, str]:
    """Arguments written as on a command line; backslashes at line ends and ``#`` comments are left out.

    A flag followed by a flag, or by nothing, is ``true``; several values are joined by a blank.
    """
    lines = [_COMMENT.sub("", line).rstrip().removesuffix("\\") for line in text.splitlines()]
    try:
        words = shlex.split(" ".join(lines))
    except ValueError as error:
        raise UsageError(f"{source}: quotes do not match ({error})") from error
    found: dict[str, list[str]] = {}
    flag = ""
    for word in words:
        if word.startswith("--"):
            flag, equals, value = word[2:].partition("=")
            found[flag] = [value] if equals else []
        elif flag and (re.match("-[A-Za-z]", word) or ("-" in word and word in _KNOWN)):
            accepted = f"--{word.lstrip('-')}, or quotes around a value of --{flag} that holds it"
            raise UsageError(f"{source}: {word!r} after --{flag} looks like a flag (accepted: {accepted})")
        elif flag:
            found[flag].append(word)
        elif word.startswith("-") or found:
            raise UsageError(f"{source}: {word!r} is no argument of Megatron-LM (accepted: --flag value)")
    if not found:
        raise UsageError(f"{source}: no --flag in it (accepted: Megatron-LM arguments)")
    return {name: " ".join(values) or "true" for name, values in found.items()}
