"""Layer times: forward, input-gradient and weight-gradient seconds of every chain kind and strategy, and the ends.

`time_expressions(instance)` writes them once as a `Program` over the layout symbols; `TimeExpressions` evaluates the
program for arrays of layouts (`evaluate_numpy`) or for one layout in exact rationals (`evaluate_exact`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sympy import Expr, Integer, Rational, Symbol

from prism_cp.formulas import symbols as s
from prism_cp.formulas.attention_time import attention_parts
from prism_cp.formulas.collectives import rational
from prism_cp.formulas.direction_time import direction_templates, gather_template
from prism_cp.formulas.end_time import embedding_parts, head_parts, local_vocabulary, prediction_parts
from prism_cp.formulas.feed_forward_time import feed_forward_parts
from prism_cp.formulas.layer_parts import Part, PartBuilder
from prism_cp.formulas.parameters import device_parameters
from prism_cp.formulas.program import Program, Template
from prism_cp.formulas.state_time import bucket_times, jitter_factor, norm_time, state_template
from prism_cp.formulas.strategies import Strategy, layer_kind, strategies_for
from prism_cp.formulas.time_results import LayerTimes, LayoutTimes, concatenated
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.model import LatentAttention, LayerKind, MixtureOfExperts

ENDS = ("embedding", "head")
_NONE = (Strategy("none"),)
_BLOCK = 8192  # layouts evaluated at a time: their arrays stay in the cache
_NORM_MODULES = frozenset({"layernorm"})
_MOE_FLOOR = 4  # a mixture-of-experts layer launches about four times the kernels of a dense one
# Latent attention launches more than one projection a side: fitted on Moonlight-16B (Megatron-Bridge's recomputation
# studies) and DeepSeek-V3 (NVIDIA/dgxc-benchmarking), both without graphs.
_LATENT_FLOOR = Rational(19, 10)
# Without graphs the host launches a layer piece by piece to pair two micro-batches: fitted on the two published runs of
# that kind (NVIDIA-NeMo/Megatron-Bridge, H100 and GB200).
_OVERLAP_LAUNCH_S = Rational(7, 1000)
_ATTENTION_GRAPH_SHARE = Rational(3, 4)  # what is left of the host's work with graphs of the attention blocks


@dataclass(frozen=True)
class _Item:
    """One chain kind or end: names of the program's values that make up its times."""

    strategies: tuple[Strategy, ...]
    repeat: int  # how often the sums below are paid: depths of multi-token prediction
    forward: tuple[str, ...]
    input_grad: tuple[str, ...]
    weight_grad: tuple[str, ...]
    again: tuple[tuple[str, ...], ...]  # per strategy: forward values that the backward repeats
    optimizer: str
    gather: str
    reduce: str
    outer_hops: str
    floor_s: Rational  # host launch time of one direction
    sync_s: Rational  # host synchronisation of the token exchange


