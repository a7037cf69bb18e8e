"""Devices and the links between them."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from prism_cp.inputs.base import FrozenModel

Fraction01 = Annotated[float, Field(gt=0, le=1)]


class Device(FrozenModel):
    """One accelerator as its framework sees it. Rates are per second, sizes in bytes, efficiencies are fractions of the
    datasheet rate that well-shaped work achieves."""

    name: str
    vendor: Literal["nvidia", "amd", "ascend", "other"] = "other"
    memory_bytes: PositiveInt  # what the driver reports as usable
    hbm_bytes_per_s: PositiveFloat
    peak_flops: dict[str, PositiveFloat]  # dense FLOP/s by dtype: bf16, fp16, fp8, fp32 …
    num_cores: PositiveInt  # SMs or cube cores: tiles that run at once
    gemm_efficiency: Fraction01
    fp8_gemm_efficiency: Fraction01 | None = None
    fp4_gemm_efficiency: Fraction01 | None = None
    grouped_gemm_efficiency: Fraction01  # relative to gemm_efficiency
    attention_efficiency: Fraction01  # fused attention, forward
    flash2_attention_efficiency: Fraction01 | None = None  # the same of FlashAttention-2, where another is native
    triton_attention_efficiency: Fraction01 | None = None  # the same of Triton's kernel of 2023
    hbm_efficiency: Fraction01
    gather_efficiency: Fraction01 = 0.42  # HBM efficiency of token permutation
    kernel_latency_s: PositiveFloat = 6e-6
    host_slowdown: PositiveFloat = 1.0  # launch time of the host it comes with, over an x86 host's
    source: dict[str, str] = Field(default_factory=dict)  # one entry a value: where it comes from
    note: str = ""


class LinkLevel(FrozenModel):
    """One level of the network, innermost first."""

    name: str
    domain_size: PositiveInt  # devices that reach each other over this level
    bytes_per_s: PositiveFloat  # one direction, one device, datasheet
    efficiency: Fraction01 = 0.8
    latency_s: PositiveFloat
    topology: Literal["switch", "mesh"] = "switch"  # mesh: a group of g gets (g-1)/(domain_size-1) of bytes_per_s


class Cluster(FrozenModel):
    """`num_devices` equal devices; `links` from the innermost level to one that spans them all."""

    name: str
    device: Device
    num_devices: PositiveInt
    links: tuple[LinkLevel, ...]
    source: dict[str, str] = Field(default_factory=dict)
    note: str = ""
