"""A second, purely linear encoding of a stage problem: plain integer columns and rows, no solver in it.

It shares nothing with the constraints of the stage model: boundaries are one-hot, maxima and buffers are 0/1 steps with
linking rows, and time is either a set of paths or explicit start times of every operation. The joint model posts it to
CP-SAT, the export hands it to mixed-integer solvers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from prism_cp.cp.exact import LiveVectors
from prism_cp.pipeline import PathCut, get_schedule
from prism_cp.pipeline.program import get_program
from prism_cp.pipeline.schedules.base import FORWARDS, Op, OpType
from prism_cp.stage_problem import Assignment, StageProblem, live_counts

Terms = dict[int, int]  # column -> coefficient


@dataclass
class Affine:
    """A linear form: integer coefficients of columns, and a constant."""

    terms: Terms = field(default_factory=dict)
    constant: int = 0

    def plus(self, other: Affine, scale: int = 1) -> Affine:
        """This form plus a multiple of another."""
        terms = dict(self.terms)
        for column, coefficient in other.terms.items():
            terms[column] = terms.get(column, 0) + scale * coefficient
        return Affine({c: a for c, a in terms.items() if a}, self.constant + scale * other.constant)


@dataclass(frozen=True)
class Column:
    """An integer column (`kind` "time" columns are integers in every optimal vertex and need not be declared so)."""

    name: str
    lower: int
    upper: int
    kind: Literal["choice", "time"]


@dataclass(frozen=True)
class Row:
    """``lower <= sum(terms) <= upper``; None: unbounded on that side."""

    name: str
    terms: Terms
    lower: int | None
    upper: int | None


class LinearRows:
    """The rows of one stage problem.

    Parameters
    ----------
    problem : StageProblem
    live_vectors
        Pareto-maximal live vectors per rank.
    time_limit : int
        Largest pipeline time of interest, in time units.

    Notes
    -----
    Time rows are added by `add_cuts` or `add_start_times`; without either the pipeline time is free.
    """

    def __init__(self, problem: StageProblem, live_vectors: LiveVectors, time_limit: int) -> None:
        self.problem, self.time_limit = problem, time_limit
        self.columns: list[Column] = []
        self.rows: list[Row] = []
        self._one_hot: list[dict[int, Affine]] = []
        self._prefix: list[list[Affine]] = []  # [boundary][kind]
        self._position: list[Affine] = []
        self.counts: list[list[list[Affine]]] = []
        self._add_boundaries()
        self._add_counts()
        self._add_memory(live_vectors)
        self.pipeline_time = self._column("pipeline_time", 0, time_limit, "time")
        self._add_times()

    # columns and rows -----------------------------------------------------------------------------------------------

    def _column(self, name: str, lower: int, upper: int, kind: Literal["choice", "time"] = "choice") -> Affine:
        self.columns.append(Column(name, lower, upper, kind))
        return Affine({len(self.columns) - 1: 1})

    def _row(self, name: str, form: Affine, lower: int | None, upper: int | None) -> None:
        """`lower <= form <= upper`, the form's constant moved to the sides."""
        self.rows.append(
            Row(
                name,
                form.terms,
                None if lower is None else lower - form.constant,
                None if upper is None else upper - form.constant,
            )
        )

    # the chain ------------------------------------------------------------------------------------------------------

    def _add_boundaries(self) -> None:
        total, prefixes = len(self.problem.layers), self.problem.prefix_counts
        for boundary in range(self.problem.num_pieces + 1):
            places = [0] if boundary == 0 else [total] if boundary == self.problem.num_pieces else range(total + 1)
            one_hot = {
                place: Affine({}, 1) if len(places) == 1 else self._column(f"cut_{boundary}_at_{place}", 0, 1)
                for place in places
            }
            chosen, position = Affine(), Affine()
            held = [Affine() for _ in prefixes]
            for place, literal in one_hot.items():
                chosen = chosen.plus(literal)
                position = position.plus(literal, place)
                held = [form.plus(literal, prefix[place]) for form, prefix in zip(held, prefixes, strict=True)]
            if len(places) > 1:
                self._row(f"one_place_{boundary}", chosen, 1, 1)
            self._one_hot.append(one_hot)
            self._position.append(position)
            self._prefix.append(held)

    def _add_counts(self) -> None:
        for piece in range(self.problem.num_pieces):
            least, most = self.problem.min_layers[piece], self.problem.max_layers[piece]
            self._row(f"size_{piece}", self._position[piece + 1].plus(self._position[piece], -1), least, most)
            self.counts.append([])
            for kind, costs in enumerate(self.problem.tables[0]):
                available = self.problem.prefix_counts[kind][-1]
                row = [
                    self._column(f"layers_{piece}_{kind}_{q}", 0, min(available, most))
                    for q in range(len(costs.strategies))
                ]
                gap = self._prefix[piece + 1][kind].plus(self._prefix[piece][kind], -1)
                for count in row:
                    gap = gap.plus(count, -1)
                self._row(f"layers_{piece}_{kind}", gap, 0, 0)
                self.counts[-1].append(row)

    # memory ---------------------------------------------------------------------------------------------------------

    def _add_memory(self, live_vectors: LiveVectors) -> None:
        problem = self.problem
        for rank, costs in enumerate(problem.ranks):
            stages = [i for i, stage in enumerate(problem.virtual_stages) if stage.rank == rank]
            always = self._buffers(rank, stages).plus(Affine({}, costs.fixed))
            optimizer = always
            for i in stages:
                stage = problem.virtual_stages[i]
                always = always.plus(Affine({}, stage.ends.static))
                optimizer = optimizer.plus(Affine({}, stage.ends.static + stage.ends.optimizer_step))
                for kind, row in enumerate(self.counts[stage.piece]):
                    layer = problem.tables[stage.table][kind]
                    for count in row:
                        always = always.plus(count, layer.static)
                        optimizer = optimizer.plus(count, layer.static + layer.optimizer_step)
            self._row(f"memory_{rank}_optimizer", optimizer, None, costs.capacity)
            steps: dict[tuple[int, ...], Affine] = {}
            for number, live in enumerate(live_vectors[rank]):
                counts = list(zip(stages, *live_counts(live, len(stages)), strict=True))
                used = tuple(i for i, n, d in counts if n + d)
                if used not in steps:
                    steps[used] = self._transient(f"{rank}_{len(steps)}", used)
                form = always.plus(steps[used])
                for i, n, d in counts:
                    stage = problem.virtual_stages[i]
                    form = form.plus(Affine({}, n * stage.ends.activation + d * stage.ends.deferred))
                    for kind, row in enumerate(self.counts[stage.piece]):
                        layer = problem.tables[stage.table][kind]
                        for count, strategy in zip(row, layer.strategies, strict=True):
                            form = form.plus(count, n * strategy.activation + d * layer.deferred)
                self._row(f"memory_{rank}_live_{number}", form, None, costs.capacity)

    def _transient(self, name: str, stages: Sequence[int]) -> Affine:
        """A column at least as large as every transient in use: one 0/1 column per strategy in use."""
        problem = self.problem
        largest = self._column(f"transient_{name}", 0, 1 << 60)
        top = 0
        for i in stages:
            stage = problem.virtual_stages[i]
            top = max(top, stage.ends.transient)
            self._row(f"transient_{name}_end_{i}", largest, stage.ends.transient, None)
            for kind, row in enumerate(self.counts[stage.piece]):
                for q, strategy in enumerate(problem.tables[stage.table][kind].strategies):
                    if strategy.transient <= stage.ends.transient:
                        continue
                    top = max(top, strategy.transient)
                    used = self._column(f"uses_{name}_{i}_{kind}_{q}", 0, 1)
                    self._row(f"uses_{name}_{i}_{kind}_{q}", row[q].plus(used, -self._upper(row[q])), None, 0)
                    self._row(f"transient_{name}_{i}_{kind}_{q}", largest.plus(used, -strategy.transient), 0, None)
        index = next(iter(largest.terms))
        self.columns[index] = Column(self.columns[index].name, 0, top, "choice")
        return largest

    def _buffers(self, rank: int, stages: Sequence[int]) -> Affine:
        total = Affine()
        pieces = sorted({self.problem.virtual_stages[i].piece for i in stages})
        for number, buffer in enumerate(self.problem.buffers):
            if buffer.virtual_stages.intersection(stages):
                total = total.plus(Affine({}, buffer.memory))
                continue
            counts = [count for piece in pieces for kind in buffer.kinds for count in self.counts[piece][kind]]
            held = self._column(f"buffer_{rank}_{number}", 0, 1)
            for position, count in enumerate(counts):
                self._row(f"buffer_{rank}_{number}_{position}", count.plus(held, -self._upper(count)), None, 0)
            total = total.plus(held, buffer.memory)
        return total

    def _upper(self, count: Affine) -> int:
        return self.columns[next(iter(count.terms))].upper

    # time -----------------------------------------------------------------------------------------------------------

    def _add_times(self) -> None:
        """Stage times, heads and tails as linear forms of the counts; tails are columns above two rows."""
        problem = self.problem
        self.forward: list[Affine] = []
        self.input_grad: list[Affine] = []
        self.weight_grad: list[Affine] = []
        self.head = [Affine({}, rank.head) for rank in problem.ranks]
        exposed = [Affine() for _ in problem.ranks]
        for i, stage in enumerate(problem.virtual_stages):
            ends = stage.ends
            forward, input_grad, weight_grad = (
                Affine({}, v) for v in (ends.forward, ends.input_grad, ends.weight_grad)
            )
            head, tail = Affine({}, ends.head), Affine({}, ends.reduce - ends.hideable)
            for kind, row in enumerate(self.counts[stage.piece]):
                layer = problem.tables[stage.table][kind]
                for count, strategy in zip(row, layer.strategies, strict=True):
                    forward = forward.plus(count, strategy.forward)
                    input_grad = input_grad.plus(count, strategy.input_grad)
                    weight_grad = weight_grad.plus(count, strategy.weight_grad)
                    head = head.plus(count, layer.head)
                    tail = tail.plus(count, layer.reduce - strategy.hideable)
            self.head[stage.rank] = self.head[stage.rank].plus(head)
            exposed[stage.rank] = exposed[stage.rank].plus(tail)
            for name, form, target in (
                ("forward", forward, self.forward),
                ("input_grad", input_grad, self.input_grad),
                ("weight_grad", weight_grad, self.weight_grad),
            ):
                column = self._column(f"{name}_{i}", 0, self.time_limit, "time")
                self._row(f"{name}_{i}", form.plus(column, -1), 0, 0)
                target.append(column)
        self.tail: list[Affine] = []
        for rank, costs in enumerate(problem.ranks):
            tail_column = self._column(
                f"tail_{rank}", costs.last_bucket, max(costs.last_bucket, self.time_limit), "time"
            )
            self._row(f"tail_{rank}", tail_column.plus(exposed[rank], -1), 0, None)
            self.tail.append(tail_column)

    def add_cuts(self, cuts: Sequence[PathCut]) -> None:
        """The pipeline time is at least each path."""
        for number, cut in enumerate(cuts):
            form = Affine({}, -cut.p2p * self.problem.p2p).plus(self.pipeline_time, cut.scale)
            for columns, coefficients in (
                (self.forward, cut.forward),
                (self.input_grad, cut.input_grad),
                (self.weight_grad, cut.weight_grad),
                (self.head, cut.head),
                (self.tail, cut.tail),
            ):
                for column, coefficient in zip(columns, coefficients, strict=True):
                    if coefficient:
                        form = form.plus(column, -coefficient)
            self._row(f"path_{number}", form, 0, None)

    def num_ops(self) -> int:
        """Operations of one step: start-time columns that `add_start_times` would add."""
        problem = self.problem
        return len(get_program(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches).op_type)

    def add_start_times(self) -> None:
        """One column per operation for its start; rows for what it waits for. Exact without any path."""
        problem = self.problem
        program = get_program(problem.schedule, problem.pp, problem.vpp, problem.num_microbatches)
        starts: list[Affine] = []
        durations: list[Affine] = []
        for number in range(len(program.op_type)):
            op = program.op(number)
            start = self._column(f"start_{number}", 0, self.time_limit, "time")
            starts.append(start)
            pair = int(program.opening[number])
            durations.append(self._duration(op) if pair < 0 else self._pair(program.op(pair), op, number))
            if op.type is OpType.OVERLAPPED_FORWARD:
                durations[-1] = Affine()  # its pair's length stands with the backward
            rank, data = int(program.rank_predecessor[number]), int(program.data_predecessor[number])
            if rank >= 0:
                gap = start.plus(starts[rank], -1).plus(durations[rank], -1)
            else:
                gap = start.plus(self.head[int(program.rank[number])], -1)
            self._row(f"order_{number}", gap, 0, None)
            # an overlapped forward waits for the data of its partner as well
            block = int(program.block_predecessor[number])
            for name, before, crosses in (
                ("data", data, program.crosses[number]),
                ("block", block, program.block_crosses[number]),
            ):
                if before >= 0:
                    gap = start.plus(starts[before], -1).plus(durations[before], -1)
                    self._row(f"{name}_{number}", gap, problem.p2p if crosses else 0, None)
        for rank, ops in enumerate(program.rank_ops):
            last = int(ops[-1])
            gap = self.pipeline_time.plus(starts[last], -1).plus(durations[last], -1).plus(self.tail[rank], -1)
            self._row(f"end_{rank}", gap, 0, None)

    def _pair(self, forward: Op, backward: Op, number: int) -> Affine:
        """Length of an overlapped pair: a column above both lengths and above the overlap factor times their sum."""
        length = self._column(f"pair_{number}", 0, self.time_limit, "time")
        parts = self._duration(forward), self._duration(backward)
        factor = get_schedule(self.problem.schedule).overlap_factor
        for name, part in zip(("forward", "backward"), parts, strict=True):
            self._row(f"pair_{number}_{name}", length.plus(part, -1), 0, None)
        both = parts[0].plus(parts[1])
        scaled = Affine().plus(length, factor.denominator).plus(both, -factor.numerator)
        self._row(f"pair_{number}_both", scaled, 0, None)
        return length

    def _duration(self, op: Op) -> Affine:
        if op.type in FORWARDS:
            return self.forward[op.virtual_stage]
        if op.type is OpType.INPUT_GRAD:
            return self.input_grad[op.virtual_stage]
        if op.type is OpType.WEIGHT_GRAD:
            return self.weight_grad[op.virtual_stage]
        return self.input_grad[op.virtual_stage].plus(self.weight_grad[op.virtual_stage])

    def extract(self, values: Sequence[int]) -> Assignment:
        """The plan of a solution given as one value per column."""

        def value(form: Affine) -> int:
            return form.constant + sum(a * values[c] for c, a in form.terms.items())

        return Assignment(
            tuple(value(position) for position in self._position),
            tuple(tuple(tuple(value(n) for n in row) for row in piece) for piece in self.counts),
        )
