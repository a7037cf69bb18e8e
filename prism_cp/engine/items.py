"""Engine room: items, the ways one group of ranks can hold layers, each with the times its memory allows.

An item is one composition for every piece of the group. Its *points* are the Pareto-minimal times of its virtual stages
over all strategy multisets that fit every memory row of every rank of the group: all Pareto-maximal live vectors, the
largest transient of the stages that are live, shared buffers, and the optimizer step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from prism_cp.engine.chain import Chain, Group
from prism_cp.engine.choices import ACTIVATION, COLUMNS, FORWARD, INPUT_GRAD, TRANSIENT, Choices, Points
from prism_cp.engine.combinations import Combinations
from prism_cp.engine.greedy import greedy_picks
from prism_cp.engine.item_memory import item_points as memory_points
from prism_cp.engine.item_memory import layers_of, memory_rows
from prism_cp.engine.item_types import Items, join_items
from prism_cp.engine.limits import Limits, SearchStopped
from prism_cp.engine.outline import fullest_rows, make_outline
from prism_cp.engine.points import POINTS_AT_ONCE, item_points, only_input_grad, suffix_credit
from prism_cp.engine.pricing import ItemMemory, PriceFinder
from prism_cp.engine.strategy_classes import StrategyClasses, one_class_a_kind
from prism_cp.stage_problem import StageProblem

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class _Setting:
    """Per virtual stage of a group: position of its piece, of its table among the piece's, of its rank, and its end."""

    piece: Int64
    column: Int64
    rank: Int64
    ends: Int64  # [stages, 3]
    hide_ends: Int64


