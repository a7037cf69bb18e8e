"""The open layouts of a search, best bound first, without building more than needs be.

Cells are bounded all at once by their work; only those that can still beat the incumbent are expanded into layouts, in
order of their bound and in batches. A layout leaves here as excluded (by a bound or because nothing fits) or as a
candidate whose stage problem has to be built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from prism_cp.formulas.time_results import LayerTimes
from prism_cp.inputs.layout import MIRRORED, OVERLAPPING, SCHEDULES, Layout
from prism_cp.integer_tables import CostModel, optimistic_stage_problem, row_of
from prism_cp.layouts.admissible import AdmissibleLayouts, Columns, distinct_rows, layout_at
from prism_cp.layouts.bounds import GPIPE, ONE_F_ONE_B, OTHER, SLACK, cell_bounds, possible, total_work, work_bounds
from prism_cp.layouts.memory_bounds import hopeless_cells
from prism_cp.pipeline_schedule import overlap_factor, pipeline_schedule
from prism_cp.relaxation import ClassKey, RelaxationBounds, RelaxationCosts, brackets_of
from prism_cp.relaxation.costs import TRANSIENT
from prism_cp.stage_problem import StageProblem

FIRST_BATCH, BATCH = 64, 1024
BOUND_CODES = {"gpipe": GPIPE, "1f1b": ONE_F_ONE_B}
ENTRIES_PER_CALL = 20_000_000  # boundary pairs looked at between two checks for a stop
LADDER_FACTOR, LADDER_STEPS = 1.1, 12
KERNEL_FIELDS = ("tp", "sp", "cp", "cp_comm", "ep", "etp", "mbs")  # what a layer's times depend on below ZeRO 2


def never() -> bool:
    """Nothing stops the computation."""
    return False


class Candidates:
    """Iterates over layouts in order of a lower bound.

    Parameters
    ----------
    admissible : AdmissibleLayouts
    cost_model : CostModel
    """

    def __init__(self, admissible: AdmissibleLayouts, cost_model: CostModel) -> None:
        self.admissible, self.cost_model = admissible, cost_model
        instance = admissible.instance
        self.unit_s = instance.time_unit_s
        self.prefix = cost_model.prefix_counts
        self.any_schedule = any(name not in BOUND_CODES for name in instance.layout.schedules)
        # What a rank's time is at least of its work: an overlapped pair takes no less than half of both ops.
        overlapped = max(float(overlap_factor(instance)), 0.5)
        self.work_shares = np.array([overlapped if name in OVERLAPPING else 1.0 for name in SCHEDULES])
        self.cell_bounds = self._cell_bounds()
        self.order = np.argsort(self.cell_bounds, kind="stable")

    def bound_of_rest(self, position: int) -> int | None:
        """Least bound, in time units, of the cells from `position` on in bound order; None when there are none."""
        if position >= len(self.order):
            return None
        return math.floor(float(self.cell_bounds[self.order[position]]) / self.unit_s)

    def _cell_bounds(self) -> np.ndarray:
        """Work bound of every cell in seconds.

        ZeRO stage and schedule are those that make it least; then a layer's times depend on `KERNEL_FIELDS` only, which
        far fewer rows share.
        """
        cells = self.admissible.cells
        first, kernel = distinct_rows([cells[name] for name in KERNEL_FIELDS])
        size = len(first)
        columns = {name: column[first] for name, column in cells.items()}
        columns["zero"], columns["vpp"] = np.zeros(size, np.int64), np.ones(size, np.int64)
        columns["schedule"] = np.full(size, SCHEDULES.index("interleaved"))  # it hides what any other one hides
        times = self.cost_model.evaluate_times(columns)
        kind_cost = np.stack([_fastest(kind, size) for kind in times.kinds], axis=1)
        ends = [_fastest(end, size) for end in (times.embedding, times.head)]
        work, largest = total_work(kind_cost, ends[0], ends[1], self.prefix[:, -1])
        share = min(self.work_shares[SCHEDULES.index(name)] for name in self.admissible.instance.layout.schedules)
        bounds = cell_bounds(work[kernel], largest[kernel], cells["pp"], cells["num_microbatches"], self.any_schedule)
        return np.asarray(share * bounds)

    def drop_hopeless(self, position: int) -> int:
        """Leave out the cells from `position` on in which nothing fits; returns how many layouts they hold."""
        rest = self.order[position:]
        cells = {name: column[rest] for name, column in self.admissible.cells.items()}
        counts = self.prefix[:, -1].tolist()
        hopeless = hopeless_cells(self.admissible, self.cost_model.memory, counts, cells)
        dropped = {name: column[hopeless] for name, column in cells.items()}
        self.order = np.concatenate((self.order[:position], rest[~hopeless]))
        return self.admissible.num_layouts_of(dropped)

    def batches(self) -> Iterator[tuple[np.ndarray, Columns, int]]:
        """Batches of expanded layouts in order of their cells' bound: (cell indices, columns, next position)."""
        position, size = 0, FIRST_BATCH
        while position < len(self.order):
            cells = self.order[position : position + size]
            columns, cell_index = self.admissible.expand(cells)
            position += len(cells)
            size = min(BATCH, size * 4)
            yield cell_index, columns, position


