"""Inputs room: a table of expert loads by layer, written into the kinds of the model's layers.

Layers of one kind that differ in load cost differently, so they become kinds of their own, ``mla+moe@1.6`` say. Nobody
else has to know of tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import groupby
from typing import Any

from prism_cp.errors import InstanceError
from prism_cp.inputs.model import LayerGroup, LayerKind, MixtureOfExperts, Model
from prism_cp.inputs.suggest import shown

KEY = "job.expert_load"
OTHER, MTP = "other", "mtp"
EXAMPLE = "{3-9: 1.6, other: 1.2, mtp: 1.3}"
_LAYERS = re.compile(r"^(\d{1,5})(?:-(\d{1,5}))?$")


def with_expert_loads(model: Model, job: Mapping[str, Any]) -> tuple[Model, dict[str, Any]]:
    """Model and job with a table of loads resolved: kinds split by load, ``job.expert_load`` the load of the rest.

    Parameters
    ----------
    model : Model
    job : mapping
        As the user wrote it. ``expert_load`` is a number, or maps ``first-last`` (positions of decoder layers, counted
        from 0, both ends included), ``mtp`` and ``other`` (layers that are not named; 1 when left out) to loads.

    Raises
    ------
    InstanceError
        A key names no layers, layers without experts or layers named before; a load is no number of at least 1.
    """
    table = job.get("expert_load")
    if isinstance(table, bool) or not isinstance(table, Mapping | int | float | None):
        raise InstanceError(KEY, shown(table), f"a number of at least 1, or a table by layer such as {EXAMPLE}")
    if not isinstance(table, Mapping):
        return model, dict(job)
    rest = _load(table.get(OTHER, 1.0), OTHER)
    mixtures = [kind for kind in model.kinds if isinstance(kind.feed_forward, MixtureOfExperts)]
    if not mixtures:
        raise InstanceError(KEY, f"is a table, but {model.name} has no experts", "a number, which changes nothing")
    for kind in mixtures:
        if isinstance(kind.feed_forward, MixtureOfExperts) and kind.feed_forward.expert_load is not None:
            problem = f"is a table, but layer kind {kind.name!r} states an expert_load of its own"
            raise InstanceError(KEY, problem, "one of them")
    return _split(model, _loads_by_position(model, table), rest), {**job, "expert_load": rest}


def _loads_by_position(model: Model, table: Mapping[str, Any]) -> dict[int, float]:
    """Load of every chain position that the table names (the block of prediction layers is the last one)."""
    loads: dict[int, float] = {}
    for key, value in table.items():
        if key != OTHER:
            load = _load(value, key)
            for position in _positions(model, key):
                if position in loads:
                    raise InstanceError(f"{KEY}.{key}", f"layer {position} is named before", "every layer once")
                loads[position] = load
    return loads


def _positions(model: Model, key: str) -> range:
    """Chain positions that a key of the table names."""
    where, last_layer = f"{KEY}.{key}", model.num_layers - 1
    if key == MTP:
        if not model.num_mtp_layers:
            raise InstanceError(where, f"{model.name} has no multi-token-prediction layers", _accepted(model))
        if not _has_experts(model, model.mtp_kind):
            raise InstanceError(where, f"layers of kind {model.mtp_kind!r} have no experts", _accepted(model))
        return range(model.num_layers, model.num_layers + 1)
    match = _LAYERS.match(key)
    if match is None:
        raise InstanceError(where, "names no layers", _accepted(model))
    first, last = int(match[1]), int(match[2] or match[1])
    if not first <= last <= last_layer:
        raise InstanceError(where, f"{model.name} has decoder layers 0-{last_layer}", _accepted(model))
    for position in range(first, last + 1):
        if not _has_experts(model, model.chain[position]):
            problem = f"layer {position} ({model.chain[position]}) has no experts"
            raise InstanceError(where, problem, _accepted(model))
    return range(first, last + 1)


def _accepted(model: Model) -> str:
    """Keys that a table of this model may have."""
    names, position = [], 0
    for group in model.layers:
        if _has_experts(model, group.kind):
            names.append(f"{position}-{position + group.count - 1} or parts of it")
        position += group.count
    mtp = [MTP] if model.num_mtp_layers and _has_experts(model, model.mtp_kind) else []
    return ", ".join([*names, *mtp, OTHER])


def _load(value: object, key: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 1:
        raise InstanceError(f"{KEY}.{key}", shown(value), "a number of at least 1")
    return float(value)


def _has_experts(model: Model, kind: str | None) -> bool:
    return any(known.name == kind and isinstance(known.feed_forward, MixtureOfExperts) for known in model.kinds)


def _split(model: Model, loads: Mapping[int, float], rest: float) -> Model:
    """The model with one kind for every pair of kind and load; layers of load `rest` keep their kind's name."""
    new: dict[str, LayerKind] = {}

    def named(kind: str, position: int) -> str:
        load = loads.get(position, rest)
        if load == rest:
            return kind
        name = f"{kind}@{load:g}" if float(f"{load:g}") == load else f"{kind}@{load!r}"
        base = model.kind(kind)
        assert isinstance(base.feed_forward, MixtureOfExperts)
        feed_forward = base.feed_forward.model_copy(update={"expert_load": load})
        new[name] = base.model_copy(update={"name": name, "feed_forward": feed_forward})
        return name

    chain = [named(kind, position) for position, kind in enumerate(model.chain[: model.num_layers])]
    mtp_kind = model.mtp_kind
    if mtp_kind is not None:
        mtp_kind = named(mtp_kind, model.num_layers)
    layers = tuple(LayerGroup(kind=kind, count=len(list(run))) for kind, run in groupby(chain))
    used_before, used = {*model.chain, model.mtp_kind}, {*chain, mtp_kind}
    kinds = [kind for kind in model.kinds if kind.name in used or kind.name not in used_before]
    changed = {"kinds": (*kinds, *new.values()), "layers": layers, "mtp_kind": mtp_kind}
    return model.model_copy(update=changed)
