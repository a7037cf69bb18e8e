"""Search room, fronts: which instances of a family to solve next, and what their answers together prove.

A family is one instance with one value varied: memory per device, number of devices, or sequences per step. Memory is
special, because less of it never makes a plan faster: an optimal plan is optimal for every cap down to what it needs,
below an infeasible cap everything is infeasible, and a plan for a smaller cap is a plan for every larger one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, NamedTuple

from prism_cp.check import plan_assignment
from prism_cp.errors import InstanceError
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.integer_tables import build_stage_problem
from prism_cp.plan import Plan
from prism_cp.stage_problem import Assignment

Axis = Literal["memory", "devices", "gbs"]
OVERRIDES: dict[Axis, str] = {
    "memory": "cluster.device.memory_bytes",
    "devices": "cluster.num_devices",
    "gbs": "job.gbs",
}
DOUBLINGS = 3  # of gbs, either way, unless values are given
FINEST_GAP = Fraction(1, 200)  # of the memory: narrower gaps are left alone unless every point is asked for
GIB = 2**30
Load = Callable[[Sequence[str]], Instance]
Known = tuple[Layout, Assignment]


@dataclass(frozen=True)
class FrontPoint:
    """One solved instance of the family.

    Attributes
    ----------
    value : int
        Bytes of memory per device, devices, or sequences per step.
    plan : Plan or None
        The answer, without further layouts; None when no layout is admissible at all.
    reason : str
        Why there is no plan, if so.
    wall_s : float
        Time it took to solve.
    known : (Layout, Assignment) or None
        The plan as the search takes it, when it was solved in this run.
    """

    value: int
    instance_digest: str
    plan: Plan | None
    reason: str
    wall_s: float
    known: Known | None = None

    @property
    def status(self) -> str:
        """As a plan's; no admissible layout is proved infeasible."""
        return "infeasible" if self.plan is None else self.plan.status

    @property
    def proved(self) -> bool:
        """Whether the answer is proved."""
        return self.plan is None or self.plan.proved

    @property
    def objective(self) -> int | None:
        """Step time in time units."""
        return None if self.plan is None else self.plan.objective

    @property
    def peak_units(self) -> int | None:
        """Memory of the fullest rank, in memory units."""
        if self.plan is None or not self.plan.ranks:
            return None
        # GiB are exact multiples of the unit in double precision.
        most = max(rank.memory_gib.total for rank in self.plan.ranks)
        return round(most * GIB / self.plan.memory_unit_bytes)


class Gap(NamedTuple):
    """Values of memory nothing is proved about, in memory units, both ends included."""

    low: int
    high: int


