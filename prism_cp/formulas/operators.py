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
_LOW_PRECISION_GROUPED_GAIN = Rational(135, 100)
# Bytes of one element's cast to 8 bit: two read, two written (row-wise and column-wise copies). Current scaling reads
# every element once more for its maximum; block scaling (MXFP8) writes a scale byte for every 32 elements and copy.
_CAST_BYTES = {"delayed": Rational(4), "current": Rational(6), "mxfp8": 4 + Rational(2, 32), "rowwise": Rational(6)}
_ROWWISE_SHARE = Rational(1, 2)  # of the 8-bit rate that products scaled by rows reach (pytorch/torchtitan, H100)
# To 4 bit: read once for the maximum and once for the cast, two half-byte copies with a scale byte for every 16.
_FP4_CAST_BYTES = 5 + Rational(2, 16)


def _symbols(names: str) -> tuple[Symbol, ...]:
    return tuple(Symbol(name) for name in names.split())


def gemm_template(name: str, device: Device, peak_flops: Expr, efficiency: Expr, ramp: int) -> Template:
    """Time of `groups` equal matrix products m x k x n launched as one kernel, moving `bytes`.

    Roofline of the tensor-core rate and the HBM rate. The achieved rate falls with what tiles of 128 x 256 leave empty,
    with the square root of the occupancy of the last wave of tiles over the cores, and with a ramp in k: the epilogue,
    which moves `written` bytes for every element of the result where the ramp is that of two bytes. Fitted on
    SimuMax's measured GEMM efficiency tables (MooreThreads/SimuMax ``configs/system``) and published step times.
    """
    m, k, n, groups, written, bytes_ = arguments = _symbols("m k n groups written bytes")
    rows, columns = ceiling(m / _TILE_ROWS), ceiling(n / _TILE_COLUMNS)
    waves = groups * rows * columns / device.num_cores
    padded = 2 * groups * rows * _TILE_ROWS * columns * _TILE_COLUMNS * (k + ramp * written / 2)
    compute = padded / (peak_flops * efficiency) * sqrt(ceiling(waves) / waves)
    return Template(name, arguments, (kernel_time(device, compute, bytes_),))


def attention_rate(instance: Instance, peak_flops: Expr, head_dims: int) -> Expr:
    """FLOP/s of the forward of the profile's fused attention kernel over long sequences.

    `head_dims` is the sum of the query-key and value head dimensions: below 256 the vendor's kernel slows with its
    square root, the others do not.

    Raises
    ------
    InstanceError
        The device file does not state an efficiency for that kernel.
    """
    device, kernel = instance.cluster.device, instance.profile.attention_kernel
    if kernel == "native":
        return peak_flops * rational(device.attention_efficiency) * sqrt(Min(1, Rational(head_dims, 256)))
    stated = device.flash2_attention_efficiency if kernel == "flash2" else device.triton_attention_efficiency
    if stated is None:
        problem = f"{kernel}, but {device.name} has no efficiency for it"
        raise InstanceError("profile.attention_kernel", problem, "native")
    return peak_flops * rational(stated)


def attention_template(name: str, device: Device, rate: Expr, backward: bool) -> Template:
    """Time of one fused attention kernel of `flops` over blocks of `block` tokens, moving `bytes`.

    Backward runs at four fifths of the forward's `rate`. Fitted as `gemm_template`.
    """
    flops, block, bytes_ = arguments = _symbols("flops block bytes")
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
    input_bytes: Rational  # of one element of a quantized matrix
    cast_bytes: Rational  # moved to quantize one element of an input or of an output's gradient; 0 in 16 bit


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
    if precision not in ("fp8", "fp4"):
        in_16_bit = gemm_template("grouped_gemm", device, peak, grouped, 128)
        return GemmTemplates(plain, plain, in_16_bit, peak, Rational(2), Rational(0))
    stated = device.fp8_gemm_efficiency if precision == "fp8" else device.fp4_gemm_efficiency
    if precision not in device.peak_flops or stated is None:
        problem = f"{precision}, but {device.name} has no {precision} rate or efficiency"
        raise InstanceError("job.precision", problem, "bf16, fp16")
    low_peak, low = rational(device.peak_flops[precision]), rational(stated)
    if precision == "fp8" and instance.profile.fp8_scaling == "rowwise":
        low *= _ROWWISE_SHARE
    low_grouped = Min(1, low * _LOW_PRECISION_GROUPED_GAIN)
    return GemmTemplates(
        plain,
        gemm_template(f"{precision}_gemm", device, low_peak, low, 256),
        gemm_template(f"{precision}_grouped_gemm", device, low_peak, low_grouped, 128),
        peak,
        Rational(1) if precision == "fp8" else Rational(1, 2),
        _CAST_BYTES[instance.profile.fp8_scaling] if precision == "fp8" else _FP4_CAST_BYTES,
    )
