"""Engine room: the compiled depth-first walk over groups, and the one over the points of a complete choice."""

from __future__ import annotations

import numpy as np
from numba import njit

EXHAUSTED, LEAF, NODE_LIMIT = 0, 1, 2


@njit(cache=True)
def _shift_down(mask, by, out):  # type: ignore[no-untyped-def]
    """Bit s of `out` is bit s + by of `mask`."""
    words = len(mask)
    skip, rest = by // 64, np.uint64(by % 64)
    for w in range(words):
        value = np.uint64(0)
        if w + skip < words:
            value = mask[w + skip] >> rest
            if rest and w + skip + 1 < words:
                value |= mask[w + skip + 1] << (np.uint64(64) - rest)
        out[w] = value


@njit(cache=True)
def _runs(g, mask_rows, masks, sizes, steps, step_start, mask, length, scratch):  # type: ignore[no-untyped-def]
    """Update the runs at depth g to depth g + 1; whether every run still has a possible first layer."""
    mask[g + 1] = mask[g]
    length[g + 1] = length[g]
    for step in range(step_start[g], step_start[g + 1]):
        what, position, run, other = steps[step]
        row = mask_rows[position]
        if what == 0:  # a new run
            mask[g + 1, run] = masks[row]
            length[g + 1, run] = sizes[row]
        elif what == 1:  # a piece at the run's end
            _shift_down(masks[row], length[g + 1, run], scratch)
            for w in range(len(scratch)):
                mask[g + 1, run, w] &= scratch[w]
            length[g + 1, run] += sizes[row]
        elif what == 2:  # a piece before the run
            _shift_down(mask[g + 1, run], sizes[row], scratch)
            for w in range(len(scratch)):
                mask[g + 1, run, w] = scratch[w] & masks[row, w]
            length[g + 1, run] += sizes[row]
        else:  # a piece between two runs
            _shift_down(masks[row], length[g + 1, run], scratch)
            for w in range(len(scratch)):
                mask[g + 1, run, w] &= scratch[w]
            length[g + 1, run] += sizes[row]
            _shift_down(mask[g + 1, other], length[g + 1, run], scratch)
            for w in range(len(scratch)):
                mask[g + 1, run, w] &= scratch[w]
            length[g + 1, run] += length[g + 1, other]
        alive = False
        for w in range(len(scratch)):
            alive |= mask[g + 1, run, w] != 0
        if not alive:
            return False
    return True


@njit(cache=True)
def walk(  # type: ignore[no-untyped-def]
    limits, columns, worth, start, item_delta, delta_start, delta_item, least, down, after, mask_rows, masks, sizes,
    steps, step_start, prefix, state, run_mask, run_length, order, pointer, chosen, depth, most_nodes,
):  # fmt: skip
    """Go on from `depth`; returns (what happened, depth, nodes).

    At a leaf `chosen` holds one item per group. `pointer[g]` is the next item to try at depth g; `order[kind, g]` the
    cuts in the order they are tried at depth g, for totals of layers (kind 0) and for items (kind 1).
    """
    groups = len(start) - 1
    scratch = np.zeros(masks.shape[1], np.uint64)
    nodes = 0
    while depth >= 0:
        if nodes >= most_nodes:
            return 2, depth, nodes
        g = depth
        i = pointer[g]
        last_delta = -1
        rest = -1
        found = False
        while i < start[g + 1]:
            delta = delta_start[g] + item_delta[i]
            nodes += 1
            if delta != last_delta:
                last_delta = delta
                rest = down[delta, state[g]]
                fits = rest >= 0 and after[g + 1, rest, 0] < np.int64(1) << 60
                if fits:
                    for n in range(columns):
                        x = order[0, g, n]
                        if prefix[g, x] + least[delta, x] + after[g + 1, rest, x] > limits[x]:
                            fits = False
                            if n:
                                order[0, g, n] = order[0, g, n // 2]
                                order[0, g, n // 2] = x
                            break
                if not fits:
                    i = delta_item[delta + 1]
                    continue
            fits = True
            for n in range(columns):
                x = order[1, g, n]
                if prefix[g, x] + worth[i, x] + after[g + 1, rest, x] > limits[x]:
                    fits = False
                    if n:
                        order[1, g, n] = order[1, g, n // 2]
                        order[1, g, n // 2] = x
                    break
            if fits and _runs(g, mask_rows[i], masks, sizes, steps, step_start, run_mask, run_length, scratch):
                found = True
                break
            i += 1
        if not found:
            depth -= 1
            continue
        pointer[g] = i + 1
        chosen[g] = i
        for x in range(columns):
            prefix[g + 1, x] = prefix[g, x] + worth[i, x]
        state[g + 1] = rest
        depth = g + 1
        if depth == groups:
            return 1, depth, nodes
        pointer[depth] = start[depth]
    return 0, depth, nodes


@njit(cache=True)
def walk_points(limits, worth, start, chosen, pointer, depth, most_nodes):  # type: ignore[no-untyped-def]
    """The same for one complete choice of items: next combination of points that no cut forbids.

    Parameters
    ----------
    limits : int64[cuts]; constants already taken off
    worth : int64[points, cuts]
    start : int64[groups + 1]; points of every group
    """
    groups, columns = len(start) - 1, len(limits)
    after = np.zeros((groups + 1, columns), np.int64)
    for g in range(groups - 1, -1, -1):
        for x in range(columns):
            least = worth[start[g], x]
            for p in range(start[g] + 1, start[g + 1]):
                least = min(least, worth[p, x])
            after[g, x] = least + after[g + 1, x]
    prefix = np.zeros((groups + 1, columns), np.int64)
    for g in range(min(depth, groups)):
        for x in range(columns):
            prefix[g + 1, x] = prefix[g, x] + worth[chosen[g], x]
    if depth == groups:
        depth -= 1
    first = 0
    nodes = 0
    while depth >= 0:
        if nodes >= most_nodes:
            return 2, depth, nodes
        g = depth
        p = pointer[g]
        found = False
        while p < start[g + 1]:
            nodes += 1
            fits = columns == 0 or prefix[g, first] + worth[p, first] + after[g + 1, first] <= limits[first]
            if fits:
                for x in range(columns):
                    if prefix[g, x] + worth[p, x] + after[g + 1, x] > limits[x]:
                        fits = False
                        first = x
                        break
            if fits:
                found = True
                break
            p += 1
        if not found:
            depth -= 1
            continue
        pointer[g] = p + 1
        chosen[g] = p
        for x in range(columns):
            prefix[g + 1, x] = prefix[g, x] + worth[p, x]
        depth = g + 1
        if depth == groups:
            return 1, depth, nodes
        pointer[depth] = start[depth]
    return 0, depth, nodes
