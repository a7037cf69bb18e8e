"""Engine room: the points of one item: strategy multisets of its pieces that fit in memory, Pareto-minimal in time."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from prism_cp.engine.choices import ACTIVATION, FORWARD, INPUT_GRAD, TRANSIENT, pareto

Int64 = NDArray[np.int64]

POINTS_AT_ONCE = 200_000  # room for the points of one item before they are filtered
# Strategy combinations looked at per item before points are merged into lower bounds, and how many points a piece then
# keeps: for up to two pieces per group, which are nearly always exact, and for more.
MOST_TRIALS = (400_000, 20_000)
MERGED_POINTS = (14, 6)
FEWER_MERGED_POINTS = (3, 1)  # where a group has so many pieces that those still make too many points


def only_input_grad(values: Int64, offset: Int64) -> bool:
    """Whether there is one table, and within every composition nothing but the input-gradient time differs."""
    if values.shape[1] > 1:
        return False
    for start, stop in offset.reshape(-1, 2):
        block = values[start:stop, 0, FORWARD:]
        if stop > start and np.any(block[:, [0, 2]] != block[0, [0, 2]]):
            return False
    return True


def suffix_credit(values: Int64, credit: Int64, offset: Int64) -> None:
    """Give every point the credit of the slower ones of its composition, which may be left out beside it."""
    for start, stop in offset.reshape(-1, 2):
        slow = values[start:stop, 0, INPUT_GRAD]
        if stop > start:
            best = np.maximum.accumulate((credit[start:stop, 0] - slow)[::-1])[::-1]
            equal = np.searchsorted(slow, slow)  # the first of the equally slow ones
            credit[start:stop, 0] = best[equal] + slow


def item_points(  # type: ignore[no-untyped-def]
    choice,
    budget,
    work_limit,
    values,
    offset,
    piece,
    column,
    rank,
    rows,
    alive,
    transient,
    executed,
    ends,
    single,
    room,
    most_trials,
) -> tuple[Any, ...] | None:
    """Times [points, stages, 3], picks [points, pieces] and whether points were merged; None when nothing fits."""
    spans = offset[np.arange(len(choice)), choice]
    blocks = [values[start:stop] for start, stop in spans]
    vague, several = False, int(len(choice) > 2)
    count = _enumerate(_padded(blocks), spans[:, 1] - spans[:, 0], budget, work_limit, piece, column, rank, rows,
                       alive, transient, executed, ends, single, most_trials or MOST_TRIALS[several], room)  # fmt: skip
    if count < 0:
        vague = True
        for most in (MERGED_POINTS[several], *FEWER_MERGED_POINTS):
            blocks = [_merge(block, most) for block in blocks]
            lengths = np.array([len(block) for block in blocks], np.int64)
            count = _enumerate(_padded(blocks), lengths, budget, work_limit, piece, column, rank, rows, alive,
                               transient, executed, ends, single, 1 << 40, room)  # fmt: skip
            if count >= 0:
                break
    if count == 0:
        return None
    picks = room[:count].copy()
    times = np.stack([blocks[k][picks[:, k], column[s], FORWARD:] + ends[s] for s, k in enumerate(piece)], axis=1)
    flat = times.reshape(count, -1)
    order = np.lexsort(flat.T[::-1])
    flat = np.ascontiguousarray(flat[order])
    kept = order[pareto(flat, np.zeros((count, 0), np.int64))]
    times, picks = times[kept], picks[kept]
    if vague:  # besides lower bounds one real point, so that plans can be made
        picks = np.full_like(picks, -1)
        exact = [values[start:stop] for start, stop in spans]
        at = _greedy(_padded(exact), spans[:, 1] - spans[:, 0], budget, piece, column, rows, alive, transient, executed)
        if at[0] >= 0:
            real = np.stack([exact[k][at[k], column[s], FORWARD:] + ends[s] for s, k in enumerate(piece)])
            times, picks = np.concatenate([times, real[None]]), np.concatenate([picks, at[None]])
    return times, picks, vague


def _merge(block: Int64, most: int) -> Int64:
    """At most `most` points: neighbours in input-gradient time replaced by their least values."""
    if len(block) <= most:
        return block
    edges = np.arange(most) * len(block) // most
    merged: Int64 = np.minimum.reduceat(block, edges)
    return merged


def _padded(blocks: list[Int64]) -> Int64:
    longest = max(len(block) for block in blocks)
    result = np.zeros((len(blocks), longest, *blocks[0].shape[1:]), np.int64)
    for k, block in enumerate(blocks):
        result[k, : len(block)] = block
    return result


@njit(cache=True)
def _fits(  # type: ignore[no-untyped-def]
    at, depth, block, least, piece, column, rows, alive, transient, budget
):
    """Whether every memory row holds, pieces beyond `depth` with their least values."""
    for row in range(len(rows)):
        used = np.int64(0)
        largest = np.int64(0)
        for s in range(len(piece)):
            live = rows[row, s]
            if not alive[row, s]:
                continue
            k = piece[s]
            if k <= depth:
                used += live * block[k, at[k], column[s], ACTIVATION]
                peak = block[k, at[k], column[s], TRANSIENT]
            else:
                used += live * least[k, column[s], ACTIVATION]
                peak = least[k, column[s], TRANSIENT]
            largest = max(largest, peak, transient[s])
        if used + largest > budget[row]:
            return False
    return True


@njit(cache=True)
def _greedy(block, lengths, budget, piece, column, rows, alive, transient, executed):  # type: ignore[no-untyped-def]
    """Picks that fit: from the fastest points on, always the change that saves most memory for its time; or -1."""
    pieces = len(lengths)
    at = np.zeros(pieces, np.int64)
    while True:
        worst, over = -1, np.int64(0)
        for row in range(len(rows)):
            used, largest = np.int64(0), np.int64(0)
            for s in range(len(piece)):
                if alive[row, s]:
                    used += rows[row, s] * block[piece[s], at[piece[s]], column[s], ACTIVATION]
                    largest = max(largest, block[piece[s], at[piece[s]], column[s], TRANSIENT], transient[s])
            if used + largest - budget[row] > over:
                worst, over = row, used + largest - budget[row]
        if worst < 0:
            return at
        best, best_k, best_i = 0.0, -1, -1
        for k in range(pieces):
            for i in range(at[k] + 1, lengths[k]):
                saved, slower = np.int64(0), np.int64(1)
                for s in range(len(piece)):
                    if piece[s] == k:
                        now, then = block[k, at[k], column[s]], block[k, i, column[s]]
                        saved += rows[worst, s] * (now[ACTIVATION] - then[ACTIVATION])
                        slower += executed[s] * max(0, then[2] + then[3] + then[4] - now[2] - now[3] - now[4])
                if min(saved, over) / slower > best:  # saving more than is needed is worth nothing
                    best, best_k, best_i = min(saved, over) / slower, k, i
        if best_k < 0:
            at[0] = -1
            return at
        at[best_k] = best_i


@njit(cache=True)
def _most_active(at, last, block, piece, rows, alive, transient, budget):  # type: ignore[no-untyped-def]
    """Most activation memory that the last piece may keep beside the points of the other pieces (one table each)."""
    most = np.int64(1) << 60
    for row in range(len(rows)):
        left = budget[row]
        largest = np.int64(0)
        own = np.int64(0)
        for s in range(len(piece)):
            live = rows[row, s]
            if not alive[row, s]:
                continue
            largest = max(largest, transient[s])
            if piece[s] == last:
                own += live
            else:
                left -= live * block[piece[s], at[piece[s]], 0, ACTIVATION]
                largest = max(largest, block[piece[s], at[piece[s]], 0, TRANSIENT])
        if own:
            most = min(most, (left - largest) // own)
    return most


@njit(cache=True)
def _joint_prices(block, lengths, budget, work_limit, piece, rank, rows, executed, ends, price):  # type: ignore[no-untyped-def]
    """Price work and activation memory of one rank together, so that together they prune more than each alone.

    `price[k, p]` becomes work of point p of piece k plus mu times its activation memory in the fullest row. What fits
    has a total of at most the returned limit, for any mu >= 0; the mu with the greatest least total is searched for.
    One table each. Floating point; the limit has a margin far above its errors.
    """
    pieces = len(lengths)
    full, fullest = 0, np.int64(-(1 << 62))
    for row in range(len(rows)):
        over = -budget[row]
        for s in range(len(piece)):
            over += rows[row, s] * block[piece[s], 0, 0, ACTIVATION]
        if over > fullest:
            full, fullest = row, over
    owner = 0
    for s in range(len(piece)):
        if rows[full, s] > 0:
            owner = rank[s]
    weight, active = np.zeros(pieces), np.zeros(pieces)
    for s in range(len(piece)):
        if rank[s] == owner:
            weight[piece[s]] += executed[s]
            active[piece[s]] += rows[full, s]
    constant = 0.0
    for s in range(len(piece)):
        if rank[s] == owner:
            constant += executed[s] * (ends[s, 0] + ends[s, 1] + ends[s, 2])
    low, high, mu, best = 0.0, 1e6, 0.0, -1e300
    for _ in range(50):
        middle = (low + high) / 2 if best > -1e300 else 0.0  # mu = 0 first
        total = constant - middle * budget[full]
        used = 0.0
        for k in range(pieces):
            least, at = 1e300, 0.0
            for p in range(lengths[k]):
                time = block[k, p, 0, 2] + block[k, p, 0, 3] + block[k, p, 0, 4]
                value = weight[k] * time + middle * active[k] * block[k, p, 0, ACTIVATION]
                if value < least:
                    least, at = value, active[k] * block[k, p, 0, ACTIVATION]
            total += least
            used += at
        if total > best:
            best, mu = total, middle
        if used > budget[full]:
            low = middle
        else:
            high = middle
    for k in range(pieces):
        for p in range(lengths[k]):
            time = block[k, p, 0, 2] + block[k, p, 0, 3] + block[k, p, 0, 4]
            price[k, p] = weight[k] * time + mu * active[k] * block[k, p, 0, ACTIVATION]
    limit = work_limit[owner] - constant + mu * budget[full]
    return limit + 1e-9 * abs(limit) + 1.0


@njit(cache=True)
def _enumerate(  # type: ignore[no-untyped-def]
    block,
    lengths,
    budget,
    work_limit,
    piece,
    column,
    rank,
    rows,
    alive,
    transient,
    executed,
    ends,
    single,
    most_trials,
    room,
):
    """Write the picks of all useful combinations to `room`; their number, or -1 when there are too many.

    With `single` only the input-gradient time differs between a piece's points, which stand in its order, so of the
    last piece only the fastest point that fits is of use.
    """
    pieces = len(lengths)
    least = np.empty((pieces, block.shape[2], block.shape[3]), np.int64)
    for k in range(pieces):
        for t in range(block.shape[2]):
            for c in range(block.shape[3]):
                least[k, t, c] = block[k, 0, t, c]
                for i in range(1, lengths[k]):
                    least[k, t, c] = min(least[k, t, c], block[k, i, t, c])
    at = np.zeros(pieces, np.int64)
    work = np.empty(len(work_limit), np.int64)
    last = pieces - 1
    count = trials = 0
    if single and _fits(at, last, block, least, piece, column, rows, alive, transient, budget):
        lengths = np.ones(pieces, np.int64)  # the fastest point of every piece
    price = np.zeros((pieces, block.shape[1]))
    price_limit = 0.0
    price_after, price_before = np.zeros(pieces + 1), np.zeros(pieces + 1)
    if single:
        price_limit = _joint_prices(
            block, lengths, budget, work_limit, piece, rank, rows, executed, ends, price
        )  # fmt: skip
        for k in range(pieces - 1, -1, -1):
            cheapest = price[k, 0]
            for i in range(1, lengths[k]):
                cheapest = min(cheapest, price[k, i])
            price_after[k] = price_after[k + 1] + cheapest
        if price_after[0] > price_limit:
            return 0
    limit_last = lengths[last]
    most_active = _most_active(at, last, block, piece, rows, alive, transient, budget) if last == 0 else np.int64(0)
    depth = 0
    at[0] = -1
    while depth >= 0:
        at[depth] += 1
        if single and depth == last:
            while at[last] < limit_last and block[last, at[last], 0, 0] > most_active:
                at[last] += 1
        elif single:
            room_left = price_limit - price_before[depth] - price_after[depth + 1]
            while at[depth] < lengths[depth] and price[depth, at[depth]] > room_left:
                at[depth] += 1
        if at[depth] >= (limit_last if depth == last else lengths[depth]):
            depth -= 1
            continue
        trials += 1
        if trials > most_trials:
            return -1
        work[:] = 0
        for s in range(len(piece)):
            k = piece[s]
            for c in range(3):
                time = ends[s, c]
                time += block[k, at[k], column[s], 2 + c] if k <= depth else least[k, column[s], 2 + c]
                work[rank[s]] += executed[s] * time
        slow = False
        for r in range(len(work)):
            slow |= work[r] > work_limit[r]
        if slow:
            if single:  # later points of this piece are slower still
                depth -= 1
            continue
        if not _fits(at, depth, block, least, piece, column, rows, alive, transient, budget):
            continue
        if depth < last:
            price_before[depth + 1] = price_before[depth] + price[depth, at[depth]]
            depth += 1
            at[depth] = -1
            if single and depth == last:
                most_active = _most_active(at, last, block, piece, rows, alive, transient, budget)
            continue
        if count == len(room):
            return -1
        room[count] = at
        count += 1
        if single:
            if pieces == 2:
                limit_last = at[last]  # with a slower first piece only a faster second one is of use
            depth -= 1
    return count
