"""Pictures: they show what the plan says, in every format and for every schedule."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from prism_cp.errors import PlanError, UsageError
from prism_cp.pipeline import schedule_names
from prism_cp.report.plot import picture_format, plan_picture, require_matplotlib
from prism_cp.report.timeline import plan_timeline
from tests.report.schedule_plans import NUM_MICROBATCHES, schedule_plan
from tests.sample_plan import infeasible_plan

pytest.importorskip("matplotlib")
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    return ["".join(element.itertext()).strip() for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("schedule", schedule_names())
def test_the_timeline_has_a_bar_for_every_op(schedule):
    from prism_cp.report.plot import drawing
    from prism_cp.report.plot_plan import plan_figure

    plan = schedule_plan(schedule)
    timeline = plan_timeline(plan)
    with drawing():
        figure = plan_figure(plan)
    panel = figure.axes[0]
    bars = [path for collection in panel.collections for path in collection.get_paths()]
    ends = sum((rank.head > 0) + (rank.tail > 0) + (plan.barrier > 0) for rank in plan.ranks)
    assert len(bars) == timeline.num_ops + ends
    left = min(path.vertices[:, 0].min() for path in bars)
    right = max(path.vertices[:, 0].max() for path in bars)
    assert (left, right) == pytest.approx((0, plan.step_time_s * 1e3))  # the axis is in milliseconds
    rows = {round(path.vertices[:, 1].mean()) for path in bars}
    assert rows == set(range(plan.layout.pp))


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipe", "zb-v"])
def test_memory_and_time_bars_add_up(schedule):
    from prism_cp.report.plot import drawing
    from prism_cp.report.plot_plan import plan_figure

    plan = schedule_plan(schedule)
    with drawing():
        memory, times = plan_figure(plan).axes[-2:]
    for axes, expected in (
        (memory, [rank.memory_gib.total for rank in plan.ranks]),
        (times, [plan.pipeline_time * plan.time_unit_s * 1e3] * plan.layout.pp),
    ):
        ends = [0.0] * plan.layout.pp
        for bar in axes.patches:
            rank = round(bar.get_y() + bar.get_height() / 2)
            assert bar.get_x() == pytest.approx(ends[rank])
            ends[rank] += bar.get_width()
        assert ends == pytest.approx(expected)
    capacity = [line for line in memory.lines if set(line.get_xdata()) == {plan.ranks[0].memory_gib.capacity}]
    assert len(capacity) == 1


def test_a_long_run_is_cut_and_says_so():
    plan = schedule_plan("1f1b")
    whole = texts(plan_picture(plan, ".svg").decode())
    cut = texts(plan_picture(plan, ".svg", 1).decode())
    assert not any("not shown" in text for text in whole)
    said = [text for text in cut if "not shown" in text]
    timeline = plan_timeline(plan)
    hidden = timeline.cut(1)
    share = (hidden.last_start - hidden.first_end) / (timeline.pipeline_time + timeline.barrier)
    assert len(said) == 1
    assert f"{100 * share:.0f} % of the step" in said[0]
    assert {str(microbatch) for microbatch in range(NUM_MICROBATCHES)} <= set(whole)


def test_formats_and_equal_files_for_equal_plans():
    plan = schedule_plan("zb-v")
    svg = plan_picture(plan, ".svg")
    assert svg == plan_picture(plan, ".svg")
    assert plan_picture(plan, ".png").startswith(b"\x89PNG\r\n")
    page = plan_picture(plan, ".html").decode()
    picture = page[page.index("<svg") : page.index("</svg>") + len("</svg>")]
    assert "sample: Proved optimal" in " ".join(texts(picture))
    assert len(re.findall(r"<tr>", page)) == 2 + 5 + len(plan.virtual_stages)
    assert "http://" not in re.sub(r'xmlns(:\w+)?="[^"]*"|<metadata>.*?</metadata>', "", page, flags=re.DOTALL)


@pytest.mark.parametrize("name", ["plan", "plan.pdf", "plan.", "plan.svg.gz", ".svg"])
def test_other_suffixes_are_refused(name):
    with pytest.raises(UsageError, match=r"accepted: a file name ending in \.svg, \.png, \.html"):
        picture_format(Path(name))
    assert picture_format(Path("PLAN.SVG")) == ".svg"


def test_a_plan_without_layout_is_refused():
    with pytest.raises(PlanError, match="layout: is null"):
        plan_picture(infeasible_plan(), ".svg")


def test_without_matplotlib_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"pip install 'prism_cp\[plot\]'"):
        require_matplotlib()
