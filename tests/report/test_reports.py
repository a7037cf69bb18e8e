"""Reports: what people read says what the plan says."""

from __future__ import annotations

import io
import json
import os
import re
from dataclasses import replace

import pytest
from rich.console import Console

from prism_cp.check import check_plan
from prism_cp.plan import Plan
from prism_cp.plan_builder import build_plan
from prism_cp.report.check_report import check_as_json, print_check
from prism_cp.report.critical_path import Contribution, critical_path, path_in_words
from prism_cp.report.explain_report import (
    infeasible_explanation,
    plan_explanation,
    print_infeasible,
    print_plan_explanation,
)
from prism_cp.report.infeasible import LayoutShortage, RankShortage
from prism_cp.report.numbers import gap, seconds
from prism_cp.report.plan_report import print_plan, why_lost
from prism_cp.report.progress import ProgressPrinter
from prism_cp.search.options import Progress
from prism_cp.search.relaxations import Relaxation
from tests.sample_plan import TABLES, infeasible_plan, sample_instance, sample_plan, sample_result


def printed(function, *arguments) -> str:
    stream = io.StringIO()
    function(*arguments, Console(file=stream, width=140, highlight=False))
    return stream.getvalue()


def test_a_plan_as_tables():
    plan = sample_plan()
    text = printed(print_plan, plan)
    for part in (
        "Proved optimal",
        seconds(plan.step_time_s),
        "MFU",
        "tp 2+sp, ep 2, etp 1, edp 2, dp 2, zero 1, pp 2, 1f1b, mbs 1 x 8 micro-batches",
        "embedding, 0-2 (1 mla+dense, 2 mla+moe)",
        "mla+moe: 1 none, 1 full",
        "3-4 (1 mla+moe, 1 mtp), head",
        f"{plan.ranks[0].memory_gib.total:.2f}",
        "20 layouts: 10 pruned by bound, 3 proved no better, 4 solved, 3 infeasible",
        "checked" if "checked" in plan.certificate.levels else "bound (bound equals step time, as integers)",
        "does not fit in memory",
        "a note",
        "2.76 of 2.82 after a margin of 2.0 %",
    ):
        assert part in text


def test_an_unproved_plan_says_so():
    result = sample_result()
    bound = result.objective // 2
    plan = build_plan(
        sample_instance(), replace(result, status="feasible", proved=False, bound=bound, others=()), tables=TABLES
    )
    text = printed(print_plan, plan)
    assert "not proved optimal" in text
    assert f"bound {seconds(bound * plan.time_unit_s)}, gap 50 %" in text


def test_infeasible_and_unknown_results_have_no_tables():
    text = printed(print_plan, infeasible_plan())
    assert "Proved infeasible: nothing fits" in text
    assert "prism-cp explain" in text
    assert "rank" not in text
    unknown = replace(sample_result(), status="unknown", proved=False, objective=None, best=None, others=(), bound=5)
    text = printed(print_plan, build_plan(sample_instance(), unknown, tables=TABLES))
    assert "Stopped before a plan was found (step time is at least 5.000 us)" in text


def test_reasons_of_alternatives():
    plan = sample_plan()
    solved, pruned, infeasible = plan.top_k
    difference = 100 * (solved.best_s / plan.step_time_s - 1)
    assert why_lost(solved, plan).startswith(f"its own optimum is {difference:.3g} % slower")
    assert "lower bound: at best" in why_lost(pruned, plan)
    assert "work bound" in why_lost(pruned, plan)
    assert why_lost(infeasible, plan) == "does not fit in memory (nothing fits)"
    tie = pruned.model_copy(update={"lower_bound_s": plan.step_time_s})
    assert "as fast as the plan" in why_lost(tie, plan)


def test_critical_path_adds_up_to_the_step():
    plan = sample_plan()
    path = critical_path(plan)
    assert path.total == plan.objective
    assert sum(one["share"] for one in path.as_json()) == pytest.approx(1)
    assert path.contributions[0].time == max(one.time for one in path.contributions)
    sentences = path_in_words(path)
    by_rank = {0: 0, 1: 0}
    for one in path.contributions:
        if one.rank is not None:
            by_rank[one.rank] += one.time
    busiest = max(by_rank, key=lambda rank: by_rank[rank])
    assert re.search(rf"of the step on ranks? .*\b{busiest}\b", sentences[0])
    assert any("passes of virtual stage" in sentence for sentence in sentences)


@pytest.mark.parametrize(("name", "factor"), [("forward", 3), ("input_grad", 5)])
def test_the_path_follows_the_slow_stage(name, factor):
    plan = sample_plan()
    slow = plan.virtual_stages[0].model_copy(update={name: factor * getattr(plan.virtual_stages[0], name)})
    path = critical_path(plan.model_copy(update={"virtual_stages": (slow, plan.virtual_stages[1])}))
    assert path.total > plan.objective
    assert "on rank 0;" in path_in_words(path)[0]


