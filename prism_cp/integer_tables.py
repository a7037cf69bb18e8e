"""From formulas to one layout's integer stage problem; the only place where anything is rounded.

The rule: a table entry is the exact rational value of its expression divided by the unit, rounded up once; where a
schedule overlaps pairs, op times are rounded up to multiples of its overlap factor's denominator. Time that
gradient reduction can hide is rounded down, because it is subtracted. Bounds over many layouts use the same expressions
in floating point, unrounded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from sympy import Symbol

from prism_cp.formulas import symbols as s
from prism_cp.formulas.evaluate import exact_function, numpy_function
from prism_cp.formulas.layer_time import time_expressions
from prism_cp.formulas.memory import PartMemory, memory_expressions
from prism_cp.formulas.strategies import Strategy, strategies_for
from prism_cp.formulas.tables import LayerCosts, LayoutCosts
from prism_cp.formulas.time_results import LayerTimes, LayoutTimes
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import CP_COMM, PAIRING, SCHEDULES, Layout
from prism_cp.pipeline import get_schedule
from prism_cp.pipeline_schedule import pipeline_schedule
from prism_cp.stage_problem import (
    EndCosts,
    KindCosts,
    RankCosts,
    SharedBuffer,
    StageProblem,
    StrategyCosts,
    VirtualStage,
)

FLOAT_ERROR = 1e-9  # far above the relative error of the floating-point path, which tests keep below 1e-10
LAYOUT_SYMBOLS: tuple[Symbol, ...] = (
    s.tp, s.sp, s.cp, s.ep, s.etp, s.dp, s.pp, s.vpp, s.mbs, s.num_microbatches, s.cp_p2p, s.cp_all_gather, s.cp_a2a,
    s.zero_1, s.zero_2, s.zero_3, s.is_pipelined,
)  # fmt: skip


def symbol_columns(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Values of `LAYOUT_SYMBOLS` for columns of layouts (cp_comm an index into `CP_COMM`, sp 0/1)."""
    plain = ("tp", "sp", "cp", "ep", "etp", "dp", "pp", "vpp", "mbs", "num_microbatches")
    values = {name: columns[name].astype(np.float64) for name in plain}
    several = columns["cp"] > 1
    for index, name in enumerate(CP_COMM):
        values[f"cp_{name}"] = (several & (columns["cp_comm"] == index)).astype(np.float64)
    for stage in (1, 2, 3):
        values[f"zero_{stage}"] = (columns["zero"] >= stage).astype(np.float64)
    values["is_pipelined"] = (columns["pp"] > 1).astype(np.float64)
    pairing = np.array([name in PAIRING for name in SCHEDULES])[columns["schedule"]]
    values["pairs_microbatches"] = (pairing | (columns["pp"] == 1)).astype(np.float64)
    return values


def symbol_values(layout: Layout) -> dict[str, int]:
    """Values of `LAYOUT_SYMBOLS` for one layout."""
    plain = ("tp", "sp", "cp", "ep", "etp", "dp", "pp", "vpp", "mbs", "num_microbatches")
    values = {name: int(getattr(layout, name)) for name in plain}
    for name in CP_COMM:
        values[f"cp_{name}"] = int(layout.cp > 1 and layout.cp_comm == name)
    for stage in (1, 2, 3):
        values[f"zero_{stage}"] = int(layout.zero >= stage)
    values["is_pipelined"] = int(layout.pp > 1)
    values["pairs_microbatches"] = int(layout.pp == 1 or layout.schedule in PAIRING)
    return values


