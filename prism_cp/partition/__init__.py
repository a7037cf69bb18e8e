"""Bounds and plans of one stage problem by dynamic programming over the stage boundaries.

For schedules with one piece per rank in forward order. `fronts` holds, per kind and number of layers, the Pareto
points of activation memory against time over all strategy counts; `bound` walks the ranks and asks which boundaries a
target step time leaves reachable. The result is a proven lower bound and usually a plan that meets it.
"""

from prism_cp.partition.bound import PartitionBound, partition_bound

__all__ = ["PartitionBound", "partition_bound"]
