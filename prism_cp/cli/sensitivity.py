"""Command line room: the probes of ``prism-cp explain --sensitivity``."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from prism_cp.cli.output import message_console
from prism_cp.errors import UsageError

if TYPE_CHECKING:
    from prism_cp.plan import Plan
    from prism_cp.robustness.constants import Constant
    from prism_cp.robustness.sensitivity import Probe, Sensitivity
    from prism_cp.search.options import SearchOptions

DEFAULT_RANGE, DEFAULT_RESOLUTION, DEFAULT_TIME_LIMIT_S = "0.5..2", 0.05, 60.0


@dataclass(frozen=True)
class SensitivityOptions:
    """What to probe: factors from `low` to `high`, changes bracketed to a ratio of 1 + `resolution`; all constants
    unless some are named."""

    low: float
    high: float
    resolution: float
    only: tuple[str, ...]


def sensitivity_options(factors: str, resolution: float, only: list[str] | None) -> SensitivityOptions:
    """Checked options."""
    first, dots, last = factors.partition("..")
    accepted = "LOW..HIGH with 0 < LOW <= 1 <= HIGH, e.g. 0.5..2"
    try:
        low, high = float(first), float(last)
    except ValueError:
        raise UsageError(f"--sensitivity-range: {factors!r} (accepted: {accepted})") from None
    if not dots or not (0 < low <= 1 <= high and low < high and math.isfinite(high)):
        raise UsageError(f"--sensitivity-range: {factors!r} (accepted: {accepted})")
    if not 0.001 <= resolution <= 1:
        raise UsageError(f"--resolution: {resolution} (accepted: 0.001 to 1)")
    return SensitivityOptions(low, high, resolution, tuple(only or ()))


def chosen_constants(plan: Plan, only: tuple[str, ...]) -> list[Constant]:
    """The constants to probe: those named, else all of the plan's instance."""
    from prism_cp.inputs.suggest import accepted_names
    from prism_cp.robustness.constants import constants

    known = {constant.key: constant for constant in constants(plan.instance)}
    for name in only:
        if name not in known:
            raise UsageError(f"--constant: {name!r} (accepted: {accepted_names(name, known, limit=40)})")
    return [known[name] for name in dict.fromkeys(only)] or list(known.values())


def probed(
    plan: Plan, wanted: SensitivityOptions, options: SearchOptions, *, quiet: bool
) -> tuple[list[Sensitivity], bool]:
    """What was found for every constant, and whether all were probed (not after Ctrl-C).

    Raises
    ------
    UsageError
        The plan is not proved optimal, or a constant is not known.
    """
    if plan.layout is None or not plan.proved:
        raise UsageError(
            f"--sensitivity: the plan of {plan.instance_name} is {plan.status}, so no layout is known to be optimal "
            "(accepted: a plan proved optimal)"
        )
    from prism_cp.check import plan_assignment
    from prism_cp.cli.running import search
    from prism_cp.integer_tables import build_stage_problem
    from prism_cp.robustness.sensitivity import sensitivity

    limit = DEFAULT_TIME_LIMIT_S if options.time_limit_s is None else options.time_limit_s
    options = replace(options, time_limit_s=limit, gap=0.0, top_k=0)
    layout = plan.layout.layout()
    assignment = plan_assignment(plan.virtual_stages, build_stage_problem(plan.instance, layout))
    chosen, console = chosen_constants(plan, wanted.only), message_console()
    found: list[Sensitivity] = []

    def say(probe: Probe) -> None:
        if not quiet:
            number, key = len(found) + 1, chosen[len(found)].key
            console.print(f"{number}/{len(chosen)} {key} x{probe.factor:g}: {probe.verdict}", markup=False)

    for constant in chosen:
        one = sensitivity(
            plan.instance,
            layout,
            assignment,
            constant,
            low=wanted.low,
            high=wanted.high,
            resolution=wanted.resolution,
            search=lambda instance, known: search(instance, options, quiet=True, known=known),
            progress=say,
        )
        found.append(one)
        if one.interrupted:
            return found, False
    return found, True
