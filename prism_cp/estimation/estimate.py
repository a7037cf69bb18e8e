"""Estimates: memory of every rank and the time of one step of a given configuration."""

from __future__ import annotations

from dataclasses import dataclass, replace

from prism_cp.breakdown import GIB, Tables, rank_plans
from prism_cp.estimation.configuration import Configuration
from prism_cp.estimation.rank_memory import RankEstimate, rank_estimates
from prism_cp.formulas.flops import model_flops_per_step
from prism_cp.inputs.layout import LayoutSpace
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.plan import RankTime
from prism_cp.plan_builder import simulated_time


@dataclass(frozen=True)
class Estimate:
    """What a configuration needs.

    Attributes
    ----------
    ranks, planned_ranks : tuple of RankEstimate
        Memory of every pipeline rank; the second as plans count it, without the rests of the allocator's blocks.
    iteration_s : float
        Seconds of one optimizer step.
    tokens_per_s_per_device : float
    tflops_per_device : float
        Model FLOPs (`prism_cp.formulas.flops.model_flops_per_step`) in units of 1e12 per second and device.
    rank_times : tuple of RankTime
        Where every pipeline rank spends the step, in seconds.
    barrier_s : float
        Gradient-norm all-reduce.
    usable_gib : float
        Memory of a device that fragmentation leaves.
    memory_margin : float
        Share of it that a plan would keep free against errors of the memory model.
    measured_ranks
        Pipeline ranks that a published figure is about; empty: all.
    """

    ranks: tuple[RankEstimate, ...]
    planned_ranks: tuple[RankEstimate, ...]
    iteration_s: float
    tokens_per_s_per_device: float
    tflops_per_device: float
    rank_times: tuple[RankTime, ...]
    barrier_s: float
    usable_gib: float
    memory_margin: float
    measured_ranks: tuple[int, ...] = ()

    @property
    def needed_gib(self) -> float:
        """What the fullest of all ranks takes of its device: peak, driver and communicators."""
        return max(rank.peak_gib + rank.outside_gib for rank in self.ranks)

    @property
    def planned(self) -> Estimate:
        """The same with memory as plans count it."""
        return replace(self, ranks=self.planned_ranks)

    @property
    def needed_with_margin_gib(self) -> float:
        """The same as a plan counts it, if that is too low by as much as the profile's margin allows for."""
        return self.planned.needed_gib / (1 - self.memory_margin)

    @property
    def fits(self) -> bool:
        """Whether the prediction itself fits in the usable memory."""
        return self.needed_gib <= self.usable_gib

    @property
    def fits_with_margin(self) -> bool:
        """Whether a planner that keeps the margin would allow it."""
        return self.needed_with_margin_gib <= self.usable_gib

    @property
    def steady_gib(self) -> float:
        """Allocated between steps on the fullest of the measured ranks."""
        return max(rank.steady_gib for rank in self._measured())

    @property
    def peak_gib(self) -> float:
        """Most allocated at any time on the fullest of them."""
        return max(rank.peak_gib for rank in self._measured())

    def _measured(self) -> tuple[RankEstimate, ...]:
        return tuple(rank for rank in self.ranks if not self.measured_ranks or rank.rank in self.measured_ranks)


def estimate(configuration: Configuration) -> Estimate:
    """Memory and step time of a configuration.

    Raises
    ------
    InstanceError
        The formulas miss a fact, or the schedule refuses the sizes.
    """
    instance, layout, assignment = configuration.instance, configuration.layout, configuration.assignment
    model = _cost_model(configuration)
    tables = Tables(build_stage_problem(instance, layout, model), model.evaluate_exact(layout))
    problem = tables.problem
    pipeline_time = simulated_time(problem, assignment)
    iteration_s = (pipeline_time + problem.barrier) * instance.time_unit_s
    plans = rank_plans(instance, tables, assignment, pipeline_time)
    ranks = rank_estimates(configuration, tables)
    planned = (
        rank_estimates(replace(configuration, whole_blocks=False), tables) if configuration.whole_blocks else ranks
    )
    device_seconds = iteration_s * instance.cluster.num_devices
    return Estimate(
        ranks=ranks,
        planned_ranks=planned,
        iteration_s=iteration_s,
        tokens_per_s_per_device=instance.job.gbs * instance.job.seq_len / device_seconds,
        tflops_per_device=float(model_flops_per_step(instance)) / device_seconds / 1e12,
        rank_times=tuple(plan.time_s for plan in plans),
        barrier_s=problem.barrier * instance.time_unit_s,
        usable_gib=instance.cluster.device.memory_bytes * instance.profile.allocator_efficiency / GIB,
        memory_margin=instance.profile.memory_margin,
        measured_ranks=configuration.measured_ranks,
    )


_CACHED_MODELS = 16
_models: dict[str, CostModel] = {}


def _cost_model(configuration: Configuration) -> CostModel:
    """Formulas of the configuration's instance; runs that differ in layout alone share them."""
    instance = configuration.instance
    key = instance.model_copy(
        update={"layout": LayoutSpace(recompute=instance.layout.recompute), "name": "", "note": "", "source": ""}
    ).model_dump_json()
    if key not in _models:
        while len(_models) >= _CACHED_MODELS:
            del _models[next(iter(_models))]
        _models[key] = CostModel(instance)
    return _models[key]
