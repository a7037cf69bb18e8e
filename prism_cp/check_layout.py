"""Check room: whether a layout is legal for an instance, rule by rule.

The rules are stated here a second time on purpose: the search's own list of admissible layouts is not consulted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import CP_COMM, SCHEDULES, Layout
from prism_cp.inputs.model import (
    DenseFeedForward,
    GatedDeltaNet,
    LatentAttention,
    LayerKind,
    Mamba2,
    MixtureOfExperts,
    SelfAttention,
)
from prism_cp.pipeline import get_schedule
from prism_cp.pipeline_schedule import pipeline_schedule

PINNABLE = ("tp", "sp", "cp", "cp_comm", "ep", "etp", "dp", "pp", "vpp", "mbs", "zero", "schedule")


def layout_faults(instance: Instance, layout: Layout) -> list[tuple[str, str]]:
    """Every broken rule as (layout field, sentence); empty when the layout is legal."""
    faults = [*_sizes(instance, layout), *_pins(instance, layout), *_schedule(instance, layout)]
    faults += _without_effect(instance, layout)
    for kind in _kinds(instance):
        faults += [(field, f"layer kind {kind.name}: {text}") for field, text in _kind_faults(kind, instance, layout)]
    return faults


def _sizes(instance: Instance, layout: Layout) -> Iterator[tuple[str, str]]:
    """Products and divisibility that concern no layer."""
    devices, job = instance.cluster.num_devices, instance.job
    tp, cp, dp, pp = layout.tp, layout.cp, layout.dp, layout.pp
    if tp * cp * dp * pp != devices:
        yield "tp", f"tp*cp*dp*pp = {tp}*{cp}*{dp}*{pp} = {tp * cp * dp * pp}, the cluster has {devices} devices"
    if (tp * cp * dp) % (layout.ep * layout.etp):
        yield "ep", f"ep*etp = {layout.ep}*{layout.etp} does not divide tp*cp*dp = {tp * cp * dp}"
    if layout.mbs * dp * layout.num_microbatches != job.gbs:
        product = f"{layout.mbs}*{dp}*{layout.num_microbatches}"
        yield "num_microbatches", f"mbs*dp*num_microbatches = {product}, gbs is {job.gbs}"
    if layout.cp_comm not in CP_COMM:
        yield "cp_comm", f"{layout.cp_comm!r} is none of {', '.join(CP_COMM)}"
    if cp > 1 and job.seq_len % (2 * cp):
        yield "cp", f"seq_len {job.seq_len} is no multiple of 2*cp = {2 * cp}"
    if layout.sp and (job.seq_len % cp or (job.seq_len // cp) % tp):
        yield "sp", f"seq_len/cp = {job.seq_len}/{cp} is no multiple of tp = {tp}"
    domain = instance.cluster.links[0].domain_size
    if instance.layout.tp_within_domain:
        for field, size in (("tp", tp), ("etp", layout.etp)):
            if size > domain:
                yield field, f"{size} leaves the innermost link domain of {domain} devices"


def _pins(instance: Instance, layout: Layout) -> Iterator[tuple[str, str]]:
    """Values the search space does not allow."""
    for field in PINNABLE:
        # a space that names no schedule means the default ones, not all
        allowed = instance.layout.schedules if field == "schedule" else getattr(instance.layout, field)
        value = getattr(layout, field)
        # True == 1: a bool pinned as such must not accept a number, which Layout's types already exclude.
        if allowed is not None and value not in allowed:
            yield field, f"{value!r} is not among the allowed values {list(allowed)}"


def _without_effect(instance: Instance, layout: Layout) -> Iterator[tuple[str, str]]:
    """A choice that changes nothing has to take the first allowed value, so that every plan has one name."""
    fields: list[tuple[str, Sequence[object], str]] = []
    if layout.tp == 1:
        fields.append(("sp", (False, True), "tp is 1"))
    if layout.cp == 1:
        fields.append(("cp_comm", CP_COMM, "cp is 1"))
    if layout.dp * layout.cp == 1:
        fields.append(("zero", range(4), "dp and cp are 1"))
    for field, values, reason in fields:
        allowed = getattr(instance.layout, field)
        first = next((value for value in values if allowed is None or value in allowed), None)
        value = getattr(layout, field)
        if first is not None and value != first:
            yield field, f"{value!r} has no effect because {reason}; {first!r} stands for it"


def _schedule(instance: Instance, layout: Layout) -> Iterator[tuple[str, str]]:
    if layout.schedule not in SCHEDULES:
        yield "schedule", f"{layout.schedule!r} is none of {', '.join(SCHEDULES)}"
        return
    schedule = get_schedule(pipeline_schedule(instance, layout.schedule))
    reason = schedule.why_not(layout.pp, layout.vpp, layout.num_microbatches)
    if reason is not None:
        yield "schedule", reason
        return
    pieces, items = schedule.num_pieces(layout.pp, layout.vpp), len(instance.model.chain)
    if not instance.layout.allow_empty_middle_stages and pieces - 2 > items:
        yield "pp", f"{pieces} pieces for {items} layers leave a middle stage empty"


def _kinds(instance: Instance) -> list[LayerKind]:
    """Layer kinds that occur, the multi-token-prediction layers' kind included."""
    model = instance.model
    names = {group.kind for group in model.layers}
    if model.num_mtp_layers and model.mtp_kind is not None:
        names.add(model.mtp_kind)
    return [kind for kind in model.kinds if kind.name in names]


