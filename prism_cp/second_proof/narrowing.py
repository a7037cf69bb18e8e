"""Second proof room: items and columns that some choice of the other components could complete within the time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from prism_cp.second_proof.columns import MOST_SHARES, ColumnMaker, Columns, Items, TooManyColumnsError
from prism_cp.second_proof.paths import Paths
from prism_cp.second_proof.totals import NEVER, budgets

Int64 = NDArray[np.int64]


def possible_items(
    makers: Sequence[ColumnMaker], paths: Paths, chain: Int64, target: int
) -> tuple[list[Items], list[Int64]] | None:
    """Items of every component that no path forbids, and what they take of every path at least [items, paths].

    They are bounded by their quickest strategies, then with prices on their memory. None when a component has none.

    Parameters
    ----------
    chain : int64 array [kinds]
        Layers of the chain.

    Raises
    ------
    TooManyColumnsError
    """
    room = paths.room(target)
    fixed = [maker.fixed_share(paths)[0] for maker in makers]
    items = [maker.items(paths, room - (sum(fixed) - own)) for maker, own in zip(makers, fixed, strict=True)]
    shares: list[Int64] = []
    for bound in (ColumnMaker.quickest, ColumnMaker.priced):
        shares = [bound(maker, paths, each) for maker, each in zip(makers, items, strict=True)]
        kept = surviving([each.layers for each in items], shares, chain, room)
        if kept is None:
            return None
        items = [each.take(which) for each, which in zip(items, kept, strict=True)]
        shares = [share[which] for share, which in zip(shares, kept, strict=True)]
    return items, shares


def possible_columns(
    makers: Sequence[ColumnMaker],
    paths: Paths,
    chain: Int64,
    target: int,
    items: Sequence[Items],
    shares: Sequence[Int64],
    deadline: float | None,
) -> list[Columns] | None:
    """Columns of some items that no path forbids; None when a component has none.

    They are enumerated component by component, each time beside the best that is known of the others.

    Parameters
    ----------
    chain : int64 array [kinds]
        Layers of the chain.
    shares : sequence of int64 arrays [items, paths]
        What the items take of every path at least.

    Raises
    ------
    TooManyColumnsError
    TimeoutError
        The deadline, as `time.perf_counter` counts, has passed.
    """
    room, shares = paths.room(target), list(shares)
    held: list[Items | Columns] = [*items]
    for number, maker in enumerate(makers):
        budget = _budgets([each.layers for each in held], shares, chain, room)[number]
        made = maker.columns(paths, Items(held[number].content, held[number].layers), budget, deadline)
        held[number] = made
        if sum(len(each.layers) for each in held) * len(paths.cuts) > MOST_SHARES:
            raise TooManyColumnsError(f"the columns are worth more than {MOST_SHARES:,} numbers")
        shares[number] = paths.values(maker.component, made.times, made.head, made.tail)
        kept = surviving([each.layers for each in held], shares, chain, room)
        if kept is None:
            return None
        held = [each.take(which) for each, which in zip(held, kept, strict=True)]
        shares = [share[which] for share, which in zip(shares, kept, strict=True)]
    return [each for each in held if isinstance(each, Columns)]


def surviving(
    layers: Sequence[Int64], shares: Sequence[Int64], chain: Int64, room: Int64
) -> list[NDArray[np.intp]] | None:
    """What every component keeps once nothing more is forbidden; None when one keeps nothing.

    Parameters
    ----------
    layers : sequence of int64 arrays [rows, kinds]
    shares : sequence of int64 arrays [rows, paths]
    room : int64 array [paths]
    """
    kept = [np.arange(len(each)) for each in layers]
    while all(len(which) for which in kept):
        left = [each[which] for each, which in zip(layers, kept, strict=True)]
        share = [each[which] for each, which in zip(shares, kept, strict=True)]
        allowed = _budgets(left, share, chain, room)
        masks = [np.all(own <= most, axis=1) for own, most in zip(share, allowed, strict=True)]
        if all(mask.all() for mask in masks):
            return kept
        kept = [which[mask] for which, mask in zip(kept, masks, strict=True)]
    return None


def _budgets(layers: Sequence[Int64], shares: Sequence[Int64], chain: Int64, room: Int64) -> list[Int64]:
    """Most that every row of every component may take of every path."""
    totals, least, numbers = [], [], []
    for each, share in zip(layers, shares, strict=True):
        distinct, number = np.unique(each, axis=0, return_inverse=True)
        number = number.reshape(-1)
        order = np.argsort(number, kind="stable")
        first = np.searchsorted(number[order], np.arange(len(distinct)))
        totals.append(distinct)
        least.append(np.minimum(np.minimum.reduceat(share[order], first), NEVER))
        numbers.append(number)
    allowed = budgets(least, totals, chain, room)
    return [each[number] for each, number in zip(allowed, numbers, strict=True)]
