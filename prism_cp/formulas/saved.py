"""Saved tensors: the unit that activation memory is counted in, and the numbers all activation formulas share.

Every formula counts the storages that the backward pass of fused kernels keeps (each storage once), as listed by the
``save_for_backward`` calls of Megatron-LM and Transformer Engine; Korthikanti et al. (arXiv 2205.05198) is the special
case of multi-head attention, GELU and dropout.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, Integer, Min, Rational

from prism_cp.formulas import symbols
from prism_cp.formulas.strategies import Strategy
from prism_cp.formulas.symbols import sequence_split, sp, tp
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.job import Job, Profile

ELEMENT_BYTES = 2  # bf16 and fp16
STATISTIC_BYTES = 4  # norm statistics are fp32
FP8_BYTES = Rational(33, 32)  # one byte, and one fp32 scale for every 128 elements (block scaling)

# 1 when tensor-parallel ranks exchange sequence shards, else 0.
sequence_parallel = sp * Min(1, tp - 1)


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One storage that a layer keeps from its forward to its backward pass.

    Attributes
    ----------
    bytes_ : sympy expression in layout symbols
        Per device and micro-batch.
    freed_by : frozenset of str
        Recomputation modules, any of which makes keeping it unnecessary.
    survives_full : bool
        Whether full recomputation of the layer keeps it.
    """

    name: str
    bytes_: Expr
    freed_by: frozenset[str] = frozenset()
    survives_full: bool = False

    def kept(self, strategy: Strategy) -> bool:
        """Whether the tensor outlives the forward pass under a strategy."""
        return self.survives_full if strategy.full else not self.freed_by & strategy.modules


def saved(name: str, bytes_: Expr, *freed_by: str, survives_full: bool = False) -> SavedTensor:
    """Shorthand for a `SavedTensor`."""
    return SavedTensor(name, bytes_, frozenset(freed_by), survives_full)


@dataclass(frozen=True, slots=True)
class Context:
    """What the activation formulas of all layers of an instance need besides the layer's own sizes."""

    hidden: Expr
    norm_statistics: int  # fp32 numbers per token that a norm keeps: 1 RMSNorm, 2 LayerNorm
    tokens: Expr  # per micro-batch and device, outside sequence-parallel regions
    seq_len: Expr
    fp8: bool
    dropout: bool
    attention_dropout: bool
    job: Job
    profile: Profile

    @property
    def split_tokens(self) -> Expr:
        """Tokens of the sequence-parallel region on one device."""
        return self.tokens / sequence_split

    @property
    def hidden_state(self) -> Expr:
        """Bytes of one hidden state in the sequence-parallel region."""
        return ELEMENT_BYTES * self.split_tokens * self.hidden

    def gemm_input(self, features: Expr) -> Expr:
        """Bytes of the saved input of a column-parallel linear layer.

        Megatron-LM keeps the sequence shard and gathers it again in the backward pass; fp8 keeps the gathered tensor
        (MooreThreads/SimuMax, core/transformer/dense_module.py).
        """
        if self.fp8:
            return FP8_BYTES * self.tokens * features
        return ELEMENT_BYTES * self.split_tokens * features

    @property
    def product_bytes(self) -> Expr:
        """Bytes per element of the saved input of a row-parallel or grouped linear layer."""
        return FP8_BYTES if self.fp8 else Integer(ELEMENT_BYTES)

    @property
    def activation_input_bytes(self) -> int:
        """Bytes per element of what an activation function keeps (Megatron-LM ``activation_func_fp8_input_store``)."""
        return 1 if self.profile.fp8_activation_input else ELEMENT_BYTES

    def statistics(self, norms: int = 1) -> Expr:
        """Bytes of the statistics of some norms over the hidden states of one micro-batch."""
        return STATISTIC_BYTES * self.norm_statistics * norms * self.split_tokens

    def dropout_mask(self, name: str) -> list[SavedTensor]:
        """The one-byte mask of a dropout on the residual branch, if the job has dropout."""
        return [saved(name, self.split_tokens * self.hidden)] if self.dropout else []


def exact(value: float) -> Expr:
    """A float of an input file as the decimal number that was written."""
    return Rational(str(value))


def context(instance: Instance) -> Context:
    """The shared numbers of one instance."""
    job, model = instance.job, instance.model
    return Context(
        hidden=Integer(model.hidden_size),
        norm_statistics=2 if model.norm == "layernorm" else 1,
        tokens=Integer(job.seq_len) * symbols.mbs / symbols.cp,
        seq_len=Integer(job.seq_len),
        fp8=job.precision == "fp8" and not instance.profile.fp8_in_products_only,
        dropout=job.dropout,
        attention_dropout=job.dropout if job.attention_dropout is None else job.attention_dropout,
        job=job,
        profile=instance.profile,
    )
