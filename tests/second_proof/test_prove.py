"""The second proof says what enumeration says, on every schedule, and by columns that are really plans."""

from __future__ import annotations

import ast
import dataclasses
from pathlib import Path

import pytest

import prism_cp.second_proof
from prism_cp.baselines.exhaustive import exhaustive
from prism_cp.benchmark.family import FAMILY, family_problem
from prism_cp.cp.exact import evaluate, is_feasible
from prism_cp.engine import solve_with_engine
from prism_cp.second_proof import columns, prove, prove_no_plan
from prism_cp.stage_problem import StageProblem
from tests.engine.problems import small_problem

BLOCK = 25


def check(problem: StageProblem) -> None:
    """No plan below the optimum, one at it; none at all where there is none."""
    optimum = exhaustive(problem).pipeline_time
    if optimum is None:
        assert prove_no_plan(problem, 1 << 40).status == "no_plan"
        return
    assert prove_no_plan(problem, optimum - 1).status == "no_plan"
    found = prove_no_plan(problem, optimum)
    assert found.status == "plan"
    assert found.assignment is not None
    assert is_feasible(problem, found.assignment)
    assert evaluate(problem, found.assignment).pipeline_time == optimum


@pytest.mark.parametrize("block", range(16))
def test_second_proof_is_enumeration(block):
    for seed in range(BLOCK * block, BLOCK * (block + 1)):
        check(small_problem(seed))


@pytest.mark.parametrize("block", range(4))
def test_splitting_changes_nothing(block, monkeypatch):
    monkeypatch.setattr(prove, "TRIED_COLUMNS", 0)
    monkeypatch.setattr(prove, "TRIED_EFFORT", 1e-9)
    for seed in range(BLOCK * block, BLOCK * (block + 1)):
        check(small_problem(seed))


@pytest.mark.parametrize("block", range(4))
def test_telling_apart_what_is_hidden_changes_nothing(block, monkeypatch):
    monkeypatch.setattr(prove, "MOST_SETTLED", 0)
    for seed in range(BLOCK * block, BLOCK * (block + 1)):
        check(small_problem(seed))


@pytest.mark.parametrize("block", range(16))
def test_items_before_strategies_change_nothing(block, monkeypatch):
    monkeypatch.setattr(prove, "MOST_ENUMERATED", 0)
    for seed in range(BLOCK * block, BLOCK * (block + 1)):
        check(small_problem(seed))


@pytest.mark.parametrize("most", [0, columns.MOST_COLUMNS], ids=["too many columns", "columns"])
def test_strategies_of_a_choice_of_items(most, monkeypatch):
    """By its columns, or by a model of the strategies where they are too many."""
    used = []
    settle = prove._Search._settle_contents
    monkeypatch.setattr(prove._Search, "_settle_contents", lambda *given: used.append(1) or settle(*given))
    monkeypatch.setattr(prove, "MOST_ENUMERATED", 0)
    monkeypatch.setattr(columns, "MOST_COLUMNS", most)
    for seed in range(4 * BLOCK):
        check(small_problem(seed))
    assert bool(used) == (most == 0)


@pytest.mark.parametrize("block", range(4))
def test_splitting_items_changes_nothing(block, monkeypatch):
    monkeypatch.setattr(prove, "MOST_ENUMERATED", 0)
    monkeypatch.setattr(prove, "TRIED_COLUMNS", 0)
    monkeypatch.setattr(prove, "TRIED_EFFORT", 1e-9)
    for seed in range(BLOCK * block, BLOCK * (block + 1)):
        check(small_problem(seed))


@pytest.mark.parametrize("block", range(4))
def test_paths_told_one_by_one_change_nothing(block, monkeypatch):
    monkeypatch.setattr(prove, "FIRST_PATHS", 1)
    monkeypatch.setattr(prove, "MORE_PATHS", 1)
    for seed in range(BLOCK * block, BLOCK * (block + 1)):
        check(small_problem(seed))


@pytest.mark.parametrize("name", ["ds-interleaved-pp4-vpp2-m64-0.3", "qw-interleaved-pp4-vpp2-m64-0.3"])
def test_an_optimum_of_the_family_is_proved_again(name):
    problem = family_problem(next(case for case in FAMILY if case.name == name))
    result = solve_with_engine(problem)
    assert result.status == "optimal"
    assert prove_no_plan(problem, result.lower_bound - 1, result.cuts).status == "no_plan"
    assert prove_no_plan(problem, result.lower_bound, result.cuts).status == "plan"


def test_limits_leave_it_open(monkeypatch):
    problem = family_problem(next(case for case in FAMILY if case.schedule == "1f1b"))
    late = prove_no_plan(problem, 1 << 40, time_limit_s=0)
    assert (late.status, late.reason) == ("unknown", "time limit")
    monkeypatch.setattr(columns, "MOST_COLUMNS", 1)
    large = prove_no_plan(problem, 1 << 40)
    assert large.status == "unknown"
    assert "more than 1 columns" in large.reason


def test_the_room_knows_no_other_solver():
    for file in Path(prism_cp.second_proof.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom):
                module = node.module or ""
                assert not module.startswith(("prism_cp.engine", "prism_cp.cp", "prism_cp.relaxation")), file.name


@pytest.mark.parametrize("seed", range(24))
def test_large_numbers_do_not_overflow(seed):
    """Times and memory a million times as large leave the same plans."""
    problem = small_problem(seed)
    optimum = exhaustive(problem).pipeline_time
    larger = _scaled(problem, 10**6)
    if optimum is None:
        assert prove_no_plan(larger, 1 << 50).status == "no_plan"
        return
    assert prove_no_plan(larger, optimum * 10**6 - 1).status == "no_plan"
    assert prove_no_plan(larger, optimum * 10**6).status == "plan"


def _scaled(problem: StageProblem, factor: int) -> StageProblem:
    def times(costs: object) -> object:
        changes = {
            field.name: getattr(costs, field.name) * factor
            for field in dataclasses.fields(costs)  # type: ignore[arg-type]
            if isinstance(getattr(costs, field.name), int) and field.name not in ("rank", "piece", "table")
        }
        return dataclasses.replace(costs, **changes)  # type: ignore[type-var]

    tables = tuple(
        tuple(dataclasses.replace(times(kind), strategies=tuple(map(times, kind.strategies))) for kind in table)
        for table in problem.tables
    )
    return problem.replace(
        p2p=problem.p2p * factor,
        barrier=problem.barrier * factor,
        tables=tables,
        virtual_stages=tuple(dataclasses.replace(s, ends=times(s.ends)) for s in problem.virtual_stages),
        ranks=tuple(map(times, problem.ranks)),
        buffers=tuple(times(buffer) for buffer in problem.buffers),
    )
