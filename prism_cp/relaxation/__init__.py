"""Relaxation room: lower bounds on the step time of many layouts under any schedule, memory included, from duals.

For one (schedule, pp, vpp, num_microbatches), a *class*, the paths of the event graph and the live vectors are the same
for every layout, so the dual of one layout's linear relaxation (layers may be split) is a valid bound for all of them
once it is priced with their own costs.
"""

from prism_cp.relaxation.bounds import ClassKey, RelaxationBounds
from prism_cp.relaxation.classes import LayoutClass
from prism_cp.relaxation.costs import RelaxationCosts, brackets_of
from prism_cp.relaxation.duals import Dual, dual_bounds
from prism_cp.relaxation.hull import lower_hull
from prism_cp.relaxation.program import Relaxation

__all__ = [
    "ClassKey",
    "Dual",
    "LayoutClass",
    "Relaxation",
    "RelaxationBounds",
    "RelaxationCosts",
    "brackets_of",
    "dual_bounds",
    "lower_hull",
]
