"""Second proof room: that no plan of a stage problem is within a time, shown by CP-SAT over whole columns.

A column is everything that ranks which share no piece with others hold: how many layers of which kind in each of their
pieces, and their strategies. Columns that fit the memory are enumerated here, and CP-SAT chooses one for every such
component; where they are too many, what the pieces hold is chosen first and strategies after it. The problem's tables
and the paths of the event graph are shared with the engine, and nothing else.
"""

from prism_cp.second_proof.prove import Verdict, prove_no_plan

__all__ = ["Verdict", "prove_no_plan"]