def _kind_faults(kind: LayerKind, instance: Instance, layout: Layout) -> Iterator[tuple[str, str]]:
    """Divisibility of one layer kind's heads, widths and experts."""
    for what, number in _tensor_parallel_numbers(kind):
        if number % layout.tp:
            yield "tp", f"{layout.tp} does not divide its {number} {what}"
    attention = kind.attention
    if isinstance(attention, SelfAttention):
        heads = attention.num_key_value_heads
        if heads % layout.tp and layout.tp % heads:
            yield "tp", f"{layout.tp} and its {heads} key/value heads: neither divides the other"
    if layout.cp > 1:
        if isinstance(attention, GatedDeltaNet | Mamba2):
            yield "cp", f"{layout.cp}, but {attention.type} layers run with cp 1"
        elif isinstance(attention, SelfAttention | LatentAttention) and layout.cp_comm == "a2a":
            heads = attention.num_attention_heads
            if (heads // layout.tp) % layout.cp:
                yield "cp_comm", f"a2a needs cp = {layout.cp} to divide {heads}/{layout.tp} heads"
    feed_forward = kind.feed_forward
    if isinstance(feed_forward, MixtureOfExperts):
        if feed_forward.num_experts % layout.ep:
            yield "ep", f"{layout.ep} does not divide its {feed_forward.num_experts} experts"
        if feed_forward.intermediate_size % layout.etp:
            yield "etp", f"{layout.etp} does not divide its expert width {feed_forward.intermediate_size}"
    if not any(isinstance(other.feed_forward, MixtureOfExperts) for other in _kinds(instance)):
        for field, size in (("ep", layout.ep), ("etp", layout.etp)):
            if size != 1:
                yield field, f"{size}, but the model has no experts"


def _tensor_parallel_numbers(kind: LayerKind) -> list[tuple[str, int]]:
    """What tp has to divide."""
    attention, feed_forward = kind.attention, kind.feed_forward
    numbers: list[tuple[str, int]] = []
    if isinstance(attention, SelfAttention | LatentAttention):
        numbers.append(("attention heads", attention.num_attention_heads))
    elif isinstance(attention, GatedDeltaNet):
        numbers += [("key heads", attention.num_key_heads), ("value heads", attention.num_value_heads)]
    elif isinstance(attention, Mamba2):
        numbers += [("heads", attention.num_heads), ("groups", attention.num_groups)]
    if isinstance(feed_forward, DenseFeedForward):
        numbers.append(("feed-forward columns", feed_forward.intermediate_size))
    elif isinstance(feed_forward, MixtureOfExperts):
        numbers.append(("shared-expert columns", feed_forward.shared_intermediate_size))
    return numbers
