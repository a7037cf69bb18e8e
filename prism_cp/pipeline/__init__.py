"""Pipeline room: schedules as data, and what follows from them: simulator, event graph, live vectors, cuts.

Knows plain integers only: no layers, no memory, no solver.
"""

from prism_cp.pipeline.cuts import static_cuts
from prism_cp.pipeline.event_graph import describe, event_graph, longest_path
from prism_cp.pipeline.live_vectors import live_vectors
from prism_cp.pipeline.path_cut import PathCut
from prism_cp.pipeline.program import check_sizes
from prism_cp.pipeline.reference import reference_pipeline_time, simulate_reference
from prism_cp.pipeline.schedules import Op, OpType, Schedule, get_schedule, schedule_names, with_options
from prism_cp.pipeline.simulator import Simulation, pipeline_time, pipeline_times, simulate

__all__ = [
    "Op",
    "OpType",
    "PathCut",
    "Schedule",
    "Simulation",
    "check_sizes",
    "describe",
    "event_graph",
    "get_schedule",
    "live_vectors",
    "longest_path",
    "pipeline_time",
    "pipeline_times",
    "reference_pipeline_time",
    "schedule_names",
    "simulate",
    "simulate_reference",
    "static_cuts",
    "with_options",
]