class ItemMaker:
    """Makes the items of every group of a stage problem for a time limit.

    Parameters
    ----------
    classes
        Those that the compositions of the chain tell apart; by default none.
    """

    def __init__(self, problem: StageProblem, chain: Chain, classes: StrategyClasses | None = None) -> None:
        self.problem, self.chain = problem, chain
        self.classes = classes or one_class_a_kind(problem)
        self._choices: dict[tuple[int, ...], Choices] = {}
        self.combinations = Combinations(problem, chain)
        self.executed = self.combinations.executed
        self._finders: dict[tuple[int, ...], PriceFinder] = {}
        self._sorted: dict[tuple[tuple[int, ...], int], Points] = {}

    def points(self, piece: int, composition: int) -> Points:
        """Points of a piece's composition, least input-gradient time first."""
        tables = self.tables(piece)
        key = (tables, composition)
        if key not in self._sorted:
            maker = self._choices.setdefault(tables, Choices(self.problem, tables))
            points = self._in_classes(maker.points(tuple(self.chain.vectors[composition].tolist())), composition)
            order = np.lexsort((points.values[:, 0, ACTIVATION], points.values[:, 0, INPUT_GRAD]))
            self._sorted[key] = Points(
                points.values[order], points.credit[order], points.counts[order], points.most_hidden
            )
        return self._sorted[key]

    def _in_classes(self, points: Points, composition: int) -> Points:
        """Those with the composition's layers in every class; what stands for several multisets may be one of them."""
        if len(self.classes.kind) == self.problem.num_kinds:
            return points
        right = (points.counts @ self.classes.member == self.chain.parts[composition]).all(axis=1)
        right |= points.counts[:, 0] < 0
        return Points(points.values[right], points.credit[right], points.counts[right], points.most_hidden)

    def tables(self, piece: int) -> tuple[int, ...]:
        """Distinct tables the piece's virtual stages are costed with."""
        return tuple(sorted({stage.table for stage in self.problem.virtual_stages if stage.piece == piece}))

    def coarse(self, group: Group, limit: int, wanted: Int64 | None = None) -> Items:
        """Items whose ranks' own work stays within `limit` time units, every piece as fast as it could be alone.

        Lower bounds of what `make` gives, in a fraction of its time. Where a strategy changes nothing but the
        input-gradient time of one stage, outlines say what memory costs beyond that.
        """
        return self.bounds(group, *self._wanted(group, limit, wanted))

    def bounds(self, group: Group, choice: Int64, budget: Int64, head: Int64, reduce: Int64) -> Items:
        """The same for given compositions, what memory rows leave them [items, rows], heads and reductions."""
        values, _, offset, most, setting = self._prepared(group, choice)
        least = np.full((*offset.shape[:2], *values.shape[1:]), np.int64(1) << 40)
        for k in range(offset.shape[0]):
            for local in np.unique(choice[:, k]):
                least[k, local] = values[offset[k, local, 0] : offset[k, local, 1]].min(axis=0)
        piece, column = setting.piece, setting.column
        chosen = least[piece, choice[:, piece], column]
        base = chosen[:, :, FORWARD:] + setting.ends
        hidden = np.zeros((len(choice), len(piece)), np.int64)
        for s, k in enumerate(piece):
            table = np.array(
                [most[k].get(local, np.zeros(1 + column.max()))[column[s]] for local in range(least.shape[1])]
            )
            hidden[:, s] = table[choice[:, k]] + setting.hide_ends[s]
        outline, full, memory = None, (None, None), None
        one_stage_each = len(set(piece.tolist())) == len(piece) and len(group.ranks) == 1
        one_table = len({self.problem.virtual_stages[i].table for i in group.stages}) == 1
        if one_stage_each and one_table and only_input_grad(values, offset):
            rows, deferred, transient = self._rows(group)
            alive = (rows > 0) | (deferred > 0)
            memory = self._memory(group, choice, budget, values, offset, rows, alive, transient, piece)
            largest = np.maximum(chosen[:, :, TRANSIENT], transient)  # [items, stages]
            budget = budget - np.where(alive[None], largest[:, None, :], 0).max(axis=2)
            outline = make_outline(values, offset, rows, piece)
            full = fullest_rows(choice, budget, outline.memory, outline.first, outline.live)
        numbers = np.arange(len(choice))
        return Items(
            group, choice, base, np.arange(len(choice) + 1), np.zeros_like(base), hidden, hidden, head, reduce,
            np.full_like(choice, -1), numbers, np.ones(len(choice), np.bool_), outline, *full, memory,
        )  # fmt: skip

    def make(
        self,
        group: Group,
        limit: int,
        wanted: Int64 | None = None,
        limits: Limits | None = None,
        most_trials: int | None = None,
        most_points: int | None = None,
    ) -> Items:
        """Items whose ranks' own work stays within `limit` time units, with all their points.

        Parameters
        ----------
        wanted : int64 array [items, pieces]
            Only items with these choices.
        most_trials
            Strategy combinations looked at per item before its points are merged.
        most_points
            Of an item before they are filtered; with more they are merged. By default `POINTS_AT_ONCE`.

        Raises
        ------
        SearchStopped
            A limit was reached on the way.
        """
        choice, budget, head, reduce = self._wanted(group, limit, wanted)
        values, credit, offset, most, setting = self._prepared(group, choice)
        piece, column = setting.piece, setting.column
        rows, deferred, transient = self._rows(group)
        alive = (rows > 0) | (deferred > 0)
        single = only_input_grad(values, offset)
        if single:
            suffix_credit(values, credit, offset)
        bucket = np.array([self.problem.ranks[r].last_bucket for r in group.ranks], np.int64)
        executed = self.executed[list(group.stages)]
        parts: list[tuple[Any, ...]] = []
        keep_items = []
        room = np.empty((most_points or POINTS_AT_ONCE, len(group.pieces)), np.int64)
        for i in range(len(choice)):
            if limits is not None and limits.reached():
                raise SearchStopped
            points = item_points(
                choice[i], budget[i], limit - head[i] - bucket, values, offset, piece, column, setting.rank, rows,
                alive, transient, executed, setting.ends, single, room, most_trials,
            )  # fmt: skip
            if points is None:
                continue
            times, picks, vague = points
            keep_items.append(i)
            highest = np.array([most[k][choice[i, k]] for k in range(len(group.pieces))])[piece, column]
            highest = highest + setting.hide_ends
            hidden = np.tile(highest, (len(times), 1))
            if single and not vague:
                picked = offset[piece, choice[i, piece], 0][None, :] + picks[:, piece]
                hidden = credit[picked, column] + setting.hide_ends
            parts.append((times, picks, hidden, highest, vague, picks[-1, 0] >= 0))
        return join_items(group, choice[keep_items], head[keep_items], reduce[keep_items], parts)

    def sketch(self, group: Group, limit: int, wanted: Int64 | None = None) -> Items:
        """Items as `make` gives them, each with one point only: strategies that fit, found by greed.

        Good enough to look for plans, in a fraction of the time; they bound nothing.
        """
        choice, budget, head, reduce = self._wanted(group, limit, wanted)
        values, credit, offset, _, setting = self._prepared(group, choice)
        piece, column = setting.piece, setting.column
        rows, deferred, transient = self._rows(group)
        alive = (rows > 0) | (deferred > 0)
        executed = self.executed[list(group.stages)]
        picks = greedy_picks(
            choice, budget, values, offset, piece, column, rows, alive, transient, executed,
            only_input_grad(values, offset),
        )  # fmt: skip
        keep = picks[:, 0] >= 0
        choice, picks = choice[keep], picks[keep]
        point = offset[piece, choice[:, piece], 0] + picks[:, piece]
        times = values[point, column, FORWARD:] + setting.ends
        hidden = credit[point, column] + setting.hide_ends
        numbers = np.arange(len(choice))
        return Items(
            group, choice, times, np.arange(len(choice) + 1), np.zeros_like(times), hidden, hidden, head[keep],
            reduce[keep], picks, numbers, np.zeros(len(choice), np.bool_),
        )  # fmt: skip

    def outlined(self, group: Group, limit: int, wanted: Int64) -> Items | None:
        """Items bounded by outlines, with a greedy point each to make plans of; None where outlines do not apply."""
        bounds, plans = self.coarse(group, limit, wanted), self.sketch(group, limit, wanted)
        if bounds.outline is None:
            return None
        base = max(len(self.chain.pieces[piece]) for piece in group.pieces)
        weights = np.array([base**k for k in range(bounds.choice.shape[1])], np.int64)
        real = np.isin(bounds.choice @ weights, plans.choice @ weights)  # both are in the same order
        counts = 1 + real
        first = np.append(0, np.cumsum(counts))
        item = np.repeat(np.arange(len(real)), counts)
        extra, pick = np.zeros((first[-1], *bounds.base.shape[1:]), np.int64), bounds.pick[item]
        extra[first[:-1][real] + 1] = plans.base - bounds.base[real]
        pick[first[:-1][real] + 1] = plans.pick
        return Items(
            group, bounds.choice, bounds.base, first, extra, bounds.credit[item], bounds.most_hidden, bounds.head,
            bounds.reduce, pick, first[1:] - 1, bounds.vague, bounds.outline, bounds.full_rows, bounds.excess,
            bounds.memory,
        )  # fmt: skip

    def _wanted(self, group: Group, limit: int, wanted: Int64 | None) -> tuple[Int64, Int64, Int64, Int64]:
        """Combinations of compositions, of the wanted items only."""
        choice, budget, head, reduce = self.combinations.of_group(group, limit, wanted)
        if wanted is None:
            return choice, budget, head, reduce
        base = max(len(self.chain.pieces[piece]) for piece in group.pieces)
        weights = np.array([base**k for k in range(choice.shape[1])], np.int64)
        keep = np.isin(choice @ weights, wanted @ weights)
        return choice[keep], budget[keep], head[keep], reduce[keep]

    def _prepared(self, group: Group, choice: Int64) -> tuple[Int64, Int64, Int64, list[dict[int, Int64]], _Setting]:
        """Stacked points of the compositions in `choice` (see `_stack`) and what is fixed about the group's stages."""
        stages = [self.problem.virtual_stages[i] for i in group.stages]
        num_tables = max(len(self.tables(piece)) for piece in group.pieces)
        used = [np.unique(choice[:, k]) for k in range(len(group.pieces))]
        setting = _Setting(
            np.array(group.piece_of, np.int64),
            np.array([self.tables(stage.piece).index(stage.table) for stage in stages], np.int64),
            np.array(group.rank_of, np.int64),
            np.array([(s.ends.forward, s.ends.input_grad, s.ends.weight_grad) for s in stages], np.int64),
            np.array([stage.ends.hideable for stage in stages], np.int64),
        )
        return *_stack(self, group, used, num_tables), setting

    def _rows(self, group: Group) -> tuple[Int64, Int64, Int64]:
        """Live and deferred micro-batches [rows, stages] of the group, and the transients of the stages' ends."""
        rows, waiting, _ = self.combinations.rows(group)
        ends = [self.problem.virtual_stages[i].ends.transient for i in group.stages]
        return rows, waiting, np.array(ends, np.int64)

    def _memory(
        self,
        group: Group,
        choice: Int64,
        budget: Int64,
        values: Int64,
        offset: Int64,
        rows: Int64,
        alive: NDArray[np.bool_],
        transient: Int64,
        piece: Int64,
    ) -> ItemMemory:
        """Memory rows of items whose pieces have one stage each, on one rank and with one table."""
        stage = np.argsort(piece, kind="stable").astype(np.int64)
        ends = np.where(alive, transient, 0).max(axis=1)
        if group.ranks not in self._finders:
            kinds = self.classes.costs(self.problem.tables[self.problem.virtual_stages[group.stages[0]].table])
            self._finders[group.ranks] = PriceFinder(memory_rows(kinds, rows, alive, ends, stage))
        finder = self._finders[group.ranks]
        return ItemMemory(
            finder.rows, layers_of(self.chain, group, choice), budget.astype(np.float64),
            memory_points(values, offset, rows, alive, ends, stage), finder,
        )  # fmt: skip


