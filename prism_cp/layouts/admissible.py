"""Every admissible layout of an instance, as columns of integers.

A *cell* is a layout without its ZeRO stage, schedule and virtual pipeline: those three do not change what one layer
computes, so bounds are taken per cell first and only promising cells are expanded.

What is admissible
------------------
* tp · cp · dp · pp = number of devices.
* tp divides the attention heads, the feed-forward widths and, with sequence parallelism, seq_len / cp. Key/value heads
  may be fewer than tp (they are then replicated) but one must divide the other. tp (and etp) stay inside the innermost
  link domain unless the search space says otherwise.
* 2 · cp divides seq_len (causal load balancing); all-to-all context parallelism needs cp to divide the heads of a rank;
  linear-attention and state-space layers run with cp = 1.
* ep divides the experts, etp their width, ep · etp divides tp · cp · dp.
* mbs · dp divides gbs.
* A pipeline has no more pieces than the chain can fill (first and last may hold only their end).
* Choices without effect are listed once: sp with tp = 1, cp_comm with cp = 1, ZeRO where nothing is replicated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from prism_cp.errors import InstanceError
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import CP_COMM, DEFAULT_MOST_VPP, SCHEDULES, Layout
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

CELL_FIELDS = ("tp", "sp", "cp", "cp_comm", "ep", "etp", "dp", "pp", "mbs", "num_microbatches")
Columns = dict[str, np.ndarray]


def divisors(n: int) -> list[int]:
    """All positive divisors, ascending."""
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return small + [n // d for d in reversed(small) if d * d != n]


def distinct_rows(columns: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Index of the first of each distinct row, and for every row which distinct one it is.

    Columns of small non-negative integers; rows are told apart by one integer each, which sorts fast.
    """
    keys = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        values, codes = np.unique(column, return_inverse=True)
        keys = keys * len(values) + codes
        if len(values) > 1:  # renumber, so that keys cannot overflow
            keys = np.unique(keys, return_inverse=True)[1]
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    return first, inverse


@dataclass(frozen=True)
class Variant:
    """What a cell is expanded by."""

    schedule: str
    vpp: int
    zero: int


