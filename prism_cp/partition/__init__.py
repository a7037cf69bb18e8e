"""Bounds and plans of one stage problem over its boundaries, for schedules with one piece per rank in forward order.

`least_work` is the exact knapsack of one rank, `items` the table of every rank's possible pieces, `walk` the dynamic
program over ranks, `bound` its lower bound with a plan, `boundary_search` the depth-first search that closes the rest.
"""

from prism_cp.partition.bound import PartitionBound, applicable, partition_bound

__all__ = ["PartitionBound", "applicable", "partition_bound"]
