"""The symbols of every formula, named as in the field; all are positive or non-negative numbers.

Layout and job symbols take one value per layout; model symbols one per model; 0/1 switches stand for choices, so that
every expression stays a polynomial (or a piecewise one through Max/ceiling) in its symbols.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel
from sympy import Integer, Symbol


def positive(name: str) -> Symbol:
    """A positive number."""
    return Symbol(name, positive=True)


def switch(name: str) -> Symbol:
    """A 0/1 choice."""
    return Symbol(name, nonnegative=True, integer=True)


# layout
tp = positive("tp")
sp = switch("sp")  # 1: sequence parallel
cp = positive("cp")
ep = positive("ep")
etp = positive("etp")
dp = positive("dp")
pp = positive("pp")
vpp = positive("vpp")
mbs = positive("mbs")
num_microbatches = positive("num_microbatches")
cp_p2p, cp_all_gather, cp_a2a = switch("cp_p2p"), switch("cp_all_gather"), switch("cp_a2a")  # 0 when cp = 1
zero_1, zero_2, zero_3 = switch("zero_1"), switch("zero_2"), switch("zero_3")  # 1 when zero >= that stage
is_pipelined = switch("is_pipelined")  # pp > 1
# 1: forwards run beside other micro-batches' backwards, whose computation hides the token exchange
pairs_microbatches = switch("pairs_microbatches")

# job
seq_len = positive("seq_len")
gbs = positive("gbs")
expert_load = positive("expert_load")

# derived from the layout, written once
tokens = seq_len * mbs / cp  # tokens of one micro-batch on a rank, outside sequence-parallel regions
sequence_split = 1 + sp * (tp - 1)  # how often the non-tensor-parallel region is split
shard = dp * cp  # ranks that share dense optimizer states
expert_shard = tp * cp * dp / (ep * etp)


def numbers(component: BaseModel) -> SimpleNamespace:
    """The fields of an input type with every integer as an exact sympy number; formulas take their sizes from it."""
    return _fields(component, lambda _, value: Integer(value))


def names(component: BaseModel) -> SimpleNamespace:
    """The fields of an input type with every integer but 0 replaced by the symbol of its name: formulas in letters."""
    return _fields(component, lambda name, value: positive(name) if value else Integer(0))


def _fields(component: BaseModel, convert: Callable[[str, int], Any]) -> SimpleNamespace:
    values = {name: getattr(component, name) for name in type(component).model_fields}
    return SimpleNamespace(
        **{
            name: convert(name, value) if isinstance(value, int) and not isinstance(value, bool) else value
            for name, value in values.items()
        }
    )