class AdmissibleLayouts:
    """The admissible layouts of one instance.

    Parameters
    ----------
    instance : Instance

    Raises
    ------
    InstanceError
        No layout is admissible; the message says which requirement leaves none.
    """

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.space = instance.layout
        self.kinds = used_kinds(instance)
        self.chain_length = len(instance.model.chain)
        if not len(self.cells["tp"]):
            raise InstanceError("layout", _why_empty(self), "pins that some layout satisfies", instance.name)

    # -- cells ---------------------------------------------------------------------------------------------------------

    @cached_property
    def cells(self) -> Columns:
        """One entry per cell in every column of `CELL_FIELDS`; sp is 0/1, cp_comm an index into `CP_COMM`."""
        job = self.instance.job
        parts: list[list[np.ndarray]] = []
        for tp in self.tp_values():
            for cp in self.cp_values(tp):
                for pp in self.pp_values(tp * cp):
                    dp = self.instance.cluster.num_devices // (tp * cp * pp)
                    if not _allowed(self.space.dp, dp) or job.gbs % dp:
                        continue
                    pieces = [
                        np.array(self.sp_values(tp, cp)),
                        np.array(self.cp_comm_values(tp, cp)),
                        np.array(self.expert_values(tp * cp * dp)).reshape(-1, 2),
                        np.array([b for b in divisors(job.gbs // dp) if _allowed(self.space.mbs, b)]),
                    ]
                    if all(len(piece) for piece in pieces):
                        parts.append(_cell_columns(tp, cp, pp, dp, job.gbs, pieces))
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else []
        if not columns:
            return {field: np.zeros(0, dtype=np.int64) for field in CELL_FIELDS}
        cells = dict(zip(CELL_FIELDS, columns, strict=True))
        keep = self._variant_counts(cells) > 0
        return {name: column[keep] for name, column in cells.items()}

    def tp_values(self) -> list[int]:
        """Tensor-parallel sizes that every layer kind allows."""
        domain = self.instance.cluster.links[0].domain_size
        return [
            tp
            for tp in divisors(self.instance.cluster.num_devices)
            if _allowed(self.space.tp, tp)
            and not (self.space.tp_within_domain and tp > domain)
            and all(tp_divides(kind, tp) for kind in self.kinds)
        ]

    def cp_values(self, tp: int) -> list[int]:
        """Context-parallel sizes."""
        seq_len = self.instance.job.seq_len
        softmax = all(not isinstance(kind.attention, GatedDeltaNet | Mamba2) for kind in self.kinds)
        return [
            cp
            for cp in divisors(self.instance.cluster.num_devices // tp)
            if _allowed(self.space.cp, cp) and (cp == 1 or (softmax and seq_len % (2 * cp) == 0))
        ]

    def pp_values(self, inner: int) -> list[int]:
        """Pipeline sizes, given tp · cp."""
        return [
            pp
            for pp in divisors(self.instance.cluster.num_devices // inner)
            if _allowed(self.space.pp, pp) and self._fits_chain(pp)
        ]

    def sp_values(self, tp: int, cp: int) -> list[int]:
        """0/1; with tp = 1 both mean the same and the first allowed one stands for them."""
        allowed = [int(sp) for sp in (False, True) if _allowed(self.space.sp, sp)]
        if tp == 1:
            return allowed[:1]
        tokens = self.instance.job.seq_len // cp
        return [sp for sp in allowed if not sp or tokens % tp == 0]

    def cp_comm_values(self, tp: int, cp: int) -> list[int]:
        """Indices into `CP_COMM`."""
        allowed = [index for index, name in enumerate(CP_COMM) if _allowed(self.space.cp_comm, name)]
        if cp == 1:
            return allowed[:1]
        a2a = all(heads(kind) // tp % cp == 0 for kind in self.kinds if kind.attention is not None)
        return [index for index in allowed if CP_COMM[index] != "a2a" or a2a]

    def expert_values(self, ranks: int) -> list[tuple[int, int]]:
        """(ep, etp) pairs, given tp · cp · dp."""
        experts = [kind.feed_forward for kind in self.kinds if isinstance(kind.feed_forward, MixtureOfExperts)]
        domain = self.instance.cluster.links[0].domain_size
        pairs = []
        for ep in divisors(ranks) if experts else [1]:
            if not _allowed(self.space.ep, ep) or any(moe.num_experts % ep for moe in experts):
                continue
            for etp in divisors(ranks // ep) if experts else [1]:
                if not _allowed(self.space.etp, etp) or any(moe.intermediate_size % etp for moe in experts):
                    continue
                if self.space.tp_within_domain and etp > domain:
                    continue
                pairs.append((ep, etp))
        return pairs

    def _fits_chain(self, pieces: int) -> bool:
        return pieces == 1 or self.space.allow_empty_middle_stages or pieces - 2 <= self.chain_length

    # -- variants ------------------------------------------------------------------------------------------------------

    def schedule_choices(self, pp: int, num_microbatches: int) -> list[tuple[str, int]]:
        """(schedule, vpp) pairs that pp and the number of micro-batches allow."""
        pairs = []
        for name in self.space.schedules:
            schedule = get_schedule(pipeline_schedule(self.instance, name))
            for vpp in self.space.vpp or range(1, DEFAULT_MOST_VPP + 1):
                if schedule.why_not(pp, vpp, num_microbatches) is None and self._fits_chain(
                    schedule.num_pieces(pp, vpp)
                ):
                    pairs.append((name, vpp))
        return pairs

    def zero_values(self, replicated: bool) -> list[int]:
        """ZeRO stages; where nothing is replicated all mean the same and the first allowed one stands for them."""
        allowed = [zero for zero in range(4) if _allowed(self.space.zero, zero)]
        return allowed if replicated else allowed[:1]

    def variants(self, cell: dict[str, int]) -> list[Variant]:
        """All expansions of one cell."""
        replicated = cell["dp"] * cell["cp"] > 1
        return [
            Variant(name, vpp, zero)
            for name, vpp in self.schedule_choices(cell["pp"], cell["num_microbatches"])
            for zero in self.zero_values(replicated)
        ]

    def _variant_counts(self, cells: Columns) -> np.ndarray:
        """Number of layouts in every cell."""
        first, inverse = distinct_rows([cells["pp"], cells["num_microbatches"]])
        pairs = zip(cells["pp"][first], cells["num_microbatches"][first], strict=True)
        counts = np.array([len(self.schedule_choices(int(pp), int(m))) for pp, m in pairs], dtype=np.int64)
        zeros = np.where(cells["dp"] * cells["cp"] > 1, len(self.zero_values(True)), len(self.zero_values(False)))
        return np.asarray(counts[inverse] * zeros)

    @cached_property
    def num_layouts(self) -> int:
        """Admissible layouts in all."""
        return self.num_layouts_of(self.cells)

    def num_layouts_of(self, cells: Columns) -> int:
        """Admissible layouts of some cells."""
        return int(self._variant_counts(cells).sum())

    def expand(self, indices: Sequence[int] | np.ndarray) -> tuple[Columns, np.ndarray]:
        """Layouts of some cells as columns (schedule an index into `SCHEDULES`), and the cell index of each."""
        rows: list[tuple[int, int, int, int]] = []
        cache: dict[tuple[int, int, bool], list[Variant]] = {}
        for index in indices:
            cell = {name: int(column[index]) for name, column in self.cells.items()}
            key = (cell["pp"], cell["num_microbatches"], cell["dp"] * cell["cp"] > 1)
            if key not in cache:
                cache[key] = self.variants(cell)
            rows += [(int(index), SCHEDULES.index(v.schedule), v.vpp, v.zero) for v in cache[key]]
        table = np.array(rows, dtype=np.int64).reshape(-1, 4)
        cell_index = table[:, 0]
        columns = {name: column[cell_index] for name, column in self.cells.items()}
        columns |= {"schedule": table[:, 1], "vpp": table[:, 2], "zero": table[:, 3]}
        return columns, cell_index


def layout_at(columns: Columns, index: int) -> Layout:
    """One row of expanded columns as a `Layout`."""
    row = {name: int(column[index]) for name, column in columns.items()}
    return Layout(
        tp=row["tp"],
        sp=bool(row["sp"]),
        cp=row["cp"],
        cp_comm=CP_COMM[row["cp_comm"]],
        ep=row["ep"],
        etp=row["etp"],
        dp=row["dp"],
        pp=row["pp"],
        vpp=row["vpp"],
        mbs=row["mbs"],
        zero=row["zero"],
        schedule=SCHEDULES[row["schedule"]],
        num_microbatches=row["num_microbatches"],
    )


def all_layouts(instance: Instance) -> list[Layout]:
    """Every admissible layout; for small instances."""
    admissible = AdmissibleLayouts(instance)
    columns, _ = admissible.expand(np.arange(len(admissible.cells["tp"])))
    return [layout_at(columns, index) for index in range(len(columns["tp"]))]


def _allowed(values: Sequence[object] | None, value: object) -> bool:
    return values is None or value in values


def used_kinds(instance: Instance) -> list[LayerKind]:
    """Every layer kind of the chain once."""
    model = instance.model
    names = [name for name in model.chain_kinds if name != "mtp"]
    if model.num_mtp_layers and model.mtp_kind is not None:
        names.append(model.mtp_kind)
    return [model.kind(name) for name in dict.fromkeys(names)]


def heads(kind: LayerKind) -> int:
    """Attention heads that context-parallel all-to-all distributes."""
    attention = kind.attention
    if isinstance(attention, SelfAttention | LatentAttention):
        return attention.num_attention_heads
    return 0


def tp_divides(kind: LayerKind, tp: int) -> bool:
    """Whether tensor parallelism can split the heads and widths of a layer evenly."""
    attention, feed_forward = kind.attention, kind.feed_forward
    if isinstance(attention, SelfAttention):
        kv = attention.num_key_value_heads
        if attention.num_attention_heads % tp or (kv % tp and tp % kv):
            return False
    elif isinstance(attention, LatentAttention):
        if attention.num_attention_heads % tp:
            return False
    elif isinstance(attention, GatedDeltaNet):
        if attention.num_key_heads % tp or attention.num_value_heads % tp:
            return False
    elif isinstance(attention, Mamba2) and (attention.num_heads % tp or attention.num_groups % tp):
        return False
    if isinstance(feed_forward, DenseFeedForward):
        return feed_forward.intermediate_size % tp == 0
    if isinstance(feed_forward, MixtureOfExperts):
        return feed_forward.shared_intermediate_size % tp == 0
    return True


def _cell_columns(tp: int, cp: int, pp: int, dp: int, gbs: int, pieces: list[np.ndarray]) -> list[np.ndarray]:
    """The columns of `CELL_FIELDS` for one (tp, cp, pp, dp): the product of the other choices."""
    sp, comm, expert, mbs = pieces
    grid = np.meshgrid(
        np.arange(len(sp)), np.arange(len(comm)), np.arange(len(expert)), np.arange(len(mbs)), indexing="ij"
    )
    s, c, e, b = (axis.reshape(-1) for axis in grid)
    ones = np.ones(len(s), dtype=np.int64)
    micro = mbs[b]
    return [
        ones * tp,
        sp[s],
        ones * cp,
        comm[c],
        expert[e, 0],
        expert[e, 1],
        ones * dp,
        ones * pp,
        micro,
        gbs // (micro * dp),
    ]


def _why_empty(admissible: AdmissibleLayouts) -> str:
    """The first requirement that leaves no layout, as a sentence."""
    cluster, job, space = admissible.instance.cluster, admissible.instance.job, admissible.space
    tps = admissible.tp_values()
    if not tps:
        return f"no tp of {list(space.tp or divisors(cluster.num_devices))} divides the heads and widths of the model"
    cps = sorted({cp for tp in tps for cp in admissible.cp_values(tp)})
    if not cps:
        return f"no cp of {list(space.cp or [])} divides {cluster.num_devices} devices and seq_len {job.seq_len}"
    inner = {tp * cp for tp in tps for cp in admissible.cp_values(tp)}
    pps = sorted({pp for size in inner for pp in admissible.pp_values(size)})
    if not pps:
        return (
            f"no pp of {list(space.pp or divisors(cluster.num_devices))} divides {cluster.num_devices} devices and "
            f"leaves every stage a layer ({admissible.chain_length} layers)"
        )
    dps = sorted({cluster.num_devices // (size * pp) for size in inner for pp in admissible.pp_values(size)})
    usable = [dp for dp in dps if job.gbs % dp == 0 and _allowed(space.dp, dp)]
    if not usable:
        return f"no dp of {dps} divides gbs {job.gbs}" + (f" and is among {list(space.dp)}" if space.dp else "")
    return "no combination of the allowed values of ep, etp, mbs, vpp, zero and schedule divides"
