"""Memory of one rank over the phases of training: a peak is a maximum over phases, not a sum.

First step: the moments do not exist yet. Optimizer step: nothing is live, but the step has a temporary. Later steps:
everything. What a framework's memory counter sees leaves out driver context and communicators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from prism_cp.breakdown import GIB, Tables, state_bytes
from prism_cp.estimation.allocator_blocks import block_rests
from prism_cp.estimation.checkpoint_chunks import live_terms
from prism_cp.estimation.configuration import Configuration
from prism_cp.estimation.flat_buffer import largest_piece
from prism_cp.formulas.evaluate import exact_function
from prism_cp.formulas.memory import copies_gradients
from prism_cp.formulas.overheads import num_communicators
from prism_cp.formulas.parameters import padded_vocabulary
from prism_cp.formulas.saved import ELEMENT_BYTES, context
from prism_cp.formulas.symbols import tp
from prism_cp.integer_tables import LAYOUT_SYMBOLS, symbol_values
from prism_cp.pipeline import live_vectors
from prism_cp.stage_problem import RankMemory, rank_memories

FIRST_STEP, OPTIMIZER_STEP, LATER_STEPS = "first step", "optimizer step", "later steps"
OPTIMIZER_COPY_BYTES = 4  # an fp32 temporary of the parameter that is updated


@dataclass(frozen=True)
class RankEstimate:
    """Memory of one pipeline rank, in GiB.

    Attributes
    ----------
    steady_gib
        Allocated between two steps.
    peak_gib
        Most allocated at any time: the maximum of `phases_gib` (without later steps where only the first is asked for).
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


def rank_estimates(configuration: Configuration, tables: Tables) -> tuple[RankEstimate, ...]:
    """Memory of every rank of a configuration.

    Parameters
    ----------
    tables
        Of the configuration's layout.
    """
    layout, problem = configuration.layout, tables.problem
    vectors = live_vectors(problem.schedule, layout.pp, layout.vpp, layout.num_microbatches)
    if configuration.all_forwards_first:
        vectors = tuple(((layout.num_microbatches,) * len(rank[0]),) for rank in vectors)
    rows = rank_memories(problem, configuration.assignment, vectors)
    numbers = _layout_numbers(configuration)
    return tuple(
        _rank_estimate(configuration, tables, rank, [row for row in rows if row.rank == rank], *numbers)
        for rank in range(layout.pp)
    )


def _rank_estimate(
    configuration: Configuration,
    tables: Tables,
    rank: int,
    rows: Sequence[RankMemory],
    hidden_state: Fraction,
    communicators: Fraction,
    projection: Fraction,
) -> RankEstimate:
    """Memory of one rank.

    Parameters
    ----------
    rows
        The rank's rows of integer memory.
    hidden_state, communicators, projection
        Bytes of one hidden state, number of process groups, bytes of input and output gradient of the output
        projection.
    """
    instance, layout, profile = configuration.instance, configuration.layout, configuration.instance.profile
    unit = instance.memory_unit_bytes
    in_flight = 2 * hidden_state if layout.pp > 1 else Fraction(0)
    weights, gradients, whole = state_bytes(tables, configuration.assignment, rank)
    optimizer = whole * (1 - Fraction(str(configuration.optimizer_offload_fraction)))
    moments = optimizer * Fraction(profile.optimizer_moment_bytes, profile.optimizer_state_bytes)
    # 16-bit gradients also exist in fp32 from the optimizer step to the next backward pass.
    parameters = whole / profile.optimizer_state_bytes  # of the rank's share
    gradient_copy = 4 * parameters if copies_gradients(profile) else Fraction(0)
    rests = block_rests(configuration, rank)
    common = {
        "weights": weights,
        "gradients": gradients,
        "buffers": Fraction(rows[0].buffers * unit) + _layer_buffers(configuration, tables, rank),
        "workspace": Fraction(profile.workspace_bytes),
        "unsplit blocks": Fraction(rests.kept),
    }
    moments_too = {"unsplit blocks": Fraction(rests.kept + rests.moments)}
    live = max((live_terms(configuration, tables, row) for row in rows if row.live), key=lambda terms: sum(terms))
    waiting = configuration.deferred_projections if rank == layout.pp - 1 else 0
    running = {
        "activations": Fraction(live[0] * unit),
        "transient": Fraction(live[1] * unit),
        "deferred": waiting * projection,
        "received": in_flight,
    }
    steady = {
        **common,
        **moments_too,
        "optimizer": optimizer,
        "gradient copy": gradient_copy,
        "received": in_flight * (layout.vpp - (1 if rank == 0 else 0)),
    }
    phases = {
        FIRST_STEP: {**common, "optimizer": optimizer - moments, **running},
        OPTIMIZER_STEP: {**steady, "step temporary": _step_temporary(configuration, rank, parameters)},
        LATER_STEPS: {**common, **moments_too, "optimizer": optimizer, **running},
    }
    totals = {name: sum(terms.values(), Fraction(0)) for name, terms in phases.items()}
    considered = (FIRST_STEP, OPTIMIZER_STEP) if configuration.first_step_only else tuple(phases)
    phase = max(considered, key=lambda name: totals[name])
    outside = Fraction(profile.context_bytes) + profile.communicator_bytes * communicators
    return RankEstimate(
        rank=rank,
        steady_gib=float(sum(steady.values(), Fraction(0)) / GIB),
        peak_gib=float(totals[phase] / GIB),
        phase=phase,
        phases_gib={name: float(total / GIB) for name, total in totals.items()},
        breakdown_gib={name: float(value / GIB) for name, value in phases[phase].items() if value},
        outside_gib=float(outside / GIB),
    )


def _step_temporary(configuration: Configuration, rank: int, parameters: Fraction) -> Fraction:
    """What exists only while the optimizer steps on a share of so many parameters."""
    layout, profile = configuration.layout, configuration.instance.profile
    if profile.optimizer_step_copies_parameter:
        stage = layout.tp * layout.cp * layout.dp
        devices = [device % stage for device in configuration.measured_devices if device // stage == rank]
        return OPTIMIZER_COPY_BYTES * largest_piece(configuration, rank, devices)
    return min(Fraction(profile.optimizer_step_bytes), OPTIMIZER_COPY_BYTES * parameters)


def _layer_buffers(configuration: Configuration, tables: Tables, rank: int) -> Fraction:
    held = {stage.piece for stage in tables.problem.virtual_stages if stage.rank == rank}
    bounds = configuration.assignment.boundaries
    return Fraction(configuration.layer_buffer_bytes * sum(bounds[piece + 1] - bounds[piece] for piece in held))


def _layout_numbers(configuration: Configuration) -> tuple[Fraction, Fraction, Fraction]:
    """Bytes of one hidden state, process groups of a rank, bytes of the output projection's input and gradient."""
    instance = configuration.instance
    c = context(instance)
    projection = ELEMENT_BYTES * c.tokens * (c.hidden + padded_vocabulary(instance) / tp)
    function = exact_function([c.hidden_state, num_communicators(instance), projection], LAYOUT_SYMBOLS)
    values = symbol_values(configuration.layout)
    hidden_state, communicators, projected = function(*(values[symbol.name] for symbol in LAYOUT_SYMBOLS))
    return Fraction(hidden_state), Fraction(communicators), Fraction(projected)
