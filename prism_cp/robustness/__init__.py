"""Robustness room: the plan with the best worst case over a range of expert loads, and what a layout can bear.

`load_range`, `worst_case` and `figures` evaluate given plans by the formulas alone, so that the checker may use them;
`robust` and `sensitivity` search.
"""