def test_equally_slow_ranks_are_named_together():
    path = critical_path(sample_plan())
    parts = [
        Contribution("forward", 0, 0, 5, 50), Contribution("backward", 1, 1, 4, 45), Contribution("head", None, 0, 1, 5)
    ]  # fmt: skip
    together = replace(path, contributions=tuple(parts), total=100)
    assert "spends 100.0 % of the step on ranks 0 and 1, about as much on each" in path_in_words(together)[0]


def test_explanation_as_text_and_json():
    plan = sample_plan()
    text = printed(print_plan_explanation, plan)
    assert "What bounds the step time" in text
    fullest = min(plan.ranks, key=lambda rank: rank.memory_gib.headroom)
    assert f"rank {fullest.rank} is fullest: {fullest.memory_gib.total:.2f} of 2.76 GiB" in text
    assert "free, besides a margin of 2.0 %" in text
    values = json.loads(json.dumps(plan_explanation(plan)))
    assert values["critical_path"][0]["time_s"] > 0
    assert [other["ending"] for other in values["alternatives"]] == ["solved", "pruned", "infeasible"]
    assert plan_explanation(infeasible_plan())["critical_path"] is None


def test_infeasible_explanation():
    terms = {"static": 3.0, "activations": 1.0, "transient": 0.0, "buffers": 0.0, "fixed": 0.5, "total": 4.5}
    terms |= {"capacity": 3.75, "margin": 0.25}
    shortage = LayoutShortage(sample_plan().layout, (RankShortage(1, "static", 0.75, terms),))
    relaxation = Relaxation("cluster.num_devices=16", "16 devices instead of 8", sample_result())
    unit = sample_instance().time_unit_s
    text = printed(print_infeasible, "sample", [shortage], [relaxation], unit)
    assert "rank 1 is 0.75 GiB short: it needs 4.50 of 3.75 GiB at least (a margin of 0.25 GiB is kept free)" in text
    assert "most of it weights, gradients" in text
    assert "--set cluster.num_devices=16: 16 devices instead of 8; step time" in text
    assert "(proved)" in text
    values = json.loads(json.dumps(infeasible_explanation("sample", [shortage], [relaxation], unit)))
    assert values["closest_layouts"][0]["ranks"][0]["short_gib"] == 0.75
    assert values["relaxations"][0]["step_time_s"] == pytest.approx(sample_plan().step_time_s)


def test_check_report():
    plan = sample_plan()
    good = check_plan(plan, sample_instance(), tables=TABLES)
    assert "Check passed" in printed(print_check, good, plan)
    wrong = Plan.model_validate({**plan.model_dump(), "p2p": plan.p2p + 1})
    bad = check_plan(wrong, sample_instance(), tables=TABLES)
    assert f"p2p: {plan.p2p + 1}, recomputed {plan.p2p}" in printed(print_check, bad, wrong)
    values = json.loads(check_as_json(bad, wrong))
    assert values["ok"] is False
    assert values["findings"][0]["key"] == "p2p"


@pytest.mark.parametrize(
    ("value", "text"),
    [(12.3456, "12.35 s"), (0.0123456, "12.35 ms"), (7e-6, "7.000 us"), (0.0, "0 s"), (1234.5, "1,234 s")],
)
def test_durations(value, text):
    assert seconds(value) == text


def test_gaps():
    assert gap(0.0) == "0 %"
    assert gap(0.00001234) == "0.00123 %"
    assert gap(None) == "unknown"


def test_progress_off_a_terminal_is_plain_and_throttled():
    stream = io.StringIO()
    with ProgressPrinter(Console(file=stream, width=200)) as printer:
        for layouts_left in range(50, 0, -1):
            printer.update(Progress(1.0, 0.5, 0.25, 0.5, 100, layouts_left, "working"))
    lines = stream.getvalue().splitlines()
    assert lines == ["   1.0 s  best 500.0 ms  bound 250.0 ms  gap 50 %  50 of 100 layouts left  working"]


def test_stopping_is_said_once():
    stream = io.StringIO()
    with ProgressPrinter(Console(file=stream, width=200)) as printer:
        printer.stopping()
        printer.stopping()
    assert stream.getvalue() == "stopping; once more to leave without a plan\n"


def test_progress_that_nobody_can_read_does_not_end_the_search():
    with open("/dev/full", "w", encoding="utf-8", buffering=1) as full:
        with ProgressPrinter(Console(file=full, width=200)) as printer:
            printer.update(Progress(1.0, None, None, None, 100, 100))
            printer.stopping()
        os.dup2(os.open(os.devnull, os.O_WRONLY), full.fileno())  # what is still buffered can be written


def test_quiet_progress_says_nothing():
    stream = io.StringIO()
    with ProgressPrinter(Console(file=stream), quiet=True) as printer:
        printer.update(Progress(1.0, None, None, None, 100, 100))
        printer.stopping()
    assert stream.getvalue() == ""