def _fastest(layer: LayerTimes[Any], size: int) -> np.ndarray:
    """Least f + b + w over the strategies, float64[size]."""
    rows = zip(layer.forward_s, layer.input_grad_s, layer.weight_grad_s, strict=True)
    return np.ascontiguousarray(np.broadcast_to(np.min([f + b + w for f, b, w in rows], axis=0), size), np.float64)


class Batch:
    """Unrounded costs of some layouts, as the arrays `possible` needs."""

    def __init__(self, candidates: Candidates, columns: Columns) -> None:
        self.columns = columns
        self.candidates = candidates
        model = candidates.cost_model
        self.costs = costs = model.evaluate(columns)
        n = len(columns["tp"])
        self.size = n
        kinds = len(costs.kinds)
        width = max(len(kind.forward_s) for kind in costs.kinds)
        shape = (n, kinds, width)
        self.cost, self.activation = np.full(shape, 1e300), np.full(shape, 1e300)
        transient = np.full(shape, -1.0)
        self.forward = np.full((n, kinds), np.inf)
        static, self.step = np.zeros((n, kinds)), np.zeros((n, kinds))
        for k, kind in enumerate(costs.kinds):
            for q in range(len(kind.forward_s)):
                self.cost[:, k, q] = kind.forward_s[q] + kind.input_grad_s[q] + kind.weight_grad_s[q]
                self.activation[:, k, q] = kind.activation_bytes[q]
                transient[:, k, q] = kind.transient_bytes[q]
                self.forward[:, k] = np.minimum(self.forward[:, k], kind.forward_s[q])
            for q in range(len(kind.forward_s), width):
                self.cost[:, k, q], self.activation[:, k, q] = self.cost[:, k, 0], self.activation[:, k, 0]
            static[:, k] = kind.weight_bytes + kind.gradient_bytes + kind.optimizer_bytes
            self.step[:, k] = kind.optimizer_step_bytes
        self.static, self.transient = static, transient
        # a buffer that several kinds share is charged to the commonest of them: never more than a rank pays
        self.buffers = np.zeros((n, kinds))
        for size_bytes, owners, _, _ in costs.buffers:
            if owners:
                self.buffers[:, max(owners, key=lambda k: candidates.prefix[k, -1])] += size_bytes
        ends = np.zeros((n, 2, 4))
        for index, end in enumerate((costs.embedding, costs.head)):
            ends[:, index, 0] = end.forward_s[0] + end.input_grad_s[0] + end.weight_grad_s[0]
            ends[:, index, 1] = end.activation_bytes[0]
            ends[:, index, 2] = end.transient_bytes[0]
            ends[:, index, 3] = end.weight_bytes + end.gradient_bytes + end.optimizer_bytes
        self.ends = ends
        self.table = np.zeros((n, 4))
        self.table[:, 0], self.table[:, 1] = costs.capacity_bytes, costs.fixed_bytes
        self.table[:, 2], self.table[:, 3] = costs.head_s + costs.last_bucket_s, costs.p2p_s
        self.shape = np.zeros((n, 4), np.int64)
        codes = np.array([BOUND_CODES.get(name, OTHER) for name in SCHEDULES])
        self.shape[:, 0] = codes[columns["schedule"]]
        self.shape[:, 1], self.shape[:, 2] = columns["pp"], columns["num_microbatches"]
        self.shape[:, 3] = 0 if candidates.admissible.space.allow_empty_middle_stages else 1
        self.barrier_s = np.broadcast_to(costs.norm_s, n)
        share = candidates.work_shares[columns["schedule"]]
        fastest = share[:, None] * self.cost.min(axis=2)
        self.bounds_s = self.barrier_s + self.table[:, 2] + work_bounds(
            np.ascontiguousarray(fastest), share * ends[:, 0, 0], share * ends[:, 1, 0],
            candidates.prefix, columns["pp"], columns["num_microbatches"], np.ascontiguousarray(self.table[:, 3]),
            self.shape[:, 0],
        )  # fmt: skip

    def possible(self, rows: np.ndarray, incumbent: int | None, stopped: Callable[[], bool] = never) -> np.ndarray:
        """Which of `rows` may hold a plan better than the incumbent (pipeline time plus barrier, time units).

        Once `stopped` says so, the rest counts as possible.
        """
        if incumbent is None:
            targets = np.full(len(rows), np.inf)
        else:
            targets = (incumbent - 1) * self.candidates.unit_s - self.barrier_s[rows]
        return self._possible(rows, targets, stopped)

    def tighten(self, rows: np.ndarray, stopped: Callable[[], bool] = never) -> np.ndarray:
        """A better lower bound per row, in seconds: its work bound, raised step by step until a plan is possible."""
        bounds: np.ndarray = self.bounds_s[rows].copy()
        left = np.arange(len(rows))
        for _ in range(LADDER_STEPS):
            targets = bounds[left] * LADDER_FACTOR
            left = left[~self._possible(rows[left], targets - self.barrier_s[rows[left]], stopped)]
            if not len(left):
                break
            bounds[left] *= LADDER_FACTOR
        return bounds

    def _possible(self, rows: np.ndarray, targets: np.ndarray, stopped: Callable[[], bool]) -> np.ndarray:
        length = self.candidates.prefix.shape[1]
        size = max(1, ENTRIES_PER_CALL // length**2)
        fits = np.ones(len(rows), np.bool_)
        for start in range(0, len(rows), size):
            if stopped():
                break
            part = rows[start : start + size]
            fits[start : start + size] = possible(
                targets[start : start + size], self.candidates.prefix, self.cost[part], self.forward[part],
                self.activation[part], self.transient[part], self.static[part], self.step[part], self.buffers[part],
                self.ends[part], self.table[part], self.shape[part],
            )  # fmt: skip
        return fits

    def others(self) -> np.ndarray:
        """Layouts whose schedule has no bound of its own here, so that their relaxations bound them."""
        return np.asarray(self.shape[:, 0] == OTHER)

    def postpone(
        self, rows: np.ndarray, waiting: RelaxationBounds, target_s: float, stopped: Callable[[], bool] = never
    ) -> tuple[int, int]:
        """Put layouts among those waiting, with bounds from relaxations; see `RelaxationBounds.add`."""
        columns = self.columns
        sizes = np.stack([columns[name][rows] for name in ("schedule", "pp", "vpp", "num_microbatches")], axis=1)
        distinct, class_of = np.unique(sizes, axis=0, return_inverse=True)
        instance = self.candidates.admissible.instance
        keys: list[ClassKey] = [
            (pipeline_schedule(instance, SCHEDULES[schedule]), int(pp), int(vpp), int(m))
            for schedule, pp, vpp, m in distinct.tolist()
        ]
        costs = self.relaxation_costs(rows, target_s)
        bounds = self.bounds_s[rows] * (1 - SLACK)
        return waiting.add(
            keys, class_of.ravel(), costs, bounds, lambda row: self.layout(int(rows[row])), target_s, stopped
        )

    def relaxation_costs(self, rows: np.ndarray, target_s: float) -> RelaxationCosts:
        """The unrounded costs of some layouts as relaxations need them.

        Parameters
        ----------
        rows : int64 array
            Rows of the batch.
        target_s
            Plans that take longer do not matter.
        """
        costs, n = self.costs, len(rows)

        def of(value: Any) -> np.ndarray:
            return np.asarray(np.broadcast_to(value, self.size)[rows])

        counts = self.candidates.prefix[:, -1].astype(np.float64)
        present = np.flatnonzero(counts)
        width = self.cost.shape[2]
        strategies = np.zeros((n, len(counts), width, 5))
        kinds = np.zeros((n, len(counts), 3))
        for k, kind in enumerate(costs.kinds):
            for q in range(width):
                own = q if q < len(kind.forward_s) else 0
                fields = (
                    kind.forward_s, kind.input_grad_s, kind.weight_grad_s, kind.activation_bytes, kind.transient_bytes
                )  # fmt: skip
                for place, value in enumerate(field[own] for field in fields):
                    strategies[:, k, q, place] = of(value)
            kinds[:, k, 0] = self.static[rows, k]
            kinds[:, k, 1] = np.maximum(of(kind.deferred_bytes), strategies[:, k, :, 3].max(axis=1))
            kinds[:, k, 2] = of(kind.optimizer_s + kind.param_gather_s)
        ends = np.zeros((n, 2, 7))
        for index, end in enumerate((costs.embedding, costs.head)):
            state = end.weight_bytes + end.gradient_bytes + end.optimizer_bytes
            deferred = np.maximum(end.deferred_bytes, end.activation_bytes[0])
            times = (end.forward_s[0], end.input_grad_s[0], end.weight_grad_s[0], end.optimizer_s + end.param_gather_s)
            for place, value in enumerate((*times, end.activation_bytes[0], state, deferred)):
                ends[:, index, place] = of(value)
        room = self.table[rows, 0] - self.table[rows, 1]
        # A rank's time is at least its share of all its layers' passes, and it holds the state of every layer.
        share = self.candidates.work_shares[self.columns["schedule"][rows]]
        passes = self.columns["num_microbatches"][rows] * share
        mirrored = np.array([name in MIRRORED for name in SCHEDULES])[self.columns["schedule"][rows]]
        least = self.cost[rows][:, present].min(axis=(1, 2)) * passes / (1 + mirrored)
        most = np.minimum(counts.sum() * (1 + mirrored), room / np.maximum(1.0, kinds[:, present, 0].min(axis=1)))
        most = np.minimum(most, target_s / least)
        bracket, lows = brackets_of(strategies[:, present][..., TRANSIENT].reshape(n, -1))
        brackets = np.zeros((n, len(counts), width), np.int64)
        brackets[:, present] = bracket.reshape(n, len(present), width)
        buffer = self.buffers[rows][:, present].min(axis=1)
        layouts = np.stack(
            (
                self.barrier_s[rows] + self.table[rows, 2], self.table[rows, 3], room, buffer,
                of(costs.head.transient_bytes[0]),
            ),
            axis=1,
        )  # fmt: skip
        most = np.maximum(1.0, np.floor(most * (1 + SLACK)))
        return RelaxationCosts(strategies, brackets, lows, most, kinds, ends, layouts, counts)

    def optimistic_problem(self, row: int) -> StageProblem:
        """The stage problem of one layout for bounds, from the costs at hand."""
        model = self.candidates.cost_model
        return optimistic_stage_problem(model.instance, self.layout(row), model, row_of(self.costs, row))

    def layout(self, row: int) -> Layout:
        """One layout of the batch."""
        return layout_at(self.columns, row)
