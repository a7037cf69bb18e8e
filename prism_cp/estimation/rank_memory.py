"""Memory of one rank over the phases of training: a peak is a maximum over phases, not a sum.

First step: the moments do not exist yet. Optimizer step: nothing is live, but the step has a temporary. Later steps:
everything. What a framework's memory counter sees leaves out driver context and communicators.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from prism_cp.breakdown import GIB, Tables, state_bytes
from prism_cp.estimation.configuration import Configuration
from prism_cp.formulas.evaluate import exact_function
from prism_cp.formulas.overheads import num_communicators
from prism_cp.formulas.saved import context
from prism_cp.integer_tables import LAYOUT_SYMBOLS, symbol_values
from prism_cp.pipeline import live_vectors
from prism_cp.stage_problem import rank_memories

FIRST_STEP, OPTIMIZER_STEP, LATER_STEPS = "first step", "optimizer step", "later steps"


@dataclass(frozen=True)
class RankEstimate:
    """Memory of one pipeline rank, in GiB.

    Attributes
    ----------
    steady_gib
        Allocated between two steps.
    peak_gib
        Most allocated at any time: the maximum of `phases_gib`.
    phase
        Which phase that is.
    phases_gib
        Peak of every phase.
    breakdown_gib
        The terms of the peak.
    outside_gib
        On the device, but not in the framework's counter: driver context and communicators.
    """

    rank: int
    steady_gib: float
    peak_gib: float
    phase: str
    phases_gib: dict[str, float]
    breakdown_gib: dict[str, float]
    outside_gib: float

    @property
    def first_step_peak_gib(self) -> float:
        """Most allocated until the end of the first optimizer step."""
        return max(self.phases_gib[FIRST_STEP], self.phases_gib[OPTIMIZER_STEP])


def rank_estimates(configuration: Configuration, tables: Tables) -> tuple[RankEstimate, ...]:
    """Memory of every rank of a configuration.

    Parameters
    ----------
    tables
        Of the configuration's layout.
    """
    instance, layout, problem = configuration.instance, configuration.layout, tables.problem
    profile, unit = instance.profile, instance.memory_unit_bytes
    vectors = live_vectors(layout.schedule, layout.pp, layout.vpp, layout.num_microbatches)
    hidden_state, communicators = _layout_numbers(configuration)
    outside = Fraction(profile.context_bytes) + profile.communicator_bytes * communicators
    in_flight = 2 * hidden_state if layout.pp > 1 else Fraction(0)
    found = []
    rows = rank_memories(problem, configuration.assignment, vectors)
    for rank in range(layout.pp):
        mine = [row for row in rows if row.rank == rank]
        weights, gradients, optimizer = state_bytes(tables, configuration.assignment, rank)
        parameters = optimizer / profile.optimizer_state_bytes  # of this rank's optimizer shard
        optimizer *= 1 - Fraction(str(configuration.optimizer_offload_fraction))
        moments = optimizer * Fraction(profile.optimizer_moment_bytes, profile.optimizer_state_bytes)
        buffers = Fraction(mine[0].buffers * unit)
        # 16-bit gradients also exist in fp32 from the optimizer step to the next backward pass.
        copies = profile.gradient_bytes < 4 and profile.optimizer_state_bytes < 16
        step = next(Fraction(row.transient * unit) for row in mine if not row.live)
        gradient_copy = 4 * parameters if copies else Fraction(0)
        workspace = Fraction(profile.workspace_bytes)
        received = in_flight * (layout.vpp - (1 if rank == 0 else 0))
        running = max((row for row in mine if row.live), key=lambda row: row.activation + row.transient)
        live = {"activations": Fraction(running.activation * unit), "transient": Fraction(running.transient * unit)}
        common = {"weights": weights, "gradients": gradients, "buffers": buffers, "workspace": workspace}
        steady = {**common, "optimizer": optimizer, "gradient copy": gradient_copy, "received": received}
        phases = {
            FIRST_STEP: {**common, "optimizer": optimizer - moments, **live, "received": in_flight},
            OPTIMIZER_STEP: {**steady, "step temporary": step - gradient_copy},
            LATER_STEPS: {**common, "optimizer": optimizer, **live, "received": in_flight},
        }
        totals = {name: sum(terms.values(), Fraction(0)) for name, terms in phases.items()}
        phase = max(totals, key=lambda name: totals[name])
        found.append(
            RankEstimate(
                rank=rank,
                steady_gib=float(sum(steady.values(), Fraction(0)) / GIB),
                peak_gib=float(totals[phase] / GIB),
                phase=phase,
                phases_gib={name: float(total / GIB) for name, total in totals.items()},
                breakdown_gib={name: float(value / GIB) for name, value in phases[phase].items() if value},
                outside_gib=float(outside / GIB),
            )
        )
    return tuple(found)


def _layout_numbers(configuration: Configuration) -> tuple[Fraction, Fraction]:
    """Bytes of one hidden state, and process groups of a rank."""
    instance = configuration.instance
    function = exact_function([context(instance).hidden_state, num_communicators(instance)], LAYOUT_SYMBOLS)
    values = symbol_values(configuration.layout)
    hidden_state, communicators = function(*(values[symbol.name] for symbol in LAYOUT_SYMBOLS))
    return Fraction(hidden_state), Fraction(communicators)
