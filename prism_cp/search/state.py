"""The incumbent, what became of every layout, and the bound that follows from it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from prism_cp.check_layout import layout_faults
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.layout import Layout
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.partition import applicable, partition_bound
from prism_cp.relaxation import RelaxationBounds
from prism_cp.result import Ending, LayoutOutcome, SearchResult, SearchStatistics, Status
from prism_cp.search.candidates import Batch
from prism_cp.search.options import Progress, SearchOptions
from prism_cp.search.value import plan_value
from prism_cp.stage_problem import Assignment

PROGRESS_PERIOD_S = 0.25


class SearchState:
    """Everything a running search knows. All values are pipeline time plus barrier in time units."""

    def __init__(
        self,
        instance: Instance,
        options: SearchOptions,
        layouts_total: int,
        started: float,
        progress: Callable[[Progress], None] | None,
        stop: threading.Event | None,
    ) -> None:
        self.instance, self.options, self.layouts_total = instance, options, layouts_total
        self.started, self.progress = started, progress
        self.stop = stop or threading.Event()
        self.incumbent: LayoutOutcome | None = None
        self.contested: list[LayoutOutcome] = []
        self.being_solved: list[LayoutOutcome] = []  # taken out of `contested`, not closed yet
        self.closed: list[LayoutOutcome] = []  # endings worth telling about, with their numbers
        self.waiting = RelaxationBounds(instance.layout.allow_empty_middle_stages)
        self.counts: dict[Ending, int] = {"pruned": 0, "no_better": 0, "solved": 0, "infeasible": 0, "open": 0}
        self.open_bounds: list[int] = []
        self.layouts_seen = 0
        self.unexpanded_bound: int | None = None
        self.deterministic_time = 0.0
        self._last_report = 0.0

    # -- limits --------------------------------------------------------------------------------------------------------

    @property
    def objective(self) -> int | None:
        """The incumbent's value."""
        return None if self.incumbent is None else self.incumbent.best

    @property
    def target(self) -> int | None:
        """What a plan must reach to matter: below the incumbent by one unit, or by the gap asked for."""
        if self.objective is None:
            return None
        return min(self.objective - 1, math.ceil(self.objective * (1 - self.options.gap)) - 1)

    def excludes(self, bound: int) -> bool:
        """Whether a layout with this lower bound cannot matter any more."""
        return self.target is not None and bound > self.target

    def excluded(self, bounds: np.ndarray) -> np.ndarray:
        """`excludes`, elementwise."""
        if self.target is None:
            return np.zeros(len(bounds), dtype=bool)
        return np.asarray(bounds > self.target)

    @property
    def deadline(self) -> float | None:
        """When the time limit is reached, as `time.monotonic` counts."""
        limit = self.options.time_limit_s
        return None if limit is None else self.started + limit

    def remaining_s(self) -> float | None:
        """Seconds left of the time limit."""
        return None if self.deadline is None else self.deadline - time.monotonic()

    def stopped(self) -> bool:
        """Whether the user or the time limit ends the search."""
        remaining = self.remaining_s()
        return self.stop.is_set() or (remaining is not None and remaining <= 0)

    # -- events --------------------------------------------------------------------------------------------------------

    def seen(self, count: int) -> None:
        """`count` more layouts were expanded."""
        self.layouts_seen += count

    def prune(self, count: int) -> None:
        """`count` layouts cannot beat the incumbent by their bound."""
        self.counts["pruned"] += count

    def mark_infeasible(self, count: int) -> None:
        """`count` layouts have no plan that fits."""
        self.counts["infeasible"] += count

    def leave_open(self, bounds: Sequence[int]) -> None:
        """Layouts that a stop left undecided."""
        self.counts["open"] += len(bounds)
        self.open_bounds += bounds

    def leave_rest(self, bound: int | None, rest: int) -> None:
        """`rest` layouts of cells never expanded: pruned when their bound excludes them, open otherwise."""
        if not rest or bound is None:
            return
        if self.excludes(bound):
            self.prune(rest)
        else:
            self.counts["open"] += rest
            self.open_bounds.append(bound)

    def improve(self, outcome: LayoutOutcome) -> bool:
        """Take `outcome` as incumbent if it is better; the old one becomes a further layout."""
        assert outcome.best is not None
        if self.objective is not None and outcome.best >= self.objective:
            return False
        self.incumbent = outcome
        self.report(f"incumbent: {describe(outcome.layout)}", force=True)
        return True

    def take_known(self, layout: Layout, assignment: Assignment, cost_model: CostModel) -> None:
        """Start from a plan that was found elsewhere, if it fits here. Its layout still has to be decided."""
        if layout_faults(self.instance, layout):
            return
        problem = build_stage_problem(self.instance, layout, cost_model)
        try:
            value = plan_value(problem, assignment)
        except ValueError:  # another chain, or more memory than there is here
            return
        self.improve(LayoutOutcome(layout, "open", 0, value, "", problem, assignment))

    @property
    def target_s(self) -> float:
        """A bound in seconds beyond this one excludes a layout."""
        return math.inf if self.target is None else (self.target + 1) * self.instance.time_unit_s

    def units(self, seconds: float) -> int:
        """A bound in time units, rounded down."""
        return math.floor(seconds / self.instance.time_unit_s)

    def drop_waiting(self) -> None:
        """Count what an improved incumbent or a better bound excludes."""
        self.count_left_out(*self.waiting.drop(self.target_s))

    def count_left_out(self, beyond: int, hopeless: int) -> None:
        """Layouts beyond the target, and layouts in which nothing fits; with a target, nothing that keeps to it."""
        if self.target is None:
            self.mark_infeasible(hopeless)
        else:
            beyond += hopeless
        self.prune(beyond)

    def open_layout(self, batch: Batch, row: int, bound: int) -> None:
        """Build the stage problem, bound it by the partition walk and try the plan found there.

        Tables from the floating-point costs, never worse than the exact ones, end most layouts; the exact tables, which
        take longer to make, serve the rest.
        """
        self.report()
        layout = batch.layout(row)
        quick = batch.optimistic_problem(row)
        target = self.target
        if applicable(quick):
            partition = partition_bound(quick, None if target is None else target - quick.barrier)
            if partition.lower_bound is None:
                self.close(LayoutOutcome(layout, "infeasible", bound, reason="no plan fits in memory"))
                return
            bound = max(bound, partition.lower_bound + quick.barrier)
            if self.excludes(bound):
                self.close(
                    LayoutOutcome(layout, "no_better", bound, reason="its partition bound reaches the incumbent")
                )
                return
        self._open_exactly(layout, bound, batch.candidates.cost_model)

    def _open_exactly(self, layout: Layout, bound: int, cost_model: CostModel) -> None:
        problem = build_stage_problem(self.instance, layout, cost_model)
        limit = None if self.target is None else self.target - problem.barrier
        if not applicable(problem):
            self.contested.append(LayoutOutcome(layout, "open", bound, problem=problem))
            return
        partition = partition_bound(problem, limit)
        if partition.lower_bound is None:
            self.close(LayoutOutcome(layout, "infeasible", bound, reason="no plan fits in memory"))
            return
        lower = max(bound, partition.lower_bound + problem.barrier)
        best = None
        if partition.assignment is not None:
            best = plan_value(problem, partition.assignment)  # looks at memory, too
        outcome = LayoutOutcome(layout, "open", lower, best, "", problem, partition.assignment)
        if best is not None:
            self.improve(outcome)
        if best is not None and best == lower:
            self.close(outcome, "solved", "partition bound met by its plan")
        elif self.excludes(lower):
            self.close(outcome, "no_better", "its partition bound reaches the incumbent")
        else:
            self.contested.append(outcome)
        self.report()

    def close(self, outcome: LayoutOutcome, ending: Ending | None = None, reason: str | None = None) -> None:
        """Count a layout as ended and remember it for the report.

        The incumbent's own layout is not "no better" but solved: nothing in it is below what it gave.
        """
        ending = ending or outcome.ending
        own = self.incumbent is not None and self.incumbent.layout == outcome.layout
        if ending == "no_better" and own and outcome.best == self.objective:
            ending = "solved"
        final = LayoutOutcome(
            outcome.layout,
            ending,
            outcome.lower_bound,
            outcome.best,
            outcome.reason if reason is None else reason,
            outcome.problem,
            outcome.assignment,
            outcome.cuts,
        )
        self.counts[final.ending] += 1
        if final.ending == "open":
            self.open_bounds.append(final.lower_bound)
        self.closed.append(final)

    # -- results -------------------------------------------------------------------------------------------------------

    def bound(self) -> int | None:
        """Proven lower bound over all layouts; None when every layout is infeasible."""
        undecided = [*self.contested, *self.being_solved]
        bounds = list(self.open_bounds) + [outcome.lower_bound for outcome in undecided]
        waiting = self.waiting.least_bound()
        if waiting is not None:
            bounds.append(self.units(waiting))
        if self.objective is not None:
            target = self.target
            assert target is not None
            bounds.append(min(self.objective, target + 1))
        return min(bounds) if bounds else None

    def report(self, message: str = "", force: bool = False) -> None:
        """Tell the progress callback, at most a few times a second."""
        now = time.monotonic()
        if self.progress is None or (not force and now - self._last_report < PROGRESS_PERIOD_S):
            return
        self._last_report = now
        unit = self.instance.time_unit_s
        bound = self.running_bound()
        objective = self.objective
        gap = None if objective is None or bound is None else (objective - bound) / objective
        left = self.layouts_total - sum(self.counts.values()) + self.counts["open"]
        self.progress(
            Progress(
                now - self.started,
                None if objective is None else objective * unit,
                None if bound is None else bound * unit,
                gap,
                self.layouts_total,
                left,
                message,
            )
        )

    def running_bound(self) -> int | None:
        """`bound`, cells not yet expanded included."""
        bounds = [b for b in (self.bound(), self.unexpanded_bound) if b is not None]
        return min(bounds) if bounds else None

    def result(self) -> SearchResult:
        """The answer as it stands."""
        objective, bound = self.objective, self.bound()
        undecided = self.counts["open"] > 0
        proved = (objective is not None and bound == objective) or (objective is None and not undecided)
        status: Status
        if objective is not None:
            status = "optimal" if proved else "feasible"
        else:
            status = "infeasible" if proved else "unknown"
        others = [o for o in self.closed if self.incumbent is None or o.layout != self.incumbent.layout]
        others.sort(key=lambda o: (o.best is None, o.best if o.best is not None else o.lower_bound))
        statistics = SearchStatistics(
            self.layouts_total,
            self.counts["pruned"],
            self.counts["no_better"],
            self.counts["solved"],
            self.counts["infeasible"],
            self.counts["open"],
            time.monotonic() - self.started,
            self.deterministic_time,
        )
        return SearchResult(
            status, proved, objective, bound, self.incumbent, tuple(others[: self.options.top_k]),
            tuple(self.closed), statistics,
            self.options.seed, self.options.workers, self.stop.is_set(),
        )  # fmt: skip


def describe(layout: Layout) -> str:
    """A layout in one line."""
    parts = [f"{name} {value}" for name, value in layout.as_dict().items() if name not in ("schedule", "cp_comm", "sp")]
    return f"{layout.schedule} " + " ".join(parts) + (" sp" if layout.sp else "")
