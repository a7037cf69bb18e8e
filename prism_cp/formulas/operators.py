"""Operators: the time of one kernel (matrix product, fused attention, streaming) as one formula each."""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, Max, Min, Rational, Symbol, ceiling, sqrt

from prism_cp.errors import InstanceError
from prism_cp.formulas.collectives import rational
from prism_cp.formulas.program import Template
from prism_cp.inputs.cluster import Device
from prism_cp.inputs.instance import Instance

_TILE_ROWS, _TILE_COLUMNS = 128, 256
_ATTENTION_BACKWARD_SHARE = Rational(4, 5)  # efficiency of the fused backward over the forward's
_ATTENTION_RAMP = 512  # tokens at which fused attention reaches half of its efficiency
_LOW_PRECISION_GROUPED_GAIN = Rational(6, 5)
CAST_BYTES = 4  # fp8: read two bytes, write two (row-wise and column-wise copies) of every cast element


def _symbols(names: str) -> tuple[Symbol, ...]:
    return tuple(Symbol(name) for name in names.split())


def gemm_template(name: str, device: Device, peak_flops: Expr, efficiency: Expr, ramp: int) -> Template:
    """Time of `groups` equal matrix products m x k x n launched as one kernel, moving `bytes`.

    Roofline of the tensor-core rate and the HBM rate. The achieved rate falls with what tiles of 128 x 256 leave empty,
    with the square root of the occupancy of the last wave of tiles over the cores, and with a ramp in k. Fitted on
    SimuMax's measured GEMM efficiency tables (MooreThreads/SimuMax ``configs/system``) and published step times.
    """
    m, k, n, groups, bytes_ = arguments = _symbols("m k n groups bytes")
    rows, columns = ceiling(m / _TILE_ROWS), ceiling(n / _TILE_COLUMNS)
    waves = groups * rows * columns / device.num_cores
    padded = 2 * groups * rows * _TILE_ROWS * columns * _TILE_COLUMNS * (k + ramp)
    compute = padded / (peak_flops * efficiency) * sqrt(ceiling(waves) / waves)
    return Template(name, arguments, (kernel_time(device, compute, bytes_),))


def attention_template(name: str, device: Device, peak_flops: Expr, head_dims: int, backward: bool) -> Template:
    """Time of one fused attention kernel of `flops` over blocks of `block` tokens, moving `bytes`.

    `head_dims` is the sum of the query-key and value head dimensions: below 256 the kernel slows with its square root.
    Backward runs at four fifths of the forward's rate. Fitted as `gemm_template`.
    """
    flops, block, bytes_ = arguments = _symbols("flops block bytes")
    rate = peak_flops * rational(device.attention_efficiency) * sqrt(Min(1, Rational(head_dims, 256)))
    if backward:
        rate *= _ATTENTION_BACKWARD_SHARE
    compute = flops * (block + _ATTENTION_RAMP) / (block * rate)
    return Template(name, arguments, (kernel_time(device, compute, bytes_),))


def kernel_time(device: Device, compute_s: Expr, bytes_: Expr) -> Expr:
    """Roofline plus the latency of one kernel."""
    return Max(compute_s, bytes_ / hbm_rate(device), evaluate=False) + rational(device.kernel_latency_s)


def hbm_rate(device: Device) -> Expr:
    """Achieved bytes per second of a streaming kernel."""
    return rational(device.hbm_bytes_per_s) * rational(device.hbm_efficiency)


def pointwise_s(device: Device, bytes_: Expr, *, gather: bool = False) -> Expr:
    """Time of a kernel that only moves `bytes_`; permutations of tokens achieve less of the HBM rate."""
    rate = hbm_rate(device)
    if gather:
        rate = rational(device.hbm_bytes_per_s) * rational(device.gather_efficiency)
    return bytes_ / rate + rational(device.kernel_latency_s)


@dataclass(frozen=True)
class GemmTemplates:
    """The templates of one instance: plain matrices stay in 16 bit, `quantized` ones follow the job's precision."""

    plain: Template
    quantized: Template
    grouped: Template
    peak_flops: Rational  # 16 bit
    input_bytes: int  # of one element of a quantized matrix


def gemm_templates(instance: Instance) -> GemmTemplates:
    """Templates for the instance's device and precision.

    Raises
    ------
    InstanceError
        The device file has no rate or no efficiency for the job's precision.
    """
    device, precision = instance.cluster.device, instance.job.precision
    half = "fp16" if precision == "fp16" and "fp16" in device.peak_flops else "bf16"
    if half not in device.peak_flops:
        raise InstanceError("cluster.device.peak_flops", f"{device.name} has no rate for {half}", "an entry bf16")
    peak = rational(device.peak_flops[half])
    efficiency = rational(device.gemm_efficiency)
    grouped = efficiency * rational(device.grouped_gemm_efficiency)
    plain = gemm_template("gemm", device, peak, efficiency, 128)
    if precision != "fp8":
        return GemmTemplates(plain, plain, gemm_template("grouped_gemm", device, peak, grouped, 128), peak, 2)
    if "fp8" not in device.peak_flops or device.fp8_gemm_efficiency is None:
        raise InstanceError("job.precision", f"fp8, but {device.name} has no fp8 rate or efficiency", "bf16, fp16")
    low_peak, low = rational(device.peak_flops["fp8"]), rational(device.fp8_gemm_efficiency)
    low_grouped = Min(1, low * _LOW_PRECISION_GROUPED_GAIN)
    return GemmTemplates(
        plain,
        gemm_template("fp8_gemm", device, low_peak, low, 256),
        gemm_template("fp8_grouped_gemm", device, low_peak, low_grouped, 256),
        peak,
        1,
    )
