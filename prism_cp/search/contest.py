"""Contested layouts: decided one by one, best bound first, in one process or several."""

from __future__ import annotations

import multiprocessing
import time
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import replace

from prism_cp.cp.solve import StageSolution
from prism_cp.integer_tables import CostModel, build_stage_problem
from prism_cp.result import LayoutOutcome
from prism_cp.search.probe import annealed, has_many_pieces
from prism_cp.search.stage import solve_contested
from prism_cp.search.state import SearchState

POLL_S = 0.1
LARGE_CHAIN = 1_000  # layers
AHEAD = 4  # contested layouts that are kept ready while others wait


class Contest:
    """Solves the contested layouts of a search state until each is closed or the search is stopped."""

    def __init__(self, state: SearchState, cost_model: CostModel) -> None:
        self.state, self.cost_model = state, cost_model

    def run(self) -> None:
        """Solve everything that is contested."""
        state = self.state
        self._drop_excluded()
        # a large stage problem can keep native code busy past any limit; a process can be ended
        large = len(state.instance.model.chain) > LARGE_CHAIN
        if large or (state.options.workers > 1 and len(state.contested) > 1):
            self._run_processes()
        else:
            self._run_here()
        for outcome in state.contested:
            state.close(outcome, "open", "the search was stopped before it was decided")
        state.contested = []
        state.leave_open([state.units(seconds) for seconds in state.waiting.clear()])
        state.report("stopped" if state.counts["open"] else "done", force=True)

    def _drop_excluded(self) -> None:
        """Close what an improved incumbent has decided; sort the rest by bound."""
        state = self.state
        self._admit()
        kept = []
        for outcome in state.contested:
            if state.excludes(outcome.lower_bound):
                state.close(outcome, "no_better", "its bound reaches the incumbent")
            else:
                kept.append(outcome)
        state.contested = sorted(kept, key=lambda outcome: outcome.lower_bound)

    def _admit(self) -> None:
        """Let in waiting layouts until the least contested one is below all others; problems are built later."""
        state = self.state
        while not state.stopped():
            state.drop_waiting()
            found = state.waiting.least(state.target_s, state.stopped)
            least = min((outcome.lower_bound for outcome in state.contested), default=None)
            if found is None or (least is not None and least <= state.units(found[0]) and len(state.contested) > AHEAD):
                break
            state.waiting.take(found[1])
            layout, bound = found[1], state.units(found[0])
            if has_many_pieces(layout):  # to decide it may take long; another one's plan may make that needless
                state.contested.append(annealed(state, self.cost_model, layout, bound))
            else:
                state.contested.append(LayoutOutcome(layout, "open", bound))
        state.drop_waiting()

    def _limit(self, outcome: LayoutOutcome) -> int | None:
        assert outcome.problem is not None
        return None if self.state.target is None else self.state.target - outcome.problem.barrier

    def _take(self) -> LayoutOutcome:
        """The contested layout of least bound; the bound goes on counting while it is being solved."""
        outcome = self.state.contested.pop(0)
        if outcome.problem is None:
            problem = build_stage_problem(self.state.instance, outcome.layout, self.cost_model)
            outcome = replace(outcome, problem=problem)
        self.state.being_solved.append(outcome)
        return outcome

    def _run_here(self) -> None:
        state = self.state
        while state.contested and not state.stopped():
            outcome = self._take()
            self._settle(outcome, self._solve_in_thread(outcome))
            self._drop_excluded()

    def _solve_in_thread(self, outcome: LayoutOutcome) -> StageSolution:
        """Solve in a thread of its own, so that signals reach the main thread while CP-SAT runs."""
        state, problem = self.state, outcome.problem
        assert problem is not None
        arguments = (
            problem,
            outcome.lower_bound - problem.barrier,
            self._limit(outcome),
            outcome.assignment,
            state.remaining_s(),
            state.options.seed,
            state.stop,
        )
        with ThreadPoolExecutor(max_workers=1) as pool:
            future = pool.submit(solve_contested, *arguments)
            while True:
                done, _ = wait([future], timeout=POLL_S)
                if done:
                    return future.result()
                state.report()

    def _run_processes(self) -> None:
        state = self.state
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(max_workers=state.options.workers, mp_context=context)
        running: dict[Future[StageSolution], LayoutOutcome] = {}
        try:
            while (state.contested or running) and not state.stopped():
                while state.contested and len(running) < state.options.workers:
                    outcome = self._take()
                    assert outcome.problem is not None
                    problem = outcome.problem.replace(labels={})
                    future = pool.submit(
                        solve_contested,
                        problem,
                        outcome.lower_bound - problem.barrier,
                        self._limit(outcome),
                        outcome.assignment,
                        state.remaining_s(),
                        state.options.seed,
                    )
                    running[future] = outcome
                done, _ = wait(running, timeout=POLL_S, return_when=FIRST_COMPLETED)
                for future in done:
                    self._settle(running.pop(future), future.result())
                self._drop_excluded()
                state.report()
        finally:
            state.contested += running.values()
            state.being_solved = []
            processes = list((getattr(pool, "_processes", None) or {}).values())
            pool.shutdown(wait=False, cancel_futures=True)
            if running:
                for process in processes:
                    process.terminate()
            deadline = time.monotonic() + 5
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))

    def _settle(self, outcome: LayoutOutcome, solution: StageSolution) -> None:
        """Book what was found for one layout."""
        state = self.state
        problem = outcome.problem
        assert problem is not None
        state.deterministic_time += solution.deterministic_time
        lower = outcome.lower_bound
        if solution.bound is not None:
            lower = max(lower, solution.bound + problem.barrier)
        best, assignment = outcome.best, outcome.assignment
        if solution.assignment is not None and solution.pipeline_time is not None:
            value = solution.pipeline_time + problem.barrier
            if best is None or value < best:
                best, assignment = value, solution.assignment
        updated = LayoutOutcome(outcome.layout, "open", lower, best, "", problem, assignment, solution.cuts)
        if best is not None:
            state.improve(updated)
        if solution.status == "optimal":
            state.close(updated, "solved", "solved to its own optimum")
        elif solution.status == "infeasible":
            state.close(updated, "infeasible", "no plan fits in memory")
        elif solution.status == "no_better":
            state.close(updated, "no_better", "proved to have nothing below the incumbent")
        elif state.excludes(lower):
            state.close(updated, "no_better", "its bound reaches the incumbent")
        else:
            state.close(updated, "open", "stopped before it was decided")
        state.being_solved = [other for other in state.being_solved if other is not outcome]
