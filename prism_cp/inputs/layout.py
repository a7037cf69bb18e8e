"""A layout: one value for every parallel field; and the set of values a search may use for each."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from prism_cp.inputs.base import FrozenModel

CP_COMM = ("p2p", "all_gather", "a2a")
SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe", "dualpipev")
OVERLAPPING = ("dualpipe", "dualpipev")  # run forwards and backwards in overlapped pairs
MIRRORED = ("dualpipe",)  # keep two copies of every piece, each for half of the micro-batches
# Schedules that run a forward beside another micro-batch's backward, so that one's communication can hide behind the
# other's computation; without pipelining every schedule can (Megatron-LM, combined_1f1b.py).
PAIRING = ("interleaved", *OVERLAPPING)
DEFAULT_MOST_VPP = 2  # searched when the instance names no vpp; larger values, which take longer, have to be named


@dataclass(frozen=True, slots=True)
class Layout:
    """One value for every field; derived sizes are properties. World = tp·cp·dp·pp."""

    tp: int
    sp: bool
    cp: int
    cp_comm: str
    ep: int
    etp: int
    dp: int
    pp: int
    vpp: int
    mbs: int
    zero: int
    schedule: str
    num_microbatches: int

    @property
    def edp(self) -> int:
        """Expert data-parallel size."""
        return self.tp * self.cp * self.dp // (self.ep * self.etp)

    def as_dict(self) -> dict[str, int | bool | str]:
        """Field names and values, in declaration order."""
        return asdict(self)


class LayoutSpace(FrozenModel):
    """Allowed values of every layout field; None means every value that divides. A single value pins the field."""

    tp: tuple[PositiveInt, ...] | None = None
    sp: tuple[bool, ...] | None = None
    cp: tuple[PositiveInt, ...] | None = None
    cp_comm: tuple[Literal["p2p", "all_gather", "a2a"], ...] | None = None
    ep: tuple[PositiveInt, ...] | None = None
    etp: tuple[PositiveInt, ...] | None = None
    dp: tuple[PositiveInt, ...] | None = None
    pp: tuple[PositiveInt, ...] | None = None
    vpp: tuple[PositiveInt, ...] | None = None  # None: what the schedule wants, up to `DEFAULT_MOST_VPP`
    mbs: tuple[PositiveInt, ...] | None = None
    zero: tuple[Annotated[int, Field(ge=0, le=3)], ...] | None = None
    schedule: tuple[str, ...] | None = None
    # Strategies a layer may use: "none", "full", or modules joined by "+", e.g. "layernorm+moe_act".
    # None: everything the profile's modules allow.
    recompute: tuple[str, ...] | None = None
    tp_within_domain: bool = True  # keep tp inside the innermost link domain
    # Every virtual stage holds at least one chain layer, except the first and the last, which hold an end anyway.
    allow_empty_middle_stages: bool = False

    @property
    def schedules(self) -> tuple[str, ...]:
        """The schedules that may be used, in the order of `SCHEDULES`."""
        return tuple(name for name in SCHEDULES if name in (self.schedule or SCHEDULES))

    def pinned_to(self, layout: Layout) -> LayoutSpace:
        """The space with every field of a layout pinned; recomputation and rules stay as they are."""
        fields = layout.as_dict()
        return self.model_copy(update={name: (fields[name],) for name in LayoutSpace.model_fields if name in fields})