class TimeExpressions:
    """The time program of one instance. Build it with `time_expressions`."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self._program = program = Program()
        self._forward, self._input_grad, self._scaled = direction_templates(instance)
        self._gather = gather_template(instance)
        builder = PartBuilder(instance, program)
        kinds = instance.model.chain_kinds
        parts = [_chain_parts(kind, builder) for kind in kinds] + [embedding_parts(builder), head_parts(builder)]
        program.step()
        state = state_template(instance, builder.groups)
        strategies = [*(strategies_for(kind, instance) for kind in kinds), _NONE, _NONE]
        names = [*kinds, *ENDS]
        items = [self._item(*item, builder, state) for item in zip(names, parts, strategies, strict=True)]
        self._kinds, self._ends = items[: len(kinds)], items[len(kinds) :]
        self._step = {name: program.value(expression).name for name, expression in self._step_values(builder).items()}
        program.step()

    @property
    def strategies(self) -> list[tuple[Strategy, ...]]:
        """Strategies of every chain kind, in the order of the lists of `LayerTimes`."""
        return [item.strategies for item in self._kinds]

    def evaluate_numpy(self, columns: Mapping[str, Any], *, first_strategy_only: bool = False) -> LayoutTimes[Any]:
        """Times as float64 arrays; lists with one entry when only the first strategy is asked for.

        Parameters
        ----------
        columns
            One number or one-dimensional array per layout symbol of `symbols`, by name; arrays of one length.
        first_strategy_only
            Leave the other strategies out: what a first bound over very many layouts needs.
        """
        arrays = {name: np.asarray(column, dtype=np.float64) for name, column in columns.items()}
        (length,) = np.broadcast_shapes((1,), *(array.shape for array in arrays.values()))
        arrays = {name: np.broadcast_to(array, (length,)) for name, array in arrays.items()}
        blocks = [
            self._evaluate(
                {name: array[start : start + _BLOCK] for name, array in arrays.items()},
                exact=False,
                most_strategies=1 if first_strategy_only else None,
            )
            for start in range(0, max(1, length), _BLOCK)
        ]
        return blocks[0] if len(blocks) == 1 else concatenated(blocks)

    def evaluate_exact(self, values: Mapping[str, Any]) -> LayoutTimes[Any]:
        """Times as int or Fraction for one int or Fraction per layout symbol, by name.

        Exact but for square roots, which are rounded up within a relative 2**-127.
        """
        return self._evaluate(values, exact=True)

    def _item(
        self,
        name: str,
        parts: list[Part],
        strategies: tuple[Strategy, ...],
        builder: PartBuilder,
        state: tuple[Template, tuple[Symbol, ...]],
    ) -> _Item:
        """Ask the program for the values of one chain kind or end."""
        program, model, profile = self._program, self.instance.model, self.instance.profile
        repeat = model.num_mtp_layers if name == "mtp" else 1
        forward, input_grad, weight_grad = (
            {index: program.value(getattr(part.times, field)).name for index, part in enumerate(parts)}
            for field in ("forward", "input_grad", "weight_grad")
        )
        early = profile.checkpoint_early_stop
        again = tuple(
            tuple(
                forward[index]
                for index, part in enumerate(parts)
                if (strategy.full and not (early and part.final)) or part.modules & strategy.modules
            )
            for strategy in strategies
        )
        dense, expert = device_parameters(name, self.instance)
        if self.instance.job.frozen_weights:
            weight_grad, dense, expert = {0: program.value(Integer(0)).name}, Integer(0), Integer(0)
        template, layout = state
        optimizer, gather, reduction = program.call_all(template, dense, expert, *layout)
        reduce: Expr = reduction
        if name in ENDS and model.tied_embeddings:
            # The two copies of a tied embedding add their gradients up after the data-parallel reduction.
            matrix = model.hidden_size * local_vocabulary(self.instance)
            pair = builder.groups["ends"].ring_s(profile.gradient_reduce_bytes * matrix, passes=2)
            self._program.step()
            reduce = reduction + s.is_pipelined * pair
        hops = builder.groups["dp_cp"].outer_hops_s
        if expert != 0:
            hops = hops + builder.groups["edp"].outer_hops_s
        return _Item(
            strategies,
            repeat,
            tuple(forward.values()),
            tuple(input_grad.values()),
            tuple(weight_grad.values()),
            again,
            optimizer.name,
            gather.name,
            program.value(reduce).name,
            program.value(hops).name,
            *self._host_costs(name, repeat),
        )

    def _host_costs(self, name: str, repeat: int) -> tuple[Rational, Rational]:
        """Host launch floor of one direction, and host synchronisation per micro-batch; 0 under full CUDA graphs.

        Tokens padded to a capacity have shapes the host knows: nothing to synchronise (Megatron-LM
        ``core/transformer/moe/token_dispatcher.py``).
        """
        profile = self.instance.profile
        if name in ENDS or profile.full_cuda_graphs:
            return Rational(0), Rational(0)
        kind = layer_kind(name, self.instance)
        floor = repeat * rational(profile.host_launch_floor_s) * rational(self.instance.cluster.device.host_slowdown)
        if profile.attention_cuda_graphs:
            floor *= _ATTENTION_GRAPH_SHARE
        elif isinstance(kind.attention, LatentAttention):
            floor *= _LATENT_FLOOR
        if not isinstance(kind.feed_forward, MixtureOfExperts):
            return floor, Rational(0)
        sync = repeat * rational(profile.moe_host_sync_s)
        if profile.attention_cuda_graphs:
            sync *= _ATTENTION_GRAPH_SHARE
        elif profile.expert_overlap:
            sync += repeat * _OVERLAP_LAUNCH_S
        return _MOE_FLOOR * floor, sync if self.instance.job.capacity_factor is None else Rational(0)

    def _step_values(self, builder: PartBuilder) -> dict[str, Expr]:
        """Times that belong to no layer, and factors."""
        instance, profile, model = self.instance, self.instance.profile, self.instance.model
        jitter = jitter_factor(instance)
        chain = Counter(model.chain)
        total = sum((count * device_parameters(kind, instance)[0] for kind, count in chain.items()), Integer(0))
        if instance.job.frozen_weights:
            total = Integer(0)
        gather, reduction = bucket_times(instance, builder.groups["dp_cp"], total / s.pp)
        sharded = jitter * s.zero_1 * (1 - s.zero_3)  # parameters are gathered once a step
        split = s.tp if profile.split_pipeline_transfers else s.sequence_split
        p2p = builder.groups["pp"].neighbour_s(builder.hidden_bytes / split)
        overlapped = profile.overlap_param_gather
        return {
            "p2p_s": jitter * s.is_pipelined * p2p,
            "norm_s": jitter * norm_time(instance.cluster),
            "head_s": sharded * gather if overlapped else Integer(0),
            "last_bucket_s": jitter * reduction,
            "hide_share": rational(profile.gradient_overlap_window) if profile.overlap_grad_reduce else Integer(0),
            "sharded": s.zero_1 * (1 - s.zero_3),
        }

    def _evaluate(
        self, inputs: Mapping[str, Any], *, exact: bool, most_strategies: int | None = None
    ) -> LayoutTimes[Any]:
        """Run the program, then the layer templates for every strategy."""
        known = self._program.run(inputs, exact=exact)
        kinds = [self._layer(item, known, exact, most_strategies) for item in self._kinds]
        embedding, head = (self._layer(item, known, exact) for item in self._ends)
        step = {name: known[key] for name, key in self._step.items() if name != "sharded"}
        return LayoutTimes(kinds=kinds, embedding=embedding, head=head, **step)

    def _layer(
        self, item: _Item, known: Mapping[str, Any], exact: bool, most_strategies: int | None = None
    ) -> LayerTimes[Any]:
        def call(template: Template, *arguments: Any) -> Any:
            return (template.exact if exact else template.numpy)(*arguments)[0]

        def total(names: tuple[str, ...]) -> Any:
            return item.repeat * sum(known[name] for name in names)

        hop, zero_2, zero_3 = known[item.outer_hops], known["zero_2"], known["zero_3"]
        gather, reduce = known[item.gather], known[item.reduce]
        forward = call(self._forward, total(item.forward), item.floor_s, item.sync_s, hop, zero_3, gather)
        backward, other = total(item.input_grad), total(item.weight_grad)
        weight_grad = call(self._scaled, other)
        input_grad = [
            call(
                self._input_grad,
                backward + total(again),
                other,
                item.floor_s,
                item.sync_s,
                int(strategy.full or "moe" in strategy.modules),
                1 + int(strategy.full),
                hop,
                zero_2,
                zero_3,
                gather,
                reduce,
                known["num_microbatches"],
            )
            for strategy, again in zip(item.strategies[:most_strategies], item.again[:most_strategies], strict=True)
        ]
        return LayerTimes(
            [forward] * len(input_grad),
            input_grad,
            [weight_grad] * len(input_grad),
            call(self._scaled, known[item.optimizer]),
            call(self._gather, gather, forward, known[self._step["sharded"]], known["pp"], known["vpp"]),
            call(self._scaled, reduce),
        )


def _kind_parts(kind: LayerKind, builder: PartBuilder) -> list[Part]:
    """Parts of one layer."""
    parts = [Part(builder.norms(kind.num_norms), _NORM_MODULES)] if kind.num_norms else []
    if kind.attention is not None:
        parts += attention_parts(kind.attention, builder)
    if kind.feed_forward is not None:
        parts += feed_forward_parts(kind.feed_forward, builder)
    return parts


def _chain_parts(kind: str, builder: PartBuilder) -> list[Part]:
    """Parts of one layer of a chain kind (for ``mtp``: of one depth)."""
    model = builder.model
    if kind != "mtp":
        return _kind_parts(model.kind(kind), builder)
    assert model.mtp_kind is not None
    return _kind_parts(model.kind(model.mtp_kind), builder) + prediction_parts(builder)


def time_expressions(instance: Instance) -> TimeExpressions:
    """Write the time formulas of an instance.

    Raises
    ------
    InstanceError
        The device has no rate for the job's precision, or a recomputation module is unknown.
    """
    return TimeExpressions(instance)
