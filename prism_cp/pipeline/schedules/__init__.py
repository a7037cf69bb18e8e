"""Pipeline room, schedules: the registry. Every module of this package that defines ``SCHEDULE`` adds one."""

from __future__ import annotations

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
    """The schedule of that name; a schedule object is passed through.

    Raises
    ------
    InstanceError
        No schedule has that name.
    """
    if isinstance(schedule, Schedule):
        return schedule
    if schedule not in REGISTRY:
        raise InstanceError("layout.schedule", f"unknown schedule {schedule!r}", ", ".join(schedule_names()))
    return REGISTRY[schedule]


__all__ = ["REGISTRY", "Op", "OpType", "Schedule", "get_schedule", "schedule_names"]
