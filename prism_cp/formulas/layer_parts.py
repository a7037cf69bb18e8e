"""Parts: a layer as a list of groups of kernels that are recomputed together, each with its three times.

This module holds what every part is made of (matrix products, streaming kernels, tensor-parallel collectives);
`attention_time` and `feed_forward_time` say which of them a layer has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Expr, Integer, Max, Symbol

from prism_cp.formulas import symbols as s
from prism_cp.formulas.collectives import Group, process_groups
from prism_cp.formulas.flops import NO_MODULE, Linear, Modules
from prism_cp.formulas.operators import GemmTemplates, gemm_templates, pointwise_s
from prism_cp.formulas.program import Program, Template
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.model import Model

ZERO: Expr = Integer(0)
# Passes over its input of one norm in PyTorch without a compiler, forward and backward: layer norm is one kernel (two
# backward), RMSNorm is written as cast, square, mean, two products and a cast.
_EAGER_NORM_PASSES = {"layernorm": (2, 5), "rmsnorm": (8, 14)}
ELEMENT_BYTES = 2  # activations and the weights that kernels read


@dataclass(frozen=True)
class Times:
    """Forward, input-gradient and weight-gradient time of something, in seconds per micro-batch, over kernel times."""

    forward: Expr = ZERO
    input_grad: Expr = ZERO
    weight_grad: Expr = ZERO

    def __add__(self, other: Times) -> Times:
        return Times(
            self.forward + other.forward, self.input_grad + other.input_grad, self.weight_grad + other.weight_grad
        )


@dataclass(frozen=True)
class Part:
    """Kernels of a layer that are recomputed together: by any of `modules`, and by full recomputation; `final` ones,
    whose results only the next layer reads, not where a framework stops recomputing early."""

    times: Times
    modules: Modules = NO_MODULE
    final: bool = False


@dataclass(frozen=True)
class LinearTimes:
    """Kernel times of one matrix: product, its two gradients, and the casts around them (0 without fp8)."""

    forward: Expr
    input_grad: Expr
    weight_grad: Expr
    cast: Expr
    gradient_cast: Expr

    @property
    def times(self) -> Times:
        """All of it."""
        return Times(self.forward + self.cast, self.input_grad + self.gradient_cast, self.weight_grad)


class PartBuilder:
    """Makes kernel times for one instance, registering their arguments in its `Program`."""

    def __init__(self, instance: Instance, program: Program) -> None:
        self.instance, self.program = instance, program
        self.model: Model = instance.model
        self.device = instance.cluster.device
        self.profile = instance.profile
        self.seq_len = instance.job.seq_len
        self.templates: GemmTemplates = gemm_templates(instance)
        self.groups: dict[str, Group] = process_groups(instance.cluster, program)
        self.tokens: Expr = self.seq_len * s.mbs / s.cp  # of a micro-batch on a rank, where tensor parallelism splits
        self.split_tokens: Expr = self.tokens / s.sequence_split  # where only sequence parallelism splits
        self.hidden_bytes: Expr = ELEMENT_BYTES * self.model.hidden_size * self.tokens

    def pointwise(self, bytes_: Expr, *, gather: bool = False) -> Expr:
        """Streaming kernel over HBM."""
        return pointwise_s(self.device, bytes_, gather=gather)

    def product(
        self,
        m: Expr,
        k: Expr,
        n: Expr,
        groups: Expr | int = 1,
        *,
        template: Template | None = None,
        plain: bool = False,
    ) -> LinearTimes:
        """A matrix product of tokens (m x k) with a weight (k x n), `groups` times in one kernel.

        The input gradient is m x n x k, the weight gradient n x m x k and accumulates into the gradient buffer (read
        and write). A product and both its gradients cost the same FLOPs (Megatron-LM ``training.py``).
        """
        quantized = not plain and self.templates.cast_bytes > 0
        template = template or (self.templates.plain if plain else self.templates.quantized)
        width = self.templates.input_bytes if quantized else ELEMENT_BYTES
        cast = self.templates.cast_bytes
        separate: Expr = Integer(0)
        if self.profile.accumulation_bytes:
            accumulate = ELEMENT_BYTES  # the product writes the gradient, another kernel adds it to the buffer
            separate = self.pointwise(self.profile.accumulation_bytes * groups * k * n)
        else:
            accumulate = 2 * self.profile.gradient_bytes

        def call(rows: Expr, depth: Expr, columns: Expr, written: int, bytes_: Expr) -> Symbol:
            return self.program.call(template, rows, depth, columns, groups, written, bytes_)

        return LinearTimes(
            call(m, k, n, ELEMENT_BYTES, groups * (width * (m * k + k * n) + ELEMENT_BYTES * m * n)),
            call(m, n, k, ELEMENT_BYTES, groups * (width * (m * n + k * n) + ELEMENT_BYTES * m * k)),
            call(n, m, k, accumulate, groups * (width * (m * k + m * n) + accumulate * k * n)) + separate,
            self.pointwise(cast * groups * m * k) if quantized else Integer(0),
            self.pointwise(cast * groups * m * n) if quantized else Integer(0),
        )

    def linear(self, linear: Linear, *, plain: bool = False) -> LinearTimes:
        """A weight matrix that is no routed expert."""
        k, n = Integer(linear.in_features), Integer(linear.out_features)
        rows = self.tokens
        if linear.parallel == "column":
            n /= s.tp
        elif linear.parallel == "row":
            k /= s.tp
        else:
            assert linear.parallel == "replicated", linear
            rows = self.split_tokens
        times = self.product(rows, k, n, plain=plain)
        if not self.instance.job.frozen_weights or plain:
            return times
        # A low-rank adapter beside the matrix: reads the input, writes an output that another kernel adds (LoRA,
        # arXiv 2106.09685, as in Megatron-Bridge); backward its two products read the output's gradient, and the
        # input's gradient is added up.
        return replace(
            times,
            cast=times.cast + self.pointwise(ELEMENT_BYTES * rows * (k + 4 * n)),
            gradient_cast=times.gradient_cast + self.pointwise(ELEMENT_BYTES * rows * (4 * k + 2 * n)),
        )

    def norms(self, count: int, width: int | None = None) -> Times:
        """`count` norms of the residual stream: forward reads and writes once; backward moves twice that."""
        bytes_ = ELEMENT_BYTES * (width or self.model.hidden_size) * self.split_tokens
        forward, backward = 2, 4
        if not self.profile.fused_pointwise:
            forward, backward = _EAGER_NORM_PASSES[self.model.norm]
        return Times(count * self.pointwise(forward * bytes_), count * self.pointwise(backward * bytes_))

    def eager_gradients(self, biases: Expr, joined: Expr = ZERO) -> Times:
        """What an eager framework adds to a backward: reads `biases` elements a token for gradients of biases, and
        copies `joined` elements a token into one tensor; nothing under a fusing framework."""
        if self.profile.fused_pointwise:
            return Times()
        return Times(input_grad=self.pointwise(ELEMENT_BYTES * self.tokens * (biases + 2 * joined)))

    def residual(self) -> Times:
        """Residual addition (two reads, one write), with a one-byte mask under dropout; its gradient's addition."""
        width = ELEMENT_BYTES * self.model.hidden_size * self.split_tokens
        mask = width / 2 if self.instance.job.dropout else Integer(0)
        return Times(self.pointwise(3 * width + mask), self.pointwise(3 * width + mask))

    def activation(self, rows: Expr, width: Expr, gated: bool) -> Times:
        """Activation function of `width` outputs a row: SwiGLU reads two and writes one, GELU reads and writes one."""
        bytes_ = ELEMENT_BYTES * rows * width
        passes = (3, 5) if gated else (2, 3)
        if gated and not self.profile.fused_pointwise:
            passes = (5, 8)  # the activation and the product with the gate are two kernels
        return Times(self.pointwise(passes[0] * bytes_), self.pointwise(passes[1] * bytes_))

    def tensor_parallel_exchange(
        self, column: LinearTimes, row: LinearTimes, gathered_bytes: Expr | None = None
    ) -> Times:
        """What tensor parallelism communicates around a column-parallel and a row-parallel matrix.

        Without sequence parallelism one all-reduce a direction; with it an all-gather and a reduce-scatter of the same
        bytes (Korthikanti et al., arXiv 2205.05198); the second gather of the backward hides behind a product. Where
        the framework splits products and collectives into tp chunks, what stays exposed of t_comm beside t_product is
        ``max(t_comm + t_product/tp, t_product + t_comm/tp) - t_product`` (sequence parallelism only).

        `gathered_bytes`: input of the column-parallel matrix over all its tokens; None: the hidden states.
        """
        group, reduced = self.groups["tp"], self.hidden_bytes
        gathered = reduced if gathered_bytes is None else gathered_bytes
        gather, scatter = group.ring_s(gathered), group.ring_s(reduced)
        forward, backward = group.ring_s(reduced, passes=2), group.ring_s(gathered, passes=2)
        if not self.profile.tp_overlap:
            split = gather + scatter
            return Times(s.sp * split + (1 - s.sp) * forward, s.sp * split + (1 - s.sp) * backward)

        def exposed(collective: Expr, product: Expr) -> Expr:
            return Max(collective / s.tp, collective - product * (1 - 1 / s.tp), evaluate=False)

        split_forward = exposed(gather, column.forward) + exposed(scatter, row.forward)
        split_backward = exposed(scatter, row.input_grad) + exposed(gather, column.input_grad)
        return Times(s.sp * split_forward + (1 - s.sp) * forward, s.sp * split_backward + (1 - s.sp) * backward)
