"""Expert load: token copies that the busiest device's experts get, over the mean."""

from __future__ import annotations

from sympy import Expr, Integer, Min

from prism_cp.formulas import symbols
from prism_cp.formulas.collectives import rational
from prism_cp.inputs.job import Job


def expert_load(stated: float | None, job: Job) -> Expr:
    """The load of a mixture of experts that states `stated` (None: the job's).

    At most ``ep``: then all copies are on one device, and without expert parallelism every device works on its own
    tokens. With a capacity factor every expert is padded to it, so that factor is the load (Megatron-LM
    core/transformer/moe/moe_utils.py).
    """
    if job.capacity_factor is not None:
        return rational(job.capacity_factor)
    load = job.expert_load if stated is None else stated
    return Integer(1) if load == 1 else Min(rational(load), symbols.ep)
