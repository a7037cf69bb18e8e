"""Robustness room: the constants of an instance that a plan depends on, each to be scaled by a factor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from prism_cp.inputs.instance import Instance
from prism_cp.inputs.model import LatentAttention, MixtureOfExperts, SelfAttention

GEMM_FIELDS = ("gemm_efficiency", "fp8_gemm_efficiency", "fp4_gemm_efficiency")
ATTENTION_FIELDS = {
    "native": "attention_efficiency",
    "flash2": "flash2_attention_efficiency",
    "triton": "triton_attention_efficiency",
}
MOST_MARGIN = 0.95  # a margin of all memory would leave nothing to plan for


@dataclass(frozen=True)
class Constant:
    """One number of an instance.

    Attributes
    ----------
    key : str
        Dotted path, as ``--set`` names it.
    text : str
        What it is, for people.
    value : float
        In `unit`.
    least, most : float
        Factors that leave a valid value: efficiencies stay below 1.
    scaled : callable
        The instance with the value multiplied by a factor.
    """

    key: str
    text: str
    value: float
    unit: str
    scaled: Callable[[Instance, float], Instance]
    least: float = 0.0
    most: float = float("inf")


def constants(instance: Instance) -> list[Constant]:
    """The constants that memory and time of this instance depend on."""
    return [*_device(instance), *_links(instance), *_profile(instance), *_job(instance)]


def _device(instance: Instance) -> Iterator[Constant]:
    device, kinds = instance.cluster.device, instance.model.kinds
    gemm = {name: value for name in GEMM_FIELDS if (value := getattr(device, name)) is not None}
    yield Constant(
        "cluster.device.gemm_efficiency",
        "efficiency of matrix products",
        device.gemm_efficiency,
        "",
        lambda one, factor: _with_device(one, {name: value * factor for name, value in gemm.items()}),
        most=1 / max(gemm.values()),
    )
    if any(isinstance(kind.feed_forward, MixtureOfExperts) for kind in kinds) and instance.job.precision != "fp8":
        yield _efficiency(instance, "grouped_gemm_efficiency", "efficiency of experts' products, over other products")
    if any(isinstance(kind.attention, SelfAttention | LatentAttention) for kind in kinds):
        field = ATTENTION_FIELDS[instance.profile.attention_kernel]
        yield _efficiency(instance, field, "efficiency of fused attention")
    yield Constant(
        "cluster.device.hbm_bytes_per_s",
        "memory bandwidth",
        device.hbm_bytes_per_s / 1e9,
        "GB/s",
        lambda one, factor: _with_device(one, {"hbm_bytes_per_s": device.hbm_bytes_per_s * factor}),
    )
    yield Constant(
        "cluster.device.kernel_latency_s",
        "latency of a kernel",
        device.kernel_latency_s * 1e6,
        "us",
        lambda one, factor: _with_device(one, {"kernel_latency_s": device.kernel_latency_s * factor}),
    )
    yield Constant(
        "cluster.device.memory_bytes",
        "memory of a device",
        device.memory_bytes / 2**30,
        "GiB",
        lambda one, factor: _with_device(one, {"memory_bytes": max(1, int(device.memory_bytes * factor))}),
    )


def _efficiency(instance: Instance, field: str, text: str) -> Constant:
    value = getattr(instance.cluster.device, field)
    return Constant(
        f"cluster.device.{field}",
        text,
        value,
        "",
        lambda one, factor: _with_device(one, {field: value * factor}),
        most=1 / value,
    )


def _links(instance: Instance) -> Iterator[Constant]:
    for index, link in enumerate(instance.cluster.links):
        where = f"{'inside' if index == 0 else 'between'} domains, {link.name}"
        for field, text, shown, unit in (
            ("bytes_per_s", "bandwidth", link.bytes_per_s / 1e9, "GB/s"),
            ("latency_s", "latency", link.latency_s * 1e6, "us"),
        ):
            yield Constant(f"cluster.links.{index}.{field}", f"{text} {where}", shown, unit, _scaled_link(index, field))


def _scaled_link(index: int, field: str) -> Callable[[Instance, float], Instance]:
    def scaled(instance: Instance, factor: float) -> Instance:
        links = list(instance.cluster.links)
        links[index] = links[index].model_copy(update={field: getattr(links[index], field) * factor})
        cluster = instance.cluster.model_copy(update={"links": tuple(links)})
        return instance.model_copy(update={"cluster": cluster})

    return scaled


def _profile(instance: Instance) -> Iterator[Constant]:
    profile = instance.profile

    def scaled(field: str) -> Callable[[Instance, float], Instance]:
        return lambda one, factor: one.model_copy(
            update={"profile": one.profile.model_copy(update={field: getattr(profile, field) * factor})}
        )

    if profile.memory_margin:
        most = MOST_MARGIN / profile.memory_margin
        text = "margin for errors of the memory model"
        yield Constant("profile.memory_margin", text, profile.memory_margin, "", scaled("memory_margin"), most=most)
    if profile.host_launch_floor_s and not profile.full_cuda_graphs:
        yield Constant(
            "profile.host_launch_floor_s",
            "launch time of a layer's kernels on the host",
            profile.host_launch_floor_s * 1e6,
            "us",
            scaled("host_launch_floor_s"),
        )


def _job(instance: Instance) -> Iterator[Constant]:
    mixtures = [kind.feed_forward for kind in instance.model.kinds if isinstance(kind.feed_forward, MixtureOfExperts)]
    load = instance.job.expert_load
    if mixtures and instance.job.capacity_factor is None and all(moe.expert_load is None for moe in mixtures):
        yield Constant(
            "job.expert_load",
            "load of the busiest experts over the mean",
            load,
            "",
            lambda one, factor: one.model_copy(
                update={"job": one.job.model_copy(update={"expert_load": load * factor})}
            ),
            least=1 / load,
        )


def _with_device(instance: Instance, changes: dict[str, float]) -> Instance:
    device = instance.cluster.device.model_copy(update=changes)
    return instance.model_copy(update={"cluster": instance.cluster.model_copy(update={"device": device})})
