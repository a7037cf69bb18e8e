"""Which schedule of the pipeline room a layout of an instance runs: its name, and what the job says about it."""

from __future__ import annotations

from fractions import Fraction

from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import OVERLAPPING
from prism_cp.inputs.model import MixtureOfExperts
from prism_cp.pipeline import with_options


def overlap_factor(instance: Instance) -> Fraction:
    """Length of an overlapped forward and backward over the sum of both, as the job states it, exactly."""
    return Fraction(str(instance.job.overlap_factor))


def pipeline_schedule(instance: Instance, name: str) -> str:
    """The schedule `name` with the instance's options, for `prism_cp.pipeline.get_schedule`."""
    if name == "interleaved":
        return with_options(name, **_interleaved_options(instance))
    factor = overlap_factor(instance)
    if name in OVERLAPPING and factor != 1:
        return with_options(name, overlap_factor=factor)
    return name


def _interleaved_options(instance: Instance) -> dict[str, object]:
    """Megatron-LM's options of interleaving that are not the default."""
    options: dict[str, object] = {}
    if instance.profile.microbatch_group_size_per_vp_stage is not None:
        options["microbatch_group_size_per_vp_stage"] = instance.profile.microbatch_group_size_per_vp_stage
    experts = any(isinstance(kind.feed_forward, MixtureOfExperts) for kind in instance.model.kinds)
    if instance.profile.expert_overlap and experts:
        options["overlap_moe_expert_parallel_comm"] = True
    return options
