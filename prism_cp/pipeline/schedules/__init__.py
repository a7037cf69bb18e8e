"""Pipeline room, schedules: the registry. Every module of this package that defines ``SCHEDULE`` adds one."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from pkgutil import iter_modules

from prism_cp.errors import InstanceError
from prism_cp.pipeline.schedules.base import Op, OpType, Schedule

REGISTRY: dict[str, Schedule] = {}

for _module in sorted(module.name for module in iter_modules(__path__)):
    _schedule = getattr(import_module(f"{__name__}.{_module}"), "SCHEDULE", None)
    if isinstance(_schedule, Schedule):
        REGISTRY[_schedule.name] = _schedule


def schedule_names() -> tuple[str, ...]:
    """Names of all schedules, sorted."""
    return tuple(sorted(REGISTRY))


def get_schedule(schedule: str | Schedule) -> Schedule:
    """The schedule of that name, which options may follow (see `with_options`); a schedule object is passed through.

    Raises
    ------
    InstanceError
        No schedule has that name, or it has no such option.
    """
    if isinstance(schedule, Schedule):
        return schedule
    name, bracket, options = schedule.partition("[")
    if name not in REGISTRY:
        raise InstanceError("layout.schedule", f"unknown schedule {schedule!r}", ", ".join(schedule_names()))
    return _variant(name, options.removesuffix("]")) if bracket else REGISTRY[name]


def with_options(name: str, **options: object) -> str:
    """Name of a schedule with options, such as ``dualpipev[overlap_factor=3/5]``; the bare name when there are none."""
    texts = ",".join(f"{key}={value}" for key, value in sorted(options.items()))
    return f"{name}[{texts}]" if texts else name


@lru_cache(maxsize=256)  # one object per name, so that what is kept by schedule is found again
def _variant(name: str, options: str) -> Schedule:
    pairs = (option.partition("=") for option in options.split(","))
    return REGISTRY[name].variant({key: value for key, _, value in pairs})


__all__ = ["REGISTRY", "Op", "OpType", "Schedule", "get_schedule", "schedule_names", "with_options"]
