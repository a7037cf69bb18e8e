"""Engine room: weighted sums of cuts that refute what no single cut does.

Once every group has its item, mixtures of the items' points make a small linear program, whose duals say how to weigh
the cuts. The program only proposes weights: rounded to integers they make a cut like any other, which proves what its
exact integer tables say, for this choice and for many others.
"""

from __future__ import annotations

from collections.abc import Sequence

import highspy
import numpy as np
from numpy.typing import NDArray

from prism_cp.engine.tables import LARGEST_VALUE, Row
from prism_cp.silent_highs import SilentHighs

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

LARGEST_WEIGHT, LEAST_WEIGHT = 1 << 14, 1 << 8  # of the heaviest cut; less would round too much away
FIRST_CUTS, MORE_CUTS, MOST_PROGRAMS = 16, 8, 12  # cuts a program begins with, gains, and how often
CLOSE = 1e-6  # relative excess at which a cut joins the program


def choice_weights(
    worth: Int64, constants: Int64, start: Int64, target: int, scales: Int64 | int = 1
) -> tuple[Float64, Float64] | None:
    """Weights on cuts that make the time of the best mixture of points, one mixture per group, as long as it can be.

    Returns the weights and the mixture's shares of the points; None when the program could not be solved.

    The dual of: minimise t over weights y >= 0 of the points with sum 1 per group, such that for every cut
    y · worth + constant <= scale · t. The weights are those of the cuts divided by their scales.

    Parameters
    ----------
    worth : int64 array [points of all groups, cuts]
    start : int64 array [groups + 1]
        First point of every group.
    """
    points, groups = len(worth), len(start) - 1
    unit = float(target)
    shares, level = worth / (unit * scales), constants / (unit * scales)  # numbers near one
    highs = SilentHighs()
    infinity = highspy.kHighsInf
    none = np.zeros(0, np.int32), np.zeros(0)
    for cost, low in [*((0.0, 0.0) for _ in range(points)), (1.0, -infinity)]:
        highs.addCol(cost, low, infinity, 0, *none)
    for g in range(groups):
        members = np.arange(start[g], start[g + 1], dtype=np.int32)
        highs.addRow(1.0, 1.0, len(members), members, np.ones(len(members)))
    every = np.arange(points + 1, dtype=np.int32)
    least = level.copy()
    for g in range(groups):
        least += shares[start[g] : start[g + 1]].min(axis=0)
    fresh = np.argsort(-least, kind="stable")[:FIRST_CUTS]
    used: list[int] = []
    weights, mixture = np.zeros(len(constants)), np.zeros(points + 1)
    for _ in range(MOST_PROGRAMS):
        for x in fresh.tolist():
            highs.addRow(-infinity, -float(level[x]), points + 1, every, np.append(shares[:, x], -1.0))
            used.append(x)
        highs.run()
        if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        solution = highs.getSolution()
        mixture = np.array(solution.col_value)
        weights = np.zeros(len(constants))
        weights[used] = np.maximum(-np.array(solution.row_dual[groups:]), 0.0)
        bound = mixture[points]
        values = level + mixture[:points] @ shares
        values[used] = -np.inf
        fresh = np.argsort(-values, kind="stable")[:MORE_CUTS]
        fresh = fresh[values[fresh] > bound + CLOSE]
        if not len(fresh):
            break
    return (weights, mixture[:points]) if weights.max() > 0 else None


def whole_weights(weights: Float64, longest: int) -> Int64 | None:
    """Weights rounded to integers, as large as no sum over a plan can overflow; None where they would be too coarse.

    Parameters
    ----------
    longest
        No path is longer than this, time units.
    """
    used = int(np.count_nonzero(weights > 0))
    largest = min(LARGEST_WEIGHT, LARGEST_VALUE // max(1, longest * used))
    if largest < LEAST_WEIGHT or not used:
        return None
    whole: Int64 = np.floor(weights / weights.max() * largest).astype(np.int64)
    return whole


def weighted_sum(rows: Sequence[Row], whole: Int64) -> Row:
    """The sum of paths with integer weights; valid whatever the weights."""
    used = np.flatnonzero(whole).tolist()
    return Row(
        np.sum([int(whole[x]) * rows[x].times for x in used], axis=0),
        np.sum([int(whole[x]) * rows[x].head for x in used], axis=0),
        np.sum([int(whole[x]) * rows[x].tail for x in used], axis=0),
        sum(int(whole[x]) * rows[x].constant for x in used),
        sum(int(whole[x]) * rows[x].scale for x in used),
    )
