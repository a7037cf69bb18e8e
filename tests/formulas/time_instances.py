"""Instances and layout values that the tests of the time formulas share."""

from __future__ import annotations

from functools import cache
from typing import Any

from prism_cp.formulas.layer_time import TimeExpressions, time_expressions
from prism_cp.formulas.time_results import LayerTimes, LayoutTimes
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.load import load_instance


def catalog_instance(model: str, cluster: str, seq_len: int, gbs: int = 64, *overrides: str, **parts: Any) -> Instance:
    """An instance of catalogue entries; `overrides` as on the command line."""
    return load_instance(None, overrides, model=model, cluster=cluster, gbs=gbs, seq_len=seq_len, **parts)


@cache
def expressions(model: str, cluster: str, seq_len: int, *overrides: str, profile: str | None = None) -> TimeExpressions:
    """Times of `catalog_instance`, built once."""
    return time_expressions(catalog_instance(model, cluster, seq_len, 64, *overrides, profile=profile))


def layout_values(
    *,
    tp: int = 1,
    sp: int = 0,
    cp: int = 1,
    cp_comm: str = "p2p",
    ep: int = 1,
    etp: int = 1,
    dp: int = 1,
    pp: int = 1,
    vpp: int = 1,
    mbs: int = 1,
    num_microbatches: int = 1,
    zero: int = 1,
) -> dict[str, int]:
    """Values of the layout symbols by name."""
    values = {"tp": tp, "sp": sp, "cp": cp, "ep": ep, "etp": etp, "dp": dp, "pp": pp, "vpp": vpp, "mbs": mbs}
    values |= {"num_microbatches": num_microbatches, "is_pipelined": int(pp > 1)}
    values |= {f"cp_{name}": int(cp > 1 and cp_comm == name) for name in ("p2p", "all_gather", "a2a")}
    return values | {f"zero_{stage}": int(zero >= stage) for stage in (1, 2, 3)}


def at(expressions: TimeExpressions, **layout: Any) -> LayoutTimes[Any]:
    """Exact times of one layout."""
    return expressions.evaluate_exact(layout_values(**layout))


def layer_seconds(layer: LayerTimes[Any], strategy: int = 0) -> float:
    """Forward and backward of one micro-batch."""
    return float(layer.forward_s[strategy] + layer.input_grad_s[strategy] + layer.weight_grad_s[strategy])


def strategy_index(expressions: TimeExpressions, kind: int, name: str) -> int:
    """Place of a strategy in the lists of a chain kind."""
    return [strategy.name for strategy in expressions.strategies[kind]].index(name)
