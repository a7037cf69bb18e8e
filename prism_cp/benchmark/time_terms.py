"""Benchmark room: a step time split by what the cost model counts, by leaving parts of the model out in turn."""

from __future__ import annotations

from dataclasses import dataclass, replace

from prism_cp.estimation.configuration import Configuration
from prism_cp.estimation.estimate import estimate
from prism_cp.inputs.instance import Instance

FASTER = 1e9  # how much faster links are made to leave communication out


@dataclass(frozen=True)
class TimeTerms:
    """Seconds of a step; they add up to it.

    Attributes
    ----------
    host_s
        What launches and synchronisation of the host add: without them the step is so much shorter.
    communication_s
        What exposed communication adds to a step without host time.
    waiting_s
        Of what remains: pipeline ranks wait for each other, mean over ranks.
    recomputation_s, kernels_s
        Of what remains: forwards that run again; everything else that devices compute, optimizer included.
    """

    host_s: float
    communication_s: float
    waiting_s: float
    recomputation_s: float
    kernels_s: float


def time_terms(run: Configuration) -> TimeTerms:
    """The terms of a configuration's step time."""
    whole = estimate(run).iteration_s
    without_host = estimate(replace(run, instance=_without_host(run.instance))).iteration_s
    bare = estimate(replace(run, instance=_without_communication(_without_host(run.instance))))
    number = len(bare.rank_times)
    waiting = sum(times.bubble for times in bare.rank_times) / number
    again = sum(times.recomputation or 0.0 for times in bare.rank_times) / number
    return TimeTerms(
        host_s=whole - without_host,
        communication_s=without_host - bare.iteration_s,
        waiting_s=waiting,
        recomputation_s=again,
        kernels_s=bare.iteration_s - waiting - again,
    )


def _without_host(instance: Instance) -> Instance:
    return instance.model_copy(update={"profile": instance.profile.model_copy(update={"full_cuda_graphs": True})})


def _without_communication(instance: Instance) -> Instance:
    links = tuple(
        link.model_copy(update={"bytes_per_s": link.bytes_per_s * FASTER, "latency_s": link.latency_s / FASTER})
        for link in instance.cluster.links
    )
    return instance.model_copy(update={"cluster": instance.cluster.model_copy(update={"links": links})})