def _stack(
    maker: ItemMaker, group: Group, used: list[Int64], num_tables: int
) -> tuple[Int64, Int64, Int64, list[dict[int, Int64]]]:
    """Points of all used compositions in a row: values, credit, [piece, composition, (start, stop)], most hidden."""
    values, credit = [], []
    widest = max(len(maker.chain.pieces[piece]) for piece in group.pieces)
    offset = np.zeros((len(group.pieces), widest, 2), np.int64)
    most: list[dict[int, Int64]] = []
    total = 0
    for k, piece in enumerate(group.pieces):
        hidden = {}
        for local in used[k].tolist():
            points = maker.points(piece, int(maker.chain.pieces[piece][local]))
            size, tables = points.credit.shape
            block = np.zeros((size, num_tables, COLUMNS), np.int64)
            block[:, :tables] = points.values
            values.append(block)
            padded = np.zeros((size, num_tables), np.int64)
            padded[:, :tables] = points.credit
            credit.append(padded)
            hidden[local] = np.pad(points.most_hidden, (0, num_tables - tables))
            offset[k, local] = total, total + size
            total += size
        most.append(hidden)
    if not values:
        return np.zeros((0, num_tables, COLUMNS), np.int64), np.zeros((0, num_tables), np.int64), offset, most
    return np.concatenate(values), np.concatenate(credit), offset, most
