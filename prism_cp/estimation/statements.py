"""Configurations from what users state: an instance whose layout leaves nothing open, or a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from prism_cp.errors import InstanceError
from prism_cp.estimation.configuration import Configuration, check_run, configure, with_strategies
from prism_cp.formulas.strategies import strategies_for
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.inputs.model import MixtureOfExperts
from prism_cp.pipeline import get_schedule
from prism_cp.plan import Plan
from prism_cp.stage_problem import Assignment

_ACCEPTED = "one value: an estimate is of one layout"


def configuration_from_instance(instance: Instance, stage_layers: Sequence[int] | None = None) -> Configuration:
    """The run of an instance whose layout space holds one layout.

    Parameters
    ----------
    stage_layers
        Decoder layers of every virtual stage in forward order; None: as even as possible.

    Raises
    ------
    InstanceError
        A field that matters is open or has several values, or the sizes do not fit each other.
    """
    layout = pinned_layout(instance)
    recompute = _only(instance, "recompute", "none" if instance.layout.recompute is None else None)
    return configure(instance, layout, stage_layers=stage_layers, recompute=recompute)


def pinned_layout(instance: Instance) -> Layout:
    """The single layout of an instance's space; sizes that follow from others need not be stated."""
    experts = any(isinstance(kind.feed_forward, MixtureOfExperts) for kind in instance.model.kinds)
    needed = ("tp", "pp", "mbs", "schedule", *(("ep", "etp") if experts else ()))
    missing = [f"layout.{field}" for field in needed if not getattr(instance.layout, field)]
    if len(missing) > 1:
        raise InstanceError(missing[0], f"is open, so are {', '.join(missing[1:])}", _ACCEPTED)
    tp, pp, cp = (_only(instance, field, 1 if field == "cp" else None) for field in ("tp", "pp", "cp"))
    devices = instance.cluster.num_devices
    if devices % (tp * pp * cp):
        raise InstanceError("layout", f"tp·cp·pp = {tp * pp * cp} does not divide {devices} devices", "divisors")
    dp = devices // (tp * pp * cp)
    if instance.layout.dp is not None and _only(instance, "dp") != dp:
        raise InstanceError("layout.dp", f"{instance.layout.dp[0]}, but {devices} devices leave {dp}", str(dp))
    mbs = _only(instance, "mbs")
    if instance.job.gbs % (mbs * dp):
        raise InstanceError("layout.mbs", f"{mbs} x dp {dp} does not divide gbs {instance.job.gbs}", "a divisor")
    schedule = _only(instance, "schedule")
    layout = Layout(
        tp=tp,
        sp=_only(instance, "sp", False if tp == 1 else None),
        cp=cp,
        cp_comm=_only(instance, "cp_comm", "p2p" if cp == 1 else None),
        ep=_only(instance, "ep", None if experts else 1),
        etp=_only(instance, "etp", None if experts else 1),
        dp=dp,
        pp=pp,
        vpp=_only(
            instance, "vpp", 2 if schedule in ("zb-v", "dualpipev") else None if schedule == "interleaved" else 1
        ),
        mbs=mbs,
        zero=_only(instance, "zero", 0 if dp * cp == 1 else None),
        schedule=schedule,
        num_microbatches=instance.job.gbs // (mbs * dp),
    )
    if tp * cp * dp % (layout.ep * layout.etp):
        raise InstanceError("layout.ep", f"ep·etp = {layout.ep * layout.etp} does not divide tp·cp·dp", "a divisor")
    return layout


def _only(instance: Instance, field: str, default: Any = None) -> Any:
    """The field's single value; `default` where it is open, unless that is None."""
    values = getattr(instance.layout, field)
    if values is None or not values:
        if default is None:
            raise InstanceError(f"layout.{field}", "is open", _ACCEPTED)
        return default
    if len(values) > 1:
        shown = ", ".join(map(str, values))
        raise InstanceError(f"layout.{field}", f"has {len(values)} values: {shown}", "one value")
    return values[0]


def configuration_from_plan(plan: Plan) -> Configuration:
    """The run that a plan describes.

    Raises
    ------
    InstanceError
        The plan holds no layout.
    """
    if plan.layout is None:
        raise InstanceError("layout", f"the plan of {plan.instance_name} has none ({plan.status})", "another plan")
    check_plan(plan)
    layout = plan.layout.layout()
    used = {name for stage in plan.virtual_stages for row in stage.strategies.values() for name in row}
    instance = with_strategies(plan.instance, sorted(used))
    names = {kind: [s.name for s in strategies_for(kind, instance)] for kind in instance.model.chain_kinds}
    pieces = {stage.piece: stage for stage in plan.virtual_stages}
    boundaries, counts = [0], []
    for piece in sorted(pieces):
        stage = pieces[piece]
        boundaries.append(boundaries[-1] + stage.layers.count)
        counts.append(
            tuple(
                tuple(stage.strategies.get(kind, {}).get(name, 0) for name in names[kind])
                for kind in instance.model.chain_kinds
            )
        )
    return Configuration(instance, layout, Assignment(tuple(boundaries), tuple(counts)))


def check_plan(plan: Plan) -> None:
    """Refuse a plan whose layout cannot be, or whose stages do not hold the whole chain once with one strategy a layer.

    Raises
    ------
    InstanceError
        A part of the plan contradicts another; plans without a layout contradict nothing.
    """
    if plan.layout is None:
        return
    layout = plan.layout.layout()
    check_run(plan.instance, layout)
    chain = plan.instance.model.chain
    pieces = {stage.piece: stage for stage in plan.virtual_stages}
    needed = get_schedule(layout.schedule).num_pieces(layout.pp, layout.vpp)
    if sorted(pieces) != list(range(needed)):
        raise InstanceError("virtual_stages", f"hold the pieces {sorted(pieces)}", f"pieces 0 … {needed - 1}")
    first = 0
    for piece in range(needed):
        stage, key = pieces[piece], f"virtual_stages of piece {piece}"
        held = chain[first : first + stage.layers.count]
        wanted = {kind: held.count(kind) for kind in dict.fromkeys(held)}
        chosen = {kind: sum(row.values()) for kind, row in stage.strategies.items() if row}
        if chosen != wanted:
            raise InstanceError(key, f"strategies for {chosen}", f"for the layers it holds, {wanted}")
        for kind in wanted:
            known = [strategy.name for strategy in strategies_for(kind, plan.instance)]
            for name in sorted(set(stage.strategies[kind]) - set(known)):
                raise InstanceError(key, f"{name!r} is no strategy of {kind}", ", ".join(known))
        first += stage.layers.count
    if first != len(chain):
        raise InstanceError("virtual_stages", f"hold {first} layers", f"{len(chain)}, the whole chain")
