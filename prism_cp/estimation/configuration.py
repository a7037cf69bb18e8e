"""Configurations: everything that one given run states, as one frozen value."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from prism_cp.errors import InstanceError
from prism_cp.formulas.strategies import MODULES, chosen_strategy, strategies_for
from prism_cp.inputs.consistency import check_consistency
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout, LayoutSpace
from prism_cp.layouts.admissible import heads, tp_divides, used_kinds
from prism_cp.pipeline import get_schedule
from prism_cp.stage_problem import Assignment

MAX_OPERATIONS = 20_000_000  # forwards and backwards of a step that are simulated one by one


@dataclass(frozen=True)
class Configuration:
    """One run: what is trained on what, how it is laid out, and what every stage holds and recomputes.

    Attributes
    ----------
    instance : Instance
        Frozen inputs. Of its layout space only ``recompute`` counts: the strategies that `assignment` counts.
    layout : Layout
    assignment : Assignment
        Boundaries of the virtual stages and, per stage and kind, how many layers use which strategy.
    uniform_chunk_layers : int
        Layers that full recomputation checkpoints together (Megatron-LM ``--recompute-method uniform``,
        ``--recompute-num-layers``): only the first one's input is kept, all of them are live in the backward pass.
    optimizer_offload_fraction : float
        Share of master weights and moments that lives in host memory.
    deferred_projections : int
        Micro-batches whose weight gradient of the output projection waits until the end of the step: their inputs and
        gradients of logits are kept (Megatron-LM ``--defer-embedding-wgrad-compute``).
    layer_buffer_bytes : int
        What every layer keeps from its construction on, besides its state.
    all_forwards_first : bool
        Every micro-batch runs forward on every chunk before the first backward starts, whatever the schedule's name:
        what Megatron-LM's interleaving did with as many micro-batches as ranks.
    whole_blocks : bool
        Weights, gradients and optimizer state are tensors in blocks of PyTorch's caching allocator, which are not cut
        where little would be left: `prism_cp.estimation.allocator_blocks`.
    measured_devices : tuple of int
        Devices whose memory a published figure is about, of which the fullest counts; empty: all. Numbers in
        Megatron-LM's order: tensor, context, data, pipeline parallelism, the first varying fastest.
    first_step_only : bool
        Whether that figure was taken when only the first step was done, which has no moments yet.
    """

    instance: Instance
    layout: Layout
    assignment: Assignment
    uniform_chunk_layers: int = 1
    optimizer_offload_fraction: float = 0.0
    deferred_projections: int = 0
    layer_buffer_bytes: int = 0
    all_forwards_first: bool = False
    whole_blocks: bool = False
    measured_devices: tuple[int, ...] = ()
    first_step_only: bool = False

    @property
    def measured_ranks(self) -> tuple[int, ...]:
        """Pipeline ranks of the measured devices; empty: all."""
        stage = self.layout.tp * self.layout.cp * self.layout.dp
        return tuple(sorted({device // stage for device in self.measured_devices}))


def configure(
    instance: Instance,
    layout: Layout,
    *,
    stage_layers: Sequence[int] | None = None,
    recompute: str | Sequence[str] = "none",
    uniform_chunk_layers: int = 1,
    optimizer_offload_fraction: float = 0.0,
    deferred_projections: int = 0,
    layer_buffer_bytes: int = 0,
    all_forwards_first: bool = False,
    whole_blocks: bool = False,
) -> Configuration:
    """A configuration from what frameworks state: layers of every virtual stage, recomputation of every layer.

    Parameters
    ----------
    stage_layers
        Decoder layers of every piece in forward order, multi-token-prediction layers not counted: those follow the
        last decoder layer. None: as even as possible, the outer pieces get the smaller ones.
    recompute
        Strategy of all chain items, or one per chain item: ``none``, ``full``, or Megatron-LM's module names joined
        by ``+`` (modules that a layer lacks are left out).

    Raises
    ------
    InstanceError
        The layers do not add up, a recomputation module is unknown, or the model cannot be laid out like this.
    """
    check_run(instance, layout)
    pieces = get_schedule(layout.schedule).num_pieces(layout.pp, layout.vpp)
    boundaries = _boundaries(instance, pieces, stage_layers)
    chain = instance.model.chain
    texts = [recompute] * len(chain) if isinstance(recompute, str) else list(recompute)
    if len(texts) != len(chain):
        raise InstanceError("recompute", f"{len(texts)} strategies for {len(chain)} layers", "one per layer")
    instance = with_strategies(instance, texts)
    kinds = instance.model.chain_kinds
    names = {kind: [strategy.name for strategy in strategies_for(kind, instance)] for kind in kinds}
    chosen = [chosen_strategy(text, kind, instance).name for text, kind in zip(texts, chain, strict=True)]
    counts = []
    for first, last in itertools.pairwise(boundaries):
        held = list(zip(chain[first:last], chosen[first:last], strict=True))
        counts.append(tuple(tuple(held.count((kind, name)) for name in names[kind]) for kind in kinds))
    assignment = Assignment(boundaries, tuple(counts))
    return Configuration(
        instance,
        layout,
        assignment,
        uniform_chunk_layers,
        optimizer_offload_fraction,
        deferred_projections,
        layer_buffer_bytes,
        all_forwards_first,
        whole_blocks,
    )


def check_run(instance: Instance, layout: Layout) -> None:
    """Refuse a layout that the model, the batch or the devices cannot have, whatever a search would do with it.

    Tensor parallelism may leave the innermost link domain here, and a stage may be empty.

    Raises
    ------
    InstanceError
        Values contradict each other, or the step is too long to be simulated.
    """
    space = LayoutSpace(tp_within_domain=False, allow_empty_middle_stages=True).pinned_to(layout)
    pinned = instance.model_copy(update={"layout": space})
    check_consistency(pinned)
    schedule = get_schedule(layout.schedule)
    refused = schedule.why_not(layout.pp, layout.vpp, layout.num_microbatches)
    if refused is not None:
        raise InstanceError("layout.schedule", refused)
    _check_sizes(instance, layout)
    pieces = schedule.num_pieces(layout.pp, layout.vpp)
    if 2 * pieces * layout.num_microbatches > MAX_OPERATIONS:
        problem = f"{layout.num_microbatches} micro-batches on {pieces} stages are too many to simulate"
        raise InstanceError("job.gbs", problem, f"at most {MAX_OPERATIONS // (2 * pieces)} micro-batches a step")


def _check_sizes(instance: Instance, layout: Layout) -> None:
    """Sizes of several fields that have to divide each other."""
    tokens, experts = instance.job.seq_len // layout.cp, layout.ep * layout.etp
    if layout.sp and tokens % layout.tp:
        raise InstanceError("layout.sp", f"tp {layout.tp} does not divide the {tokens} tokens of a rank", "false")
    for kind in used_kinds(instance):
        if not tp_divides(kind, layout.tp):
            raise InstanceError("layout.tp", f"{layout.tp} does not divide the sizes of {kind.name}", "a divisor")
        if layout.cp > 1 and layout.cp_comm == "a2a" and heads(kind) // layout.tp % layout.cp:
            problem = f"a2a: cp {layout.cp} does not divide the {heads(kind) // layout.tp} heads of a rank"
            raise InstanceError("layout.cp_comm", problem, "p2p, all_gather")
    ranks = layout.tp * layout.cp * layout.dp
    if ranks % experts:
        raise InstanceError("layout.ep", f"ep·etp = {experts} does not divide tp·cp·dp = {ranks}", "a divisor")
    sequences = layout.mbs * layout.dp * layout.num_microbatches
    if sequences != instance.job.gbs:
        problem = f"{layout.num_microbatches} x mbs {layout.mbs} x dp {layout.dp} = {sequences} sequences"
        raise InstanceError("layout.num_microbatches", problem, f"a product of gbs {instance.job.gbs}")


def with_strategies(instance: Instance, texts: Sequence[str]) -> Instance:
    """The instance with exactly these strategies open; the profile allows what the run does."""
    named = {module for text in texts if text not in ("none", "full") for module in text.split("+")}
    known = instance.profile.recompute_modules
    order = tuple(module for module in MODULES if module in {*known, *named})
    unknown = sorted(named - set(MODULES))
    if unknown:
        raise InstanceError("recompute", f"unknown module {unknown[0]!r}", ", ".join(("none", "full", *MODULES)))
    profile = instance.profile.model_copy(update={"recompute_modules": order})
    space = LayoutSpace(recompute=tuple(dict.fromkeys(("none", *texts))))
    return instance.model_copy(update={"profile": profile, "layout": space})


def _boundaries(instance: Instance, pieces: int, stage_layers: Sequence[int] | None) -> tuple[int, ...]:
    layers, total = instance.model.num_layers, len(instance.model.chain)
    sizes = list(_even(layers, pieces) if stage_layers is None else stage_layers)
    if len(sizes) != pieces or sum(sizes) != layers or min(sizes) < 0:
        accepted = f"{pieces} numbers that sum up to {layers}"
        raise InstanceError("stage_layers", f"{sizes} for {layers} layers", accepted)
    boundaries = [0]
    for size in sizes:
        boundaries.append(boundaries[-1] + size)
    boundaries[-1] = total
    return tuple(boundaries)


def _even(layers: int, pieces: int) -> list[int]:
    """Sizes that differ by at most one; the outer pieces, which also carry an end, get the smaller ones."""
    sizes = [layers // pieces] * pieces
    by_distance = sorted(range(pieces), key=lambda piece: (abs(piece - (pieces - 1) / 2), piece))
    for piece in by_distance[: layers % pieces]:
        sizes[piece] += 1
    return sizes
