"""Certificates: every level is reached on an instance small enough, and a wrong claim is not confirmed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from prism_cp.certify import Certificate, certify
from prism_cp.inputs.instance import Instance
from prism_cp.inputs.load import load_instance
from prism_cp.result import SearchResult
from prism_cp.search.options import SearchOptions
from prism_cp.search.solve import solve_instance

TINY = Path(__file__).parents[1] / "instances" / "tiny"


@pytest.fixture(scope="module")
def solved() -> tuple[Instance, SearchResult]:
    instance = load_instance(TINY / "memory-tight-4.yaml")
    return instance, solve_instance(instance, SearchOptions(workers=1))


def test_every_level(solved: tuple[Instance, SearchResult]) -> None:
    certificate = certify(*solved)
    assert certificate.levels == ("bound", "reproved", "cross-engine", "exhaustive")
    assert certificate.details["exhaustive"]["objective"] == solved[1].objective
    assert certificate.details["reproved"]["by_joint_model"] > 0


def test_a_claim_above_the_optimum_is_contradicted(solved: tuple[Instance, SearchResult]) -> None:
    instance, result = solved
    assert result.objective is not None
    worse = replace(result, objective=result.objective + 1, bound=result.objective + 1)
    certificate = certify(instance, worse)
    assert certificate.levels == ("bound",)
    assert "contradiction" in certificate.details["reproved"]


def test_a_claim_below_the_optimum_is_not_confirmed(solved: tuple[Instance, SearchResult]) -> None:
    instance, result = solved
    assert result.objective is not None
    better = replace(result, objective=result.objective - 1, bound=result.objective - 1)
    assert not {"cross-engine", "exhaustive"} & set(certify(instance, better).levels)


def test_an_unproved_result_has_no_level(solved: tuple[Instance, SearchResult]) -> None:
    instance, result = solved
    assert certify(instance, replace(result, proved=False)) == Certificate()


def test_layouts_are_proved_one_by_one_where_the_joint_model_is_too_slow(
    solved: tuple[Instance, SearchResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance, result = solved
    monkeypatch.setattr("prism_cp.certify.prove_nothing_better", lambda *_, **__: None)
    by_columns = certify(instance, result).details["reproved"]
    assert by_columns["by_columns"] == by_columns["layouts_opened"]
    monkeypatch.setattr("prism_cp.certify._refuted_by_columns", lambda *_: None)
    certificate = certify(instance, result)
    assert "reproved" in certificate.levels
    assert certificate.details["reproved"]["by_stage_model"] == by_columns["layouts_opened"]


def test_a_plan_found_by_columns_contradicts(
    solved: tuple[Instance, SearchResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance, result = solved
    assert result.objective is not None
    monkeypatch.setattr("prism_cp.certify.prove_nothing_better", lambda *_, **__: None)
    worse = replace(result, objective=result.objective + 1, bound=result.objective + 1)
    certificate = certify(instance, worse)
    assert certificate.levels == ("bound",)
    assert "contradiction" in certificate.details["reproved"]
