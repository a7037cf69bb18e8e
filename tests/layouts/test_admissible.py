"""Admissible layouts against a plain product of all values with the rules written out, and against the checker."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import fields, replace

import pytest

from prism_cp.check_layout import layout_faults
from prism_cp.errors import InstanceError
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import CP_COMM, DEFAULT_MOST_VPP, SCHEDULES, Layout
from prism_cp.layouts.admissible import AdmissibleLayouts, all_layouts, divisors
from prism_cp.pipeline import get_schedule
from tests.random_instances import random_instance, random_search_space

MOST_LAYOUTS = 3_000


def wide_instance(seed: int) -> Instance:
    """A random instance whose search space is larger than what can be solved by enumeration."""
    rng = random.Random(seed)
    base = random_instance(rng)
    while True:
        update = random_search_space(rng, base.cluster.num_devices)
        for name in ("cp", *rng.sample(sorted(update), 4)):
            update[name] = None if name not in ("tp_within_domain", "allow_empty_middle_stages") else update[name]
        if rng.random() < 0.4:
            update |= {"schedule": ("1f1b", "interleaved", "zb-h1", "dualpipe"), "vpp": (1, 2)}
        layout = base.layout.model_copy(update=update)
        job = base.job.model_copy(update={"gbs": rng.choice((2, 4, 6, 12)), "seq_len": rng.choice((6, 12, 4096))})
        instance = base.model_copy(update={"layout": layout, "job": job})
        try:
            if AdmissibleLayouts(instance).num_layouts <= MOST_LAYOUTS:
                return instance
        except InstanceError:
            continue


def products(instance: Instance) -> Iterator[Layout]:
    """Every combination of field values whose sizes multiply to the cluster and the batch."""
    devices, gbs = instance.cluster.num_devices, instance.job.gbs
    sizes = divisors(devices)
    for tp, cp, dp, pp in itertools.product(sizes, repeat=4):
        if tp * cp * dp * pp != devices:
            continue
        for mbs in divisors(gbs):
            if gbs % (mbs * dp):
                continue
            allowed = instance.layout.vpp or range(1, DEFAULT_MOST_VPP + 1)
            names = itertools.product(SCHEDULES, allowed)
            running = [each for each in names if runs(instance, each[0], pp, each[1], gbs // (mbs * dp))]
            for sp, comm, ep, etp, zero, (schedule, vpp) in itertools.product(
                (False, True), CP_COMM, sizes, sizes, range(4), running
            ):
                yield Layout(tp, sp, cp, comm, ep, etp, dp, pp, vpp, mbs, zero, schedule, gbs // (mbs * dp))


def runs(instance: Instance, name: str, pp: int, vpp: int, num_microbatches: int) -> bool:
    """Whether a schedule is searched and runs with these sizes, every middle piece having a layer."""
    schedule, space = get_schedule(name), instance.layout
    if name not in (space.schedule or SCHEDULES) or schedule.why_not(pp, vpp, num_microbatches) is not None:
        return False
    pieces = pp * vpp if name in ("interleaved", "zb-v", "dualpipev") else pp
    return space.allow_empty_middle_stages or pieces <= len(instance.model.chain) + 2


def is_legal(instance: Instance, layout: Layout) -> bool:
    """The rules of the module docstring, one condition after the other."""
    space, job, model = instance.layout, instance.job, instance.model
    names = set(model.chain) - {"mtp"} | ({model.mtp_kind} if model.num_mtp_layers else set())
    kinds = [kind for kind in model.kinds if kind.name in names]
    mixtures = [k.feed_forward for k in kinds if k.feed_forward is not None and k.feed_forward.type == "moe"]
    domain = instance.cluster.links[0].domain_size
    tokens = job.seq_len / layout.cp
    listed = all(
        getattr(space, name) is None or getattr(layout, name) in getattr(space, name)
        for name in ("tp", "sp", "cp", "cp_comm", "ep", "etp", "dp", "pp", "vpp", "mbs", "zero")
    )
    first = {
        name: next(v for v in values if getattr(space, name) is None or v in getattr(space, name))
        for name, values in (("sp", (False, True)), ("cp_comm", CP_COMM), ("zero", range(4)))
    }
    one_name = (
        (layout.tp > 1 or layout.sp == first["sp"])
        and (layout.cp > 1 or layout.cp_comm == first["cp_comm"])
        and (layout.dp * layout.cp > 1 or layout.zero == first["zero"])
    )
    sizes = (
        (not space.tp_within_domain or max(layout.tp, layout.etp) <= domain)
        and (layout.cp == 1 or job.seq_len % (2 * layout.cp) == 0)
        and (not layout.sp or layout.tp == 1 or tokens % layout.tp == 0)
        and (layout.tp * layout.cp * layout.dp) % (layout.ep * layout.etp) == 0
        and (bool(mixtures) or layout.ep == layout.etp == 1)
        and all(m.num_experts % layout.ep == 0 and m.intermediate_size % layout.etp == 0 for m in mixtures)
    )
    return listed and one_name and sizes and all(kind_allows(kind, layout) for kind in kinds)


def kind_allows(kind: object, layout: Layout) -> bool:
    attention, feed_forward = kind.attention, kind.feed_forward  # type: ignore[attr-defined]
    tp, split = layout.tp, []
    if attention is not None:
        if attention.type in ("self_attention", "latent_attention"):
            heads = attention.num_attention_heads
            split.append(heads)
            if layout.cp > 1 and layout.cp_comm == "a2a" and heads % (tp * layout.cp):
                return False
        elif attention.type == "gated_delta_net":
            split += [attention.num_key_heads, attention.num_value_heads]
        else:
            split += [attention.num_heads, attention.num_groups]
        if attention.type in ("gated_delta_net", "mamba2") and layout.cp > 1:
            return False
        if attention.type == "self_attention":
            kv = attention.num_key_value_heads
            if max(kv, tp) % min(kv, tp):
                return False
    if feed_forward is not None:
        moe = feed_forward.type == "moe"
        split.append(feed_forward.shared_intermediate_size if moe else feed_forward.intermediate_size)
    return all(number % tp == 0 for number in split)


@pytest.mark.parametrize("seed", range(25))
def test_enumeration_equals_plain_product(seed: int) -> None:
    instance = wide_instance(seed)
    layouts = all_layouts(instance)
    assert len(set(layouts)) == len(layouts) == AdmissibleLayouts(instance).num_layouts
    assert set(layouts) == {layout for layout in products(instance) if is_legal(instance, layout)}


def neighbours(layout: Layout, instance: Instance) -> Iterator[Layout]:
    """Layouts that differ in one field."""
    sizes = [*divisors(instance.cluster.num_devices), 5]
    values: dict[str, tuple[object, ...]] = {
        "sp": (False, True),
        "cp_comm": (*CP_COMM, "ring"),
        "zero": tuple(range(4)),
        "schedule": SCHEDULES,
        "vpp": (1, 2),
        "mbs": (*divisors(instance.job.gbs), 5),
        "num_microbatches": (layout.num_microbatches + 1,),
    }
    for field in fields(Layout):
        for value in values.get(field.name, tuple(sizes)):
            yield replace(layout, **{field.name: value})


@pytest.mark.parametrize("seed", range(25))
def test_checker_and_enumeration_agree_on_every_neighbour(seed: int) -> None:
    instance = wide_instance(seed)
    layouts = all_layouts(instance)
    legal = set(layouts)
    both = {True: 0, False: 0}
    for layout in random.Random(seed).sample(layouts, min(12, len(layouts))):
        assert layout_faults(instance, layout) == []
        for other in neighbours(layout, instance):
            accepted = not layout_faults(instance, other)
            both[accepted] += 1
            assert accepted == (other in legal), (other, layout_faults(instance, other))
    assert both[True]
    assert both[False]


def test_an_empty_space_names_the_requirement() -> None:
    instance = wide_instance(0)
    space = instance.layout.model_copy(update={"tp": (5,)})
    with pytest.raises(InstanceError, match="no tp of"):
        AdmissibleLayouts(instance.model_copy(update={"layout": space}))
