"""An instance: model + cluster + job + framework profile + search space, as one frozen value."""

from __future__ import annotations

from pydantic import PositiveFloat, PositiveInt

from prism_cp.inputs.base import FrozenModel
from prism_cp.inputs.cluster import Cluster
from prism_cp.inputs.job import Job, Profile
from prism_cp.inputs.layout import LayoutSpace
from prism_cp.inputs.model import Model


class Instance(FrozenModel):
    """One planning problem."""

    name: str
    model: Model
    cluster: Cluster
    job: Job
    profile: Profile
    layout: LayoutSpace = LayoutSpace()
    time_unit_s: PositiveFloat = 1e-6  # integer times count this many seconds
    memory_unit_bytes: PositiveInt = 1024  # integer memory counts this many bytes
    source: str = ""
    note: str = ""