class CostModel:
    """All formulas of one instance, ready to be evaluated for any layout.

    Raises
    ------
    InstanceError
        The formulas miss a fact (a rate for the precision, a known recomputation module).
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.memory = memory_expressions(instance)
        self.times = time_expressions(instance)
        chain, kinds = instance.model.chain, instance.model.chain_kinds
        self.layers = tuple(kinds.index(name) for name in chain)
        self.strategies: list[tuple[Strategy, ...]] = [strategies_for(name, instance) for name in kinds]
        prefix = np.zeros((len(kinds), len(chain) + 1), np.int64)
        for position, kind in enumerate(self.layers):
            prefix[:, position + 1] = prefix[:, position]
            prefix[kind, position + 1] += 1
        self.prefix_counts = prefix
        parts = (*self.memory.kinds, self.memory.embedding, self.memory.head)
        flat = [expression for part in parts for expression in _part_expressions(part)]
        flat += [expression for expression, _, _, _ in self.memory.buffers]
        flat += [self.memory.fixed_bytes, self.memory.capacity_bytes]
        self._memory_expressions = flat
        self._numpy_memory = numpy_function(flat, LAYOUT_SYMBOLS)
        self._exact_memory = exact_function(flat, LAYOUT_SYMBOLS)

    def evaluate(self, columns: Mapping[str, np.ndarray]) -> LayoutCosts[Any]:
        """Float64 costs of many layouts; columns as in `AdmissibleLayouts.expand`."""
        values = symbol_columns(columns)
        memory = self._numpy_memory(*(values[symbol.name] for symbol in LAYOUT_SYMBOLS))
        return self._join(self.times.evaluate_numpy(values), memory)

    def evaluate_times(self, columns: Mapping[str, np.ndarray]) -> LayoutTimes[Any]:
        """Float64 times of many layouts; where every kind may recompute nothing, of that strategy only."""
        plain = all(strategies[0].name == "none" for strategies in self.strategies)
        return self.times.evaluate_numpy(symbol_columns(columns), first_strategy_only=plain)

    def evaluate_exact(self, layout: Layout) -> LayoutCosts[Any]:
        """Exact rational costs of one layout."""
        values = symbol_values(layout)
        memory = self._exact_memory(*(values[symbol.name] for symbol in LAYOUT_SYMBOLS))
        return self._join(self.times.evaluate_exact(values), memory)

    def _join(self, times: LayoutTimes[Any], memory: Sequence[Any]) -> LayoutCosts[Any]:
        numbers = iter(memory)
        parts = (*self.memory.kinds, self.memory.embedding, self.memory.head)
        layer_times = (*times.kinds, times.embedding, times.head)
        layers = [_layer_costs(part, time, numbers) for part, time in zip(parts, layer_times, strict=True)]
        buffers = [(next(numbers), kinds, first, last) for _, kinds, first, last in self.memory.buffers]
        return LayoutCosts(
            layers[:-2], layers[-2], layers[-1], buffers, next(numbers), next(numbers),
            times.p2p_s, times.norm_s, times.head_s, times.last_bucket_s, times.hide_share,
        )  # fmt: skip


def _part_expressions(part: PartMemory) -> list[Any]:
    """The expressions of one part in the order `_layer_costs` reads them."""
    state = [
        part.deferred_bytes,
        part.weight_bytes,
        part.gradient_bytes,
        part.optimizer_bytes,
        part.optimizer_step_bytes,
    ]
    return [*part.activation_bytes, *part.transient_bytes, *state]


def _layer_costs(part: PartMemory, times: LayerTimes[Any], numbers: Any) -> LayerCosts[Any]:
    activation = [next(numbers) for _ in part.activation_bytes]
    transient = [next(numbers) for _ in part.transient_bytes]
    deferred, weights, gradients, optimizer, step = (next(numbers) for _ in range(5))
    return LayerCosts(
        times.forward_s, times.input_grad_s, times.weight_grad_s, activation, transient, deferred, weights,
        gradients, optimizer, step, times.optimizer_s, times.param_gather_s, times.grad_reduce_s,
    )  # fmt: skip


# -- one layout, in integers -------------------------------------------------------------------------------------------


class _Rounding:
    """Rounds exact costs into table entries."""

    def __init__(self, instance: Instance) -> None:
        self.time_unit = Fraction(str(instance.time_unit_s))
        self.memory_unit = instance.memory_unit_bytes
        self.time_multiple = 1  # of which op times are multiples, so that an overlapped pair's length is an integer

    def time(self, seconds: Any) -> int:
        return math.ceil(Fraction(seconds) / self.time_unit)

    def op_time(self, seconds: Any) -> int:
        """Of a forward, input gradient or weight gradient."""
        return self.time_multiple * self.time(Fraction(seconds) / self.time_multiple)

    def time_down(self, seconds: Any) -> int:
        return math.floor(Fraction(seconds) / self.time_unit)

    def memory(self, size_bytes: Any) -> int:
        return math.ceil(Fraction(size_bytes) / self.memory_unit)

    def memory_down(self, size_bytes: Any) -> int:
        return math.floor(Fraction(size_bytes) / self.memory_unit)


class _OptimisticRounding(_Rounding):
    """Rounds floating-point costs so that no entry is worse than the exact one: same rule, forgiving their error."""

    def __init__(self, instance: Instance) -> None:
        super().__init__(instance)
        self.seconds = float(instance.time_unit_s)

    def time(self, seconds: Any) -> int:
        return math.ceil(float(seconds) / self.seconds * (1 - FLOAT_ERROR))

    def op_time(self, seconds: Any) -> int:
        return self.time_multiple * self.time(float(seconds) / self.time_multiple)

    def time_down(self, seconds: Any) -> int:
        return math.floor(float(seconds) / self.seconds * (1 + FLOAT_ERROR))

    def memory(self, size_bytes: Any) -> int:
        return math.ceil(float(size_bytes) / self.memory_unit * (1 - FLOAT_ERROR))

    def memory_down(self, size_bytes: Any) -> int:
        return math.floor(float(size_bytes) / self.memory_unit * (1 + FLOAT_ERROR))


def row_of(costs: LayoutCosts[Any], row: int) -> LayoutCosts[Any]:
    """One layout of array costs."""

    def pick(value: Any) -> Any:
        if isinstance(value, list):
            return [pick(entry) for entry in value]
        if isinstance(value, LayerCosts):
            return LayerCosts(**{name: pick(getattr(value, name)) for name in LayerCosts.__dataclass_fields__})
        if isinstance(value, tuple):
            return (pick(value[0]), *value[1:])
        return value[row] if isinstance(value, np.ndarray) and value.ndim else value

    return LayoutCosts(**{name: pick(getattr(costs, name)) for name in LayoutCosts.__dataclass_fields__})


def optimistic_stage_problem(
    instance: Instance, layout: Layout, cost_model: CostModel, costs: LayoutCosts[Any]
) -> StageProblem:
    """A stage problem from floating-point costs of one layout, for bounds: never worse than the exact one."""
    return _assemble(instance, layout, cost_model, costs, _OptimisticRounding(instance))


def build_stage_problem(instance: Instance, layout: Layout, cost_model: CostModel | None = None) -> StageProblem:
    """The integer stage problem of one layout, from exact rational costs.

    Parameters
    ----------
    cost_model : CostModel, optional
        Of the same instance; built when not given.
    """
    model = cost_model or CostModel(instance)
    return stage_problem_of_costs(instance, layout, model, model.evaluate_exact(layout))


def stage_problem_of_costs(
    instance: Instance, layout: Layout, cost_model: CostModel, costs: LayoutCosts[Any]
) -> StageProblem:
    """The integer stage problem of one layout from given exact rational costs, bounds on costs for instance."""
    return _assemble(instance, layout, cost_model, costs, _Rounding(instance))


def _assemble(
    instance: Instance, layout: Layout, model: CostModel, costs: LayoutCosts[Any], to: _Rounding
) -> StageProblem:
    """Tables of one layout, every entry rounded by `to`."""
    chosen = pipeline_schedule(instance, layout.schedule)
    schedule = get_schedule(chosen)
    to.time_multiple = schedule.overlap_factor.denominator
    placed = schedule.virtual_stages(layout.pp, layout.vpp)
    pieces = schedule.num_pieces(layout.pp, layout.vpp)
    length = len(model.layers)
    table = tuple(
        _kind_costs(name, strategies, kind, costs.hide_share, to)
        for name, strategies, kind in zip(instance.model.chain_kinds, model.strategies, costs.kinds, strict=True)
    )
    embedding, head = (_end_costs(end, costs.hide_share, to) for end in (costs.embedding, costs.head))
    stages = tuple(
        VirtualStage(rank, piece, 0, _add(embedding if piece == 0 else None, head if piece == pieces - 1 else None))
        for rank, piece in placed
    )
    rank = RankCosts(
        to.memory_down(costs.capacity_bytes),
        to.memory(costs.fixed_bytes),
        to.time(costs.head_s),
        to.time(costs.last_bucket_s),
    )
    middle = 0 if instance.layout.allow_empty_middle_stages else 1
    least = tuple(middle if 0 < piece < pieces - 1 else 0 for piece in range(pieces))
    buffers = tuple(
        SharedBuffer(
            to.memory(size_bytes),
            kinds,
            frozenset(
                index
                for index, (_, piece) in enumerate(placed)
                if (first and piece == 0) or (last and piece == pieces - 1)
            ),
        )
        for size_bytes, kinds, first, last in costs.buffers
    )
    return StageProblem(
        schedule=chosen,
        pp=layout.pp,
        vpp=layout.vpp,
        num_microbatches=layout.num_microbatches,
        p2p=to.time(costs.p2p_s),
        barrier=to.time(costs.norm_s),
        layers=model.layers,
        num_pieces=pieces,
        min_layers=least,
        max_layers=(length,) * pieces,
        tables=(table,),
        virtual_stages=stages,
        ranks=(rank,) * layout.pp,
        buffers=tuple(buffer for buffer in buffers if buffer.memory),
    )


def _kind_costs(
    name: str, strategies: Sequence[Strategy], costs: LayerCosts[Any], hide_share: Any, to: _Rounding
) -> KindCosts:
    rows = []
    for q, strategy in enumerate(strategies):
        input_grad, weight_grad = costs.input_grad_s[q], costs.weight_grad_s[q]
        rows.append(
            StrategyCosts(
                strategy.name,
                to.op_time(costs.forward_s[q]),
                to.op_time(input_grad),
                to.op_time(weight_grad),
                to.time_down(hide_share * (input_grad + weight_grad)),
                to.memory(costs.activation_bytes[q]),
                to.memory(costs.transient_bytes[q]),
            )
        )
    return KindCosts(name, *_state(costs, to), tuple(rows), to.memory(costs.deferred_bytes))


def _state(costs: LayerCosts[Any], to: _Rounding) -> tuple[int, int, int, int]:
    """(static, optimizer_step, head, reduce) entries."""
    return (
        to.memory(costs.weight_bytes + costs.gradient_bytes + costs.optimizer_bytes),
        to.memory(costs.optimizer_step_bytes),
        to.time(costs.optimizer_s + costs.param_gather_s),
        to.time(costs.grad_reduce_s),
    )


def _end_costs(costs: LayerCosts[Any], hide_share: Any, to: _Rounding) -> EndCosts:
    backward = costs.input_grad_s[0] + costs.weight_grad_s[0]
    static, optimizer_step, head, reduce = _state(costs, to)
    return EndCosts(
        forward=to.op_time(costs.forward_s[0]),
        input_grad=to.op_time(costs.input_grad_s[0]),
        weight_grad=to.op_time(costs.weight_grad_s[0]),
        hideable=to.time_down(hide_share * backward),
        activation=to.memory(costs.activation_bytes[0]),
        transient=to.memory(costs.transient_bytes[0]),
        static=static,
        optimizer_step=optimizer_step,
        head=head,
        reduce=reduce,
        deferred=to.memory(costs.deferred_bytes),
    )


def _add(one: EndCosts | None, other: EndCosts | None) -> EndCosts:
    """Both ends on one virtual stage: everything adds up, except that one transient lives at a time."""
    if one is None or other is None:
        return one or other or EndCosts()
    sums = {
        name: getattr(one, name) + getattr(other, name) for name in EndCosts.__dataclass_fields__ if name != "transient"
    }
    return EndCosts(transient=max(one.transient, other.transient), **sums)
