"""Robustness room: a range of expert loads, and an instance under one of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from prism_cp.errors import UsageError
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.model import MixtureOfExperts

PARAMETER = "load"
NUM_POINTS = 5  # loads at which plans are compared, both ends included
ACCEPTED = "load=LOW..HIGH with 1 <= LOW < HIGH, e.g. load=1.0..2.0"


@dataclass(frozen=True)
class LoadRange:
    """Loads from `low` to `high`: token copies of the busiest device's experts over the mean."""

    low: float
    high: float

    @property
    def points(self) -> tuple[float, ...]:
        """Evenly spaced loads, both ends included."""
        step = (self.high - self.low) / (NUM_POINTS - 1)
        inside = (round(self.low + step * index, 9) for index in range(1, NUM_POINTS - 1))
        return tuple(sorted({self.low, *(load for load in inside if self.low < load < self.high), self.high}))


def parse_load_range(text: str) -> LoadRange:
    """The range that ``load=1.0..2.0`` states.

    Raises
    ------
    UsageError
        Another name, no two numbers, or ends that are no loads in rising order.
    """
    name, equals, ends = text.partition("=")
    if name.strip() != PARAMETER or not equals:
        raise UsageError(f"--robust: {text!r} (accepted: {ACCEPTED})")
    first, dots, last = ends.partition("..")
    try:
        low, high = float(first), float(last)
    except ValueError:
        raise UsageError(f"--robust: {ends!r} is no range (accepted: {ACCEPTED})") from None
    if not dots or not (1 <= low < high and math.isfinite(high)):
        raise UsageError(f"--robust: {ends!r}: from {low:g} to {high:g} (accepted: {ACCEPTED})")
    return LoadRange(low, high)


def require_load(instance: Instance) -> None:
    """Refuse an instance whose costs ``job.expert_load`` does not decide.

    Raises
    ------
    UsageError
        No experts, tokens padded to a capacity, or layers with loads of their own.
    """
    names = {*instance.model.chain, instance.model.mtp_kind}
    mixtures = [
        (kind.name, kind.feed_forward)
        for kind in instance.model.kinds
        if kind.name in names and isinstance(kind.feed_forward, MixtureOfExperts)
    ]
    if not mixtures:
        raise UsageError(
            f"--robust: {instance.model.name} has no experts, so no load matters (accepted: a model with experts)"
        )
    if instance.job.capacity_factor is not None:
        raise UsageError(
            f"--robust: job.capacity_factor {instance.job.capacity_factor:g} pads all experts alike, so no load "
            "matters (accepted: an instance without capacity_factor)"
        )
    for name, feed_forward in mixtures:
        if feed_forward.expert_load is not None:
            raise UsageError(
                f"--robust: layers of kind {name!r} have an expert_load of their own, {feed_forward.expert_load:g} "
                "(accepted: an instance with one job.expert_load for all layers)"
            )


def at_load(instance: Instance, load: float) -> Instance:
    """The instance with that load for every layer."""
    return instance.model_copy(update={"job": instance.job.model_copy(update={"expert_load": load})})
