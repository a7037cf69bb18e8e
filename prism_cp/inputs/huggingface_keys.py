"""Inputs room: typed access to the keys of a HuggingFace configuration, with the key in every complaint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from prism_cp.errors import InstanceError
from prism_cp.inputs.suggest import shown

_MAX_LAYERS = 100_000  # layers are listed one by one


class Keys:
    """A configuration whose values are fetched by key and expected type; every miss is an `InstanceError`."""

    def __init__(self, config: Mapping[str, Any], source: str) -> None:
        self._config, self.source = config, source

    def error(self, key: str, problem: str, accepted: str) -> InstanceError:
        """The error to raise about a key."""
        return InstanceError(key, problem, accepted, self.source)

    def has(self, key: str) -> bool:
        """Whether the key has a value other than null."""
        return self._config.get(key) is not None

    def size(self, key: str, default: int | None = None, minimum: int = 1) -> int:
        """An integer of at least `minimum`; `default` when the key is missing or null, refused when there is none."""
        value = self._config.get(key)
        if value is None:
            if default is None:
                family = self._config.get("model_type")
                raise self.error(key, f"is missing, and model_type {family} has no safe default", "an integer")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise self.error(key, shown(value), f"an integer of at least {minimum}")
        if key in ("num_hidden_layers", "n_layer") and value > _MAX_LAYERS:
            raise self.error(key, shown(value), f"at most {_MAX_LAYERS}")
        return value

    def optional_size(self, key: str, *, required: bool = False) -> int | None:
        """A positive integer or None; with `required` the key must be there, though it may be null."""
        if required and key not in self._config:
            raise self.error(key, "is missing", "an integer or null")
        return self.size(key) if self.has(key) else None

    def divided(self, key: str, by: str) -> int:
        """``key // by``, refused when it does not divide."""
        total, parts = self.size(key), self.size(by)
        if total % parts:
            raise self.error(by, f"{parts} does not divide {key} = {total}", f"a divisor of {total}")
        return total // parts

    def top_k(self, key: str, experts: str) -> int:
        """Experts per token, at most the number of experts."""
        value, most = self.size(key), self.size(experts)
        if value > most:
            raise self.error(key, f"{value} of {most} experts", f"1 … {experts} = {most}")
        return value

    def flag(self, key: str, default: bool) -> bool:
        """A boolean; `default` when missing or null."""
        value = self._config.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.error(key, shown(value), "true or false")
        return value

    def integers(self, key: str, default: Any) -> Any:
        """A tuple of non-negative integers; `default` when missing or null."""
        value = self._config.get(key)
        if value is None:
            return default
        if not isinstance(value, Sequence) or isinstance(value, str):
            raise self.error(key, shown(value), "a list of integers")
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int) or item < 0:
                raise self.error(key, f"entry {shown(item)}", "integers of at least 0")
        return tuple(value)

    def text(self, key: str) -> str | None:
        """A text; None when missing or null."""
        value = self._config.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(key, shown(value), "text")
        return value

    def names(self, key: str, count: int | None, accepted: Sequence[str]) -> list[str]:
        """`count` names (None: any number) out of `accepted`; empty when the key is missing or null."""
        value = self._config.get(key)
        if value is None:
            return []
        if not isinstance(value, Sequence) or isinstance(value, str) or count not in (None, len(value)):
            raise self.error(key, shown(value), "a list of names" if count is None else f"a list of {count} names")
        for item in value:
            if item not in accepted:
                raise self.error(key, f"entry {shown(item)}", ", ".join(accepted))
        return list(value)
