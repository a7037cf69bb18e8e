"""Inputs room: what no single field can know is wrong: references, divisibility, sizes that contradict each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import reduce
from math import gcd, prod

from prism_cp.errors import InstanceError
from prism_cp.inputs.cluster import Cluster
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.job import Profile
from prism_cp.inputs.layout import SCHEDULES, LayoutSpace
from prism_cp.inputs.model import GatedDeltaNet, LayerKind, Mamba2, MixtureOfExperts, Model, SelfAttention
from prism_cp.inputs.suggest import accepted_names

MAX_DEVICES = 1_000_000
MAX_LAYERS = 10_000
MAX_BATCH = 100_000_000  # sequences per step, and tokens per sequence
RESERVED_KINDS = ("embedding", "head", "mtp")  # names of what is no decoder layer
TIME_UNITS_S = (1e-9, 1.0)  # finer overflows 64-bit times, coarser tells no two plans apart
LARGEST_DENOMINATOR = 1000  # of the overlap factor: times of overlapped ops are multiples of it
NOT_INTERLEAVED = ("gpipe", "1f1b")


def check_consistency(instance: Instance) -> None:
    """Raise `InstanceError` for the first contradiction between values that are each valid alone."""
    finest, coarsest = TIME_UNITS_S
    if not finest <= instance.time_unit_s <= coarsest:
        raise InstanceError("time_unit_s", f"{instance.time_unit_s:g} seconds", f"{finest:g} … {coarsest:g}")
    check_model(instance.model)
    check_cluster(instance.cluster)
    check_state_space(instance.model, instance.profile)
    _check_job(instance)
    check_layout_names(instance.layout, instance.profile)
    _check_pins(instance)


# ---------------------------------------------------------------- model


def check_model(model: Model) -> None:
    """Kinds are defined once and used rightly, sizes inside a kind fit each other."""
    names = [kind.name for kind in model.kinds]
    for index, name in enumerate(names):
        if name in RESERVED_KINDS or name in names[:index]:
            reason = "is reserved" if name in RESERVED_KINDS else "is defined twice"
            raise InstanceError(f"model.kinds.{index}.name", f"{name!r} {reason}", "another name")
    if not model.layers:
        raise InstanceError("model.layers", "is empty", "at least one group of layers")
    for index, group in enumerate(model.layers):
        if group.kind not in names:
            problem = f"{group.kind!r} is not defined under kinds"
            raise InstanceError(f"model.layers.{index}.kind", problem, accepted_names(group.kind, names))
    if model.num_layers > MAX_LAYERS:
        raise InstanceError("model.layers", f"{model.num_layers} layers in all", f"at most {MAX_LAYERS}")
    if model.num_mtp_layers and model.mtp_kind not in names:
        problem = f"{model.mtp_kind!r} is not defined under kinds, but num_mtp_layers is {model.num_mtp_layers}"
        raise InstanceError("model.mtp_kind", problem, accepted_names(model.mtp_kind, names))
    if model.mtp_kind and not model.num_mtp_layers:
        raise InstanceError("model.mtp_kind", f"{model.mtp_kind!r} without num_mtp_layers", "num_mtp_layers above 0")
    for index, kind in enumerate(model.kinds):
        _check_kind(kind, f"model.kinds.{index}")


def check_state_space(model: Model, profile: Profile) -> None:
    """Refuse Mamba-2 layers under a profile without a fused scan: what is saved there is not modelled."""
    kinds = [kind.name for kind in model.kinds if isinstance(kind.attention, Mamba2)]
    if kinds and not profile.fused_state_space_scan:
        problem = f"layers of kind {kinds[0]!r} are Mamba-2, which {profile.name} scans unfused; not modelled"
        raise InstanceError("profile.fused_state_space_scan", problem, "true, for a framework with a fused scan")


def _check_kind(kind: LayerKind, key: str) -> None:
    attention, feed_forward = kind.attention, kind.feed_forward
    if attention is None and feed_forward is None:
        raise InstanceError(key, f"{kind.name!r} has neither attention nor feed_forward", "at least one of them")
    if isinstance(attention, SelfAttention):
        _divides(f"{key}.attention.num_key_value_heads", attention.num_key_value_heads, attention.num_attention_heads)
    if isinstance(attention, GatedDeltaNet):
        _divides(f"{key}.attention.num_key_heads", attention.num_key_heads, attention.num_value_heads)
    if isinstance(attention, Mamba2):
        _divides(f"{key}.attention.num_groups", attention.num_groups, attention.num_heads)
    if isinstance(feed_forward, MixtureOfExperts):
        where, experts = f"{key}.feed_forward", feed_forward.num_experts
        if feed_forward.top_k > experts:
            raise InstanceError(f"{where}.top_k", f"{feed_forward.top_k} of {experts} experts", f"1 … {experts}")
        _divides(f"{where}.num_groups", feed_forward.num_groups, experts)
        if feed_forward.topk_groups > feed_forward.num_groups:
            most = feed_forward.num_groups
            raise InstanceError(f"{where}.topk_groups", f"{feed_forward.topk_groups} of {most} groups", f"1 … {most}")


def _divides(key: str, value: int, whole: int) -> None:
    if whole % value:
        raise InstanceError(key, f"{value} does not divide {whole}", divisors_text(whole))


# ---------------------------------------------------------------- cluster and job


def check_cluster(cluster: Cluster) -> None:
    """Link levels grow and the last one spans the cluster."""
    if cluster.num_devices > MAX_DEVICES:
        raise InstanceError("cluster.num_devices", str(cluster.num_devices), f"at most {MAX_DEVICES}")
    if not cluster.links:
        raise InstanceError("cluster.links", "is empty", "at least one link level")
    sizes = [link.domain_size for link in cluster.links]
    for index in range(1, len(sizes)):
        if sizes[index] <= sizes[index - 1]:
            problem = f"{sizes[index]} after {sizes[index - 1]}: levels go from the innermost outwards"
            raise InstanceError(f"cluster.links.{index}.domain_size", problem, f"more than {sizes[index - 1]}, or all")
    if sizes[-1] < cluster.num_devices:
        problem = f"{sizes[-1]} does not span {cluster.num_devices} devices"
        key = f"cluster.links.{len(sizes) - 1}.domain_size"
        raise InstanceError(key, problem, "all in the last level, or one more level")


def _check_job(instance: Instance) -> None:
    job, model, peaks = instance.job, instance.model, instance.cluster.device.peak_flops
    for key, value in (("job.gbs", job.gbs), ("job.seq_len", job.seq_len)):
        if value > MAX_BATCH:
            raise InstanceError(key, str(value), f"at most {MAX_BATCH}")
    needed = ("bf16",) if job.precision == "bf16" else ("fp16",) if job.precision == "fp16" else ("fp8", "bf16")
    for dtype in needed:
        if dtype not in peaks:
            problem = f"{job.precision} needs {dtype}, which {instance.cluster.device.name} does not state"
            options = [name for name in ("bf16", "fp16", "fp8") if name in peaks and (name != "fp8" or "bf16" in peaks)]
            raise InstanceError("job.precision", problem, ", ".join(options) or "peak_flops with that dtype")
    if Fraction(str(job.overlap_factor)).denominator > LARGEST_DENOMINATOR:
        raise InstanceError("job.overlap_factor", str(job.overlap_factor), "a number with at most three decimals")
    if model.num_learned_positions and job.seq_len > model.num_learned_positions:
        problem = f"{job.seq_len} exceeds the {model.num_learned_positions} learned positions of {model.name}"
        raise InstanceError("job.seq_len", problem, f"at most {model.num_learned_positions}")


# ---------------------------------------------------------------- layout


def check_layout_names(layout: LayoutSpace, profile: Profile) -> None:
    """Schedules and recomputation modules exist, and each is given once."""
    for schedule in layout.schedule or ():
        if schedule not in SCHEDULES:
            raise InstanceError("layout.schedule", repr(schedule), accepted_names(schedule, SCHEDULES))
    for strategy in layout.recompute or ():
        modules = strategy.split("+")
        for module in modules:
            if len(modules) == 1 and module in ("none", "full"):
                continue
            if module not in profile.recompute_modules:
                names = ("none", "full", *profile.recompute_modules)
                accepted = accepted_names(module, names) + " (modules may be joined by +)"
                raise InstanceError("layout.recompute", f"{module!r} under profile {profile.name}", accepted)
        if len(set(modules)) < len(modules):
            raise InstanceError("layout.recompute", f"{strategy!r} names a module twice", "each module once")


def _check_pins(instance: Instance) -> None:
    """Every pinned or listed value can be part of at least one layout, as far as one field alone decides that."""
    model, job, layout = instance.model, instance.job, instance.layout
    devices = instance.cluster.num_devices
    mixtures = [kind.feed_forward for kind in model.kinds if isinstance(kind.feed_forward, MixtureOfExperts)]
    heads = reduce(gcd, _head_counts(model), 0)
    experts = reduce(gcd, (moe.num_experts for moe in mixtures), 0)
    widths = reduce(gcd, (moe.intermediate_size for moe in mixtures), 0)

    if heads:
        _values(
            layout.tp, "tp", lambda v: heads % v == 0, f"does not divide {heads} heads", divisors_text(heads, devices)
        )
    domain = instance.cluster.links[0].domain_size
    if layout.tp_within_domain:
        problem = f"leaves the innermost link domain of {domain} (tp_within_domain is true)"
        _values(layout.tp, "tp", lambda v: v <= domain, problem, f"at most {domain}, or tp_within_domain: false")
    if mixtures:
        text, accepted = f"does not divide {experts} experts", divisors_text(experts, devices)
        _values(layout.ep, "ep", lambda v: experts % v == 0, text, accepted)
        text, accepted = f"does not divide expert width {widths}", divisors_text(widths, devices)
        _values(layout.etp, "etp", lambda v: widths % v == 0, text, accepted)
    else:
        _values(layout.ep, "ep", lambda v: v == 1, f"but {model.name} has no experts", "1")
        _values(layout.etp, "etp", lambda v: v == 1, f"but {model.name} has no experts", "1")
    text = f"needs a seq_len that is a multiple of 2·cp, {job.seq_len} is not"
    _values(layout.cp, "cp", lambda v: v == 1 or job.seq_len % (2 * v) == 0, text, "1, or a divisor of seq_len / 2")
    for name, values in (("dp", layout.dp), ("mbs", layout.mbs)):
        _values(values, name, lambda v: job.gbs % v == 0, f"does not divide gbs {job.gbs}", divisors_text(job.gbs))
    if layout.dp and layout.mbs and not any(job.gbs % (d * b) == 0 for d in layout.dp for b in layout.mbs):
        problem = f"gbs {job.gbs} is no multiple of mbs·dp for mbs {list(layout.mbs)} and dp {list(layout.dp)}"
        raise InstanceError("job.gbs", problem, f"e.g. a multiple of {min(layout.dp) * min(layout.mbs)}")
    schedules = layout.schedules
    if all(schedule in NOT_INTERLEAVED for schedule in schedules):
        text = f"needs an interleaved schedule, allowed are {', '.join(schedules)}"
        _values(layout.vpp, "vpp", lambda v: v == 1, text, "1")
    if not layout.allow_empty_middle_stages:
        # The first and the last stage may hold an end only.
        most = len(model.chain) + 2
        text = f"stages for {len(model.chain)} layers leaves a middle stage empty"
        _values(layout.pp, "pp", lambda v: v <= most, text, f"at most {most}, or allow_empty_middle_stages: true")
    _check_world(layout, devices)


def _check_world(layout: LayoutSpace, devices: int) -> None:
    fields = {"tp": layout.tp, "cp": layout.cp, "dp": layout.dp, "pp": layout.pp}
    for name, values in fields.items():
        _values(values, name, lambda v: devices % v == 0, f"does not divide {devices} devices", divisors_text(devices))
    pinned = {name: values[0] for name, values in fields.items() if values is not None and len(values) == 1}
    product = prod(pinned.values())
    if len(pinned) == len(fields) and product != devices:
        text = "·".join(pinned)
        problem = f"tp·cp·dp·pp = {product}, but the cluster has {devices} devices ({text} are all pinned)"
        raise InstanceError("layout", problem, f"a product of {devices}, or one of the fields left open")
    if devices % product:
        text = "·".join(f"{name} {value}" for name, value in pinned.items())
        raise InstanceError("layout", f"{text} = {product} does not divide {devices} devices", divisors_text(devices))


def _values(values: Sequence[int] | None, name: str, good: Callable[[int], bool], problem: str, accepted: str) -> None:
    for value in values or ():
        if not good(value):
            raise InstanceError(f"layout.{name}", f"{value} {problem}", accepted)


def _head_counts(model: Model) -> list[int]:
    """Every head count that tensor parallelism has to divide."""
    counts: list[int] = []
    for kind in model.kinds:
        attention = kind.attention
        if isinstance(attention, GatedDeltaNet):
            counts += [attention.num_key_heads, attention.num_value_heads]
        elif isinstance(attention, Mamba2):
            counts.append(attention.num_heads)
        elif attention is not None:
            counts.append(attention.num_attention_heads)
    return counts


def divisors_text(whole: int, most: int | None = None, limit: int = 24) -> str:
    """The divisors of `whole` up to `most`, as text, at most `limit` of them."""
    low = [number for number in range(1, int(whole**0.5) + 1) if whole % number == 0]
    found = sorted({*low, *(whole // number for number in low)})
    if most is not None:
        found = [number for number in found if number <= most]
    return ", ".join(map(str, found[:limit])) + (" …" if len(found) > limit else "")
