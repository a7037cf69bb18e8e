"""Strategies: what can be chosen per layer of a kind, i.e. which modules are recomputed in the backward pass.

Module names and their meaning are Megatron-LM's (``--recompute-modules``, core/transformer/transformer_config.py);
``activation_func`` is MindSpeed-LLM's ``--recompute-activation-function``: the activation of every feed-forward.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations

from prism_cp.errors import InstanceError
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.model import (
    DenseFeedForward,
    LatentAttention,
    LayerKind,
    MixtureOfExperts,
    SelfAttention,
)

MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts", "activation_func")
# Recomputing a whole MoE block already recomputes what is inside it.
INSIDE_MOE = frozenset({"moe_act", "shared_experts"})


@dataclass(frozen=True, slots=True)
class Strategy:
    """What one layer does: recompute nothing, some modules, or everything from its input.

    Attributes
    ----------
    name : str
        ``none``, ``full``, or the modules joined by ``+``.
    modules : frozenset of str
        Recomputed modules; empty for ``none`` and ``full``.
    full : bool
        Only the layer's input is kept.
    """

    name: str
    modules: frozenset[str] = frozenset()
    full: bool = False


FULL = Strategy("full", full=True)


def layer_kind(name: str, instance: Instance) -> LayerKind:
    """The decoder layer kind behind a chain kind; ``mtp`` stands for its layers' kind."""
    if name == "mtp":
        assert instance.model.mtp_kind is not None
        name = instance.model.mtp_kind
    return instance.model.kind(name)


def applicable_modules(kind: LayerKind, modules: Iterable[str]) -> tuple[str, ...]:
    """Those of `modules` that a layer of this kind contains, in their order."""
    softmax = isinstance(kind.attention, SelfAttention | LatentAttention)
    experts = kind.feed_forward if isinstance(kind.feed_forward, MixtureOfExperts) else None
    contained = {
        "core_attn": softmax,
        "layernorm": kind.num_norms > 0,
        "mla_up_proj": isinstance(kind.attention, LatentAttention),
        "mlp": isinstance(kind.feed_forward, DenseFeedForward),
        "activation_func": kind.feed_forward is not None,
        "moe": experts is not None,
        "moe_act": experts is not None,
        "shared_experts": experts is not None and experts.shared_intermediate_size > 0,
    }
    return tuple(module for module in modules if contained[module])


def _strategy(modules: Iterable[str], order: tuple[str, ...]) -> Strategy:
    chosen = frozenset(modules)
    if "moe" in chosen:
        chosen -= INSIDE_MOE
    return Strategy("+".join(module for module in order if module in chosen) or "none", chosen)


def _named(text: str, order: tuple[str, ...], kind: LayerKind) -> Strategy:
    """The strategy that a user's `text` means for layers of `kind`: modules that they lack are left out."""
    if text == "full":
        return FULL
    modules = [] if text == "none" else text.split("+")
    for module in modules:
        if module not in order:
            accepted = ", ".join(("none", "full", *order)) + ", or modules joined by +"
            raise InstanceError("layout.recompute", f"{text!r} names {module!r}", accepted)
    return _strategy(applicable_modules(kind, modules), order)


def chosen_strategy(text: str, kind: str, instance: Instance) -> Strategy:
    """The strategy that `text` (``none``, ``full``, or modules joined by ``+``) means for layers of a chain kind.

    Raises
    ------
    InstanceError
        A module is not one of the profile's.
    """
    return _named(text, instance.profile.recompute_modules, layer_kind(kind, instance))


def strategies_for(kind: str, instance: Instance) -> tuple[Strategy, ...]:
    """Strategies that a layer of a chain kind may use: ``none`` first, ``full`` last.

    All subsets of the profile's modules that the kind contains, and full recomputation, unless ``layout.recompute``
    names the ones to use.

    Raises
    ------
    InstanceError
        A module is unknown, or is not one of the profile's.
    """
    order = instance.profile.recompute_modules
    for module in order:
        if module not in MODULES:
            raise InstanceError("profile.recompute_modules", f"unknown module {module!r}", ", ".join(MODULES))
    layer = layer_kind(kind, instance)
    if instance.layout.recompute is not None:
        if not instance.layout.recompute:
            raise InstanceError("layout.recompute", "empty list", "null, or at least one strategy")
        found = [_named(text, order, layer) for text in instance.layout.recompute]
    else:
        usable = applicable_modules(layer, order)
        subsets = (chosen for size in range(len(usable) + 1) for chosen in combinations(usable, size))
        found = [_strategy(chosen, order) for chosen in subsets] + [FULL]
    unique = {strategy.name: strategy for strategy in found}
    return tuple(sorted(unique.values(), key=lambda s: (s.full, len(s.modules))))
