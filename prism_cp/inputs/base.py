"""The base of every input type: frozen, unknown keys refused, units in the names."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class FrozenModel(BaseModel):
    """Immutable, validated once, compares by value."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)