class Front:
    """The points of one family so far, and which to solve next.

    Parameters
    ----------
    load
        Gives the instance with some more overrides (``path=value``) applied.
    values : sequence of int, optional
        Solve exactly these; None: chosen by the axis.
    most_points : int or None
        How many to solve at most; None (memory only): every point of the front.
    """

    def __init__(
        self, load: Load, axis: Axis, values: Sequence[int] | None = None, most_points: int | None = 12
    ) -> None:
        self.load, self.axis, self.most_points = load, axis, most_points
        self.base = load(())
        self.points: dict[int, FrontPoint] = {}
        self.skipped: list[str] = []
        self._share = self.base.profile.capacity_share
        self.values = sorted(set(values), reverse=True) if values is not None else None
        if self.values is None and axis != "memory":
            self.values = self._chosen_values()

    def override(self, value: int) -> str:
        """The ``--set`` that gives this member of the family."""
        return f"{OVERRIDES[self.axis]}={value}"

    def instance_at(self, value: int) -> Instance:
        """This member of the family; InstanceError when the value contradicts the rest."""
        return self.load((self.override(value),))

    def add(self, point: FrontPoint) -> None:
        """Take a solved point."""
        self.points[point.value] = point

    # -- what to solve -------------------------------------------------------------------------------------------------

    def _chosen_values(self) -> list[int]:
        """Values for devices and gbs, best known first; those the instance contradicts are skipped and noted."""
        if self.axis == "devices":
            total, node = self.base.cluster.num_devices, self.base.cluster.links[0].domain_size
            divisors = [n for n in range(total, 0, -1) if total % n == 0 and (n % node == 0 or node % n == 0)]
            candidates = divisors[: self.most_points]
        else:
            gbs = self.base.job.gbs
            powers = sorted(range(-DOUBLINGS, DOUBLINGS + 1), key=lambda power: (abs(power), power))
            scaled = [Fraction(gbs) * Fraction(2) ** power for power in powers]
            candidates = [int(value) for value in scaled if value.denominator == 1][: self.most_points]
        good = []
        for value in candidates:
            try:
                self.instance_at(value)
                good.append(value)
            except InstanceError as error:
                self.skipped.append(f"{self.override(value)}: {error}")
        return sorted(good, reverse=True)

    def next_value(self) -> int | None:
        """The value to solve next; None when nothing is left to ask."""
        if self.values is not None:
            return next((value for value in self.values if not self.decided(value)), None)
        if not self.points:
            return self.base.cluster.device.memory_bytes
        if self.most_points is not None and len(self.points) >= self.most_points:
            return None
        gaps = self.gaps(trust_all=True)
        if self.most_points is None:
            return self.bytes_for(self._below_known(gaps[0])) if gaps else None
        top = self.units_of(self.base.cluster.device.memory_bytes)
        widest = max(gaps, key=lambda gap: gap.high - gap.low, default=None)
        if widest is None or widest.high - widest.low < FINEST_GAP * top:
            return None
        return self.bytes_for((widest.low + widest.high) // 2)

    def _below_known(self, gap: Gap) -> int:
        """The cap of a gap to ask so that no step time is missed: its top, or lower after equally fast plans.

        Plans of equal step time may need ever so slightly less memory; the more of them were met, the larger the step.
        """
        above = [p for p in self.points.values() if p.objective is not None and self.units_of(p.value) > gap.high]
        slowest = max((point.objective or 0 for point in above), default=None)
        equal = sum(point.objective == slowest for point in above)
        return max((gap.low + gap.high) // 2, gap.high - ((1 << max(0, equal - 1)) - 1))

    def decided(self, value: int) -> bool:
        """Whether the answer for this value is known, or follows from others."""
        if value in self.points:
            return True
        if self.axis != "memory":
            return False
        units = self.units_of(value)
        return not any(gap.low <= units <= gap.high for gap in self.gaps(units))

    def known_for(self, value: int) -> list[Known]:
        """Plans that are valid for this value: for memory, the best one of a smaller cap."""
        if self.axis != "memory":
            return []
        smaller = [p for p in self.points.values() if p.value <= value and p.objective is not None]
        best = min(smaller, key=lambda point: point.objective or 0, default=None)
        if best is None or best.plan is None:
            return []
        return [best.known or self._known(best.plan)]

    @staticmethod
    def _known(plan: Plan) -> Known:
        assert plan.layout is not None
        layout = plan.layout.layout()
        return layout, plan_assignment(plan.virtual_stages, build_stage_problem(plan.instance, layout))

    # -- memory --------------------------------------------------------------------------------------------------------

    def units_of(self, memory_bytes: int) -> int:
        """Memory units that a plan may fill on a device of that size."""
        return math.floor(memory_bytes * self._share / self.base.memory_unit_bytes)

    def bytes_for(self, units: int) -> int:
        """The smallest device memory, in bytes, on which a plan may fill that many units."""
        return math.ceil(units * self.base.memory_unit_bytes / self._share)

    def needs_bytes(self, point: FrontPoint) -> int | None:
        """The smallest device memory the point's plan runs on."""
        return None if point.peak_units is None else self.bytes_for(point.peak_units)

    def gaps(self, top_units: int | None = None, *, trust_all: bool = False) -> list[Gap]:
        """Memory caps whose optimum is not known, highest first.

        Parameters
        ----------
        top_units
            Consider caps up to this many units; None: up to the instance's own and the largest solved one.
        trust_all
            Take unproved points for proved ones: for choosing what to solve, not for claims.
        """
        top = self.units_of(self.base.cluster.device.memory_bytes)
        high = max([top, top_units or 0, *(self.units_of(value) for value in self.points)])
        trusted = [point for point in self.points.values() if point.proved or trust_all]
        floor = max((self.units_of(point.value) for point in trusted if point.objective is None), default=0)
        found = []
        above: FrontPoint | None = None
        for point in sorted(trusted, key=lambda point: -point.value):
            if point.peak_units is None:
                continue
            units = self.units_of(point.value)
            # Between equally fast plans every cap has that step time.
            if units < high and (above is None or above.objective != point.objective):
                found.append(Gap(units + 1, high))
            high, above = min(high, point.peak_units - 1), point
        if floor < high:
            found.append(Gap(floor + 1, high))
        return found

    # -- the front -----------------------------------------------------------------------------------------------------

    def pareto(self) -> list[FrontPoint]:
        """Points that no other one beats in step time without being worse in the other direction."""
        feasible = [point for point in self.points.values() if point.objective is not None]

        def cost(point: FrontPoint) -> tuple[int, int]:
            other = {"memory": self.needs_bytes(point) or 0, "devices": point.value, "gbs": -point.value}[self.axis]
            return other, point.objective or 0

        costs = {point.value: cost(point) for point in feasible}

        def beaten(point: FrontPoint) -> bool:
            mine = costs[point.value]
            return any(
                other != mine and other[0] <= mine[0] and other[1] <= mine[1] for other in costs.values()
            )  # of equal ones each stays

        return [point for point in feasible if not beaten(point)]
