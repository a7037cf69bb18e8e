"""When nothing fits: the cheapest changes that make something fit, each verified by solving the changed instance."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from prism_cp.errors import InstanceError
from prism_cp.inputs.instance import Instance
from prism_cp.result import SearchResult
from prism_cp.search.options import SearchOptions
from prism_cp.search.solve import solve_instance

MOST_DOUBLINGS = 6
CAPACITY_STEPS = 12
MARGIN_STEPS = 8  # parts that the margin is divided in


@dataclass(frozen=True)
class Relaxation:
    """One change under which a plan exists.

    Attributes
    ----------
    change
        What to change, as overrides separated by spaces, e.g. ``cluster.num_devices=128``.
    description
        The same in words.
    result
        The solved changed instance.
    """

    change: str
    description: str
    result: SearchResult


def cheapest_relaxations(instance: Instance, options: SearchOptions | None = None) -> list[Relaxation]:
    """Changes that make an infeasible instance feasible, fastest plan first.

    Tried: opening each pinned layout field alone, then all of them; every recomputation the profile knows; more devices
    (doubling, then the smallest doubling that fits); a larger memory cap (the least of a geometric grid that fits); a
    smaller margin for errors of the memory model (the largest of a grid that fits).
    """
    options = replace(options or SearchOptions(), top_k=0)
    found = [
        relaxation
        for attempt in (_open_fields, _more_devices, _larger_capacity, _smaller_margin)
        for relaxation in attempt(instance, options)
    ]
    return sorted(found, key=lambda relaxation: relaxation.result.objective or 0)


def _try(instance: Instance, options: SearchOptions) -> SearchResult | None:
    """Solve a changed instance; None when it has no plan either."""
    try:
        result = solve_instance(instance, options)
    except InstanceError:  # the change leaves no admissible layout
        return None
    return result if result.objective is not None else None


def _open_fields(instance: Instance, options: SearchOptions) -> Iterator[Relaxation]:
    space = instance.layout
    pinned = [name for name, value in space if isinstance(value, tuple)]
    for name in pinned:
        changed = instance.model_copy(update={"layout": space.model_copy(update={name: None})})
        result = _try(changed, options)
        if result is not None:
            what = "every recomputation strategy" if name == "recompute" else f"every {name} that divides"
            yield Relaxation(f"layout.{name}=null", f"allow {what}", result)
    if len(pinned) > 1:
        changed = instance.model_copy(update={"layout": space.model_copy(update=dict.fromkeys(pinned))})
        result = _try(changed, options)
        if result is not None:
            yield Relaxation("layout=null", "open every pinned layout field: " + ", ".join(pinned), result)


def _more_devices(instance: Instance, options: SearchOptions) -> Iterator[Relaxation]:
    cluster = instance.cluster
    for doubling in range(1, MOST_DOUBLINGS + 1):
        devices = cluster.num_devices << doubling
        links = cluster.links
        change, description = f"cluster.num_devices={devices}", f"{devices} devices instead of {cluster.num_devices}"
        if links[-1].domain_size < devices:
            links = (*links[:-1], links[-1].model_copy(update={"domain_size": devices}))
            change += f" cluster.links.{len(links) - 1}.domain_size={devices}"
            description += f", all on link level {links[-1].name}"
        changed = instance.model_copy(
            update={"cluster": cluster.model_copy(update={"num_devices": devices, "links": links})}
        )
        result = _try(changed, options)
        if result is not None:
            yield Relaxation(change, description, result)
            return


def _larger_capacity(instance: Instance, options: SearchOptions) -> Iterator[Relaxation]:
    cluster = instance.cluster
    device = cluster.device

    def with_memory(memory_bytes: int) -> Instance:
        larger = device.model_copy(update={"memory_bytes": memory_bytes})
        return instance.model_copy(update={"cluster": cluster.model_copy(update={"device": larger})})

    low, high, result = device.memory_bytes, device.memory_bytes, None
    for _ in range(MOST_DOUBLINGS):
        low, high = high, high * 2
        result = _try(with_memory(high), options)
        if result is not None:
            break
    if result is None:
        return
    result, high = _bisect(with_memory, options, low, high, result)
    gib = high / 2**30
    yield Relaxation(
        f"cluster.device.memory_bytes={high}",
        f"{gib:.2f} GiB of memory per device instead of {device.memory_bytes / 2**30:.2f} GiB",
        result,
    )


def _bisect(
    with_memory: Callable[[int], Instance], options: SearchOptions, low: int, high: int, result: SearchResult
) -> tuple[SearchResult, int]:
    """Least memory that fits, to about 2 %, in whole MiB."""
    for _ in range(CAPACITY_STEPS):
        if high - low <= high // 50:
            break
        middle = (low + high) // 2 >> 20 << 20
        attempt = _try(with_memory(middle), options)
        if attempt is None:
            low = middle
        else:
            high, result = middle, attempt
    return result, high


def _smaller_margin(instance: Instance, options: SearchOptions) -> Iterator[Relaxation]:
    """The largest margin that fits, of zero and the whole permille nearest below equal parts of the present one."""
    profile = instance.profile

    def with_margin(margin: float) -> Instance:
        return instance.model_copy(update={"profile": profile.model_copy(update={"memory_margin": margin})})

    grid = sorted({int(profile.memory_margin * 1000 * part / MARGIN_STEPS) / 1000 for part in range(MARGIN_STEPS)})
    if not profile.memory_margin or (result := _try(with_margin(0.0), options)) is None:
        return
    low, high = 0, len(grid)  # grid[low] fits, what is from high on does not
    while high - low > 1:
        middle = (low + high) // 2
        attempt = _try(with_margin(grid[middle]), options)
        if attempt is None:
            high = middle
        else:
            low, result = middle, attempt
    yield Relaxation(
        f"profile.memory_margin={grid[low]}",
        f"a margin of {100 * grid[low]:.1f} % instead of {100 * profile.memory_margin:.1f} % for errors of the memory "
        "model, at the risk of running out of memory",
        result,
    )
