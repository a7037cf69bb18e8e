"""Published configurations beside our plans: values, the verdict, what is refused, and the table."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from prism_cp.benchmark import compare_published
from prism_cp.benchmark.compare_published import Comparison, ComparisonFailed, compare, published_value
from prism_cp.benchmark.published import SHIPPED, PublishedConfiguration, published_configurations, read_published
from prism_cp.benchmark.published_table import published_json, published_markdown
from prism_cp.benchmark.time_terms import time_terms
from prism_cp.errors import ExitCode, InstanceError, UsageError
from prism_cp.estimation.estimate import estimate
from prism_cp.search.options import SearchOptions

TINY = """
instance:
  model:
    name: tiny
    hidden_size: 512
    vocab_size: 8192
    kinds:
      - name: gqa+dense
        attention: {type: self_attention, num_attention_heads: 8, num_key_value_heads: 4, head_dim: 64}
        feed_forward: {type: dense, intermediate_size: 1408}
    layers: [{kind: gqa+dense, count: 6}]
  cluster:
    name: 4-small-cards
    num_devices: 4
    device: {like: h100, name: small, memory_bytes: 1610612736}
    links: [{name: NVLink, domain_size: 4, bytes_per_s: 1.0e+11, efficiency: 0.8, latency_s: 5.0e-6}]
  profile: {like: megatron, context_bytes: 0, communicator_bytes: 16777216, workspace_bytes: 0}
  job: {gbs: 16, seq_len: 1024}
  layout: {schedule: [gpipe, 1f1b], recompute: [none, full], cp: 1, mbs: [1, 2]}
layout: {tp: 2, sp: true, pp: 2, mbs: 1, zero: 0, schedule: 1f1b}
stage_layers: [4, 2]
recompute: [{layers: 4, recompute: none}, {layers: 2, recompute: full}]
measured: {step_time_s: 0.5, tflops_per_device: 100}
source: made for this test
differs: [the sixth layer was painted green]
"""
OPTIONS = SearchOptions(workers=1, top_k=0)


@pytest.fixture(scope="module")
def tiny() -> PublishedConfiguration:
    return read_published("tiny", TINY)


@pytest.fixture(scope="module")
def row(tiny: PublishedConfiguration) -> Comparison:
    return compare(tiny, OPTIONS)


def test_the_published_run_is_read_as_stated(tiny: PublishedConfiguration) -> None:
    assert tiny.run.assignment.boundaries == (0, 4, 6)
    assert tiny.run.assignment.counts == (((4, 0),), ((0, 2),))
    assert (tiny.run.layout.dp, tiny.run.layout.num_microbatches) == (1, 16)
    assert tiny.measured_step_s == 0.5


def test_our_plan_is_never_slower_and_both_are_valued_alike(row: Comparison) -> None:
    assert row.plan.proved
    assert row.same_layout.proved
    assert row.plan.objective <= row.same_layout.objective
    assert row.same_layout.step_time_s <= row.value.step_time_s == estimate(row.published.run).iteration_s
    assert row.ratio == row.value.step_time_s / row.plan.step_time_s > 1
    assert replace(row.same_layout.layout.layout(), zero=0) == row.published.run.layout
    assert (row.value.fits, row.value.outside) == (True, ())


def test_the_search_starts_from_the_best_plan_of_the_published_layout(
    tiny: PublishedConfiguration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without any time for a search of its own, the plan is that one."""
    known_plans = []

    def solve_instance(instance, options, known=()):
        known_plans.append(known)
        limited = options if len(known_plans) == 1 else replace(options, time_limit_s=1e-9)
        return solve(instance, limited, known=known)

    solve = compare_published.solve_instance
    monkeypatch.setattr(compare_published, "solve_instance", solve_instance)
    row = compare(tiny, OPTIONS)
    assert [len(known) for known in known_plans] == [0, 1]
    assert row.plan.objective <= row.same_layout.objective


def test_terms_add_up_to_the_step(row: Comparison) -> None:
    for terms, step in ((row.value.terms, row.value.step_time_s), (row.plan_terms, row.plan.step_time_s)):
        parts = (terms.host_s, terms.communication_s, terms.waiting_s, terms.recomputation_s, terms.kernels_s)
        assert sum(parts) == pytest.approx(step, rel=1e-9)
        assert min(parts) >= 0
    assert row.value.terms.recomputation_s > 0
    assert row.value.terms.communication_s > 0  # tensor parallelism


def test_host_time_is_what_launches_add(tiny: PublishedConfiguration) -> None:
    profile = tiny.instance.profile.model_copy(update={"host_launch_floor_s": 0.0, "moe_host_sync_s": 0.0})
    without = replace(tiny.run, instance=tiny.run.instance.model_copy(update={"profile": profile}))
    assert time_terms(without).host_s == 0
    host = time_terms(tiny.run).host_s
    assert host == pytest.approx(estimate(tiny.run).iteration_s - estimate(without).iteration_s)


def test_a_published_run_below_the_bound_is_a_contradiction(
    tiny: PublishedConfiguration, row: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    faster = replace(row.value, step_time_s=0.9 * row.plan.bound_s)
    monkeypatch.setattr(compare_published, "_solved", lambda instance, options, known: (row.plan, []))
    monkeypatch.setattr(compare_published, "published_value", lambda published: faster)
    with pytest.raises(ComparisonFailed, match="less than the proven bound"):
        compare(tiny, OPTIONS)
    for allowed in (replace(faster, outside=("vpp: 9",)), replace(faster, total_gib=99.0)):
        monkeypatch.setattr(compare_published, "published_value", lambda published, value=allowed: value)
        assert compare(tiny, OPTIONS).ratio == pytest.approx(0.9 * row.plan.bound_s / row.plan.step_time_s)


def test_what_the_search_cannot_choose_is_named() -> None:
    text = TINY.replace("recompute: [none, full], cp: 1, mbs: [1, 2]", "recompute: [none], cp: 1, mbs: 2")
    value = published_value(read_published("tiny", text))
    assert value.outside == ("mbs: 1 is not among the allowed values [2]", "recompute: full is not searched")


def test_lack_of_memory_is_stated(row: Comparison) -> None:
    small = read_published("tiny", TINY.replace("1610612736", "150000000"))
    value = published_value(small)
    assert value.total_gib > value.usable_gib > value.capacity_gib
    short = replace(row, published=small, value=value)
    text = published_markdown([short], "x", 5)
    assert f"does not fit in modelled memory: {value.total_gib - value.capacity_gib:.2f} GiB short" in text
    tight = replace(row, value=replace(value, usable_gib=value.total_gib))
    assert "GiB short, fits without the margin." in published_markdown([tight], "x", 5)


def test_table_and_json(row: Comparison) -> None:
    text = published_markdown([row], "prism-cp bench published", 5)
    assert f"| tiny | {row.value.step_time_s:.3f} |" in text
    assert f"| {row.ratio:.3f} | yes |" in text
    assert "| 0.500 | 100 |" in text
    assert "- The sixth layer was painted green." in text
    assert "- Source: made for this test." in text
    unmeasured = replace(row.published, measured=row.published.measured.model_copy(update={"step_time_s": None}))
    about = row.value.step_time_s * row.value.tflops_per_device / 100
    assert f"| ~{about:.3f} | 100 |" in published_markdown([replace(row, published=unmeasured)], "x", None)
    data = json.loads(published_json([row], "x", 5))
    assert data["rows"][0]["ours"]["bound_s"] == row.plan.bound_s
    assert data["rows"][0]["published"]["layout"]["zero"] == 0


def test_shipped_configurations_are_read_and_their_sources_stated() -> None:
    shipped = published_configurations(None)
    assert len(shipped) >= 12
    assert all(len(one.source) > 20 for one in shipped)
    names = {one.name for one in shipped}
    assert {"deepseek-v3-2048xh800", "llama-3.1-405b-16384xh100", "kimi-k2-1024xh100"} <= names
    assert [one.name for one in published_configurations(None, ["mixtral"])] == ["mixtral-8x22b-128xh100"]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.yaml")))
def test_the_search_could_choose_every_shipped_one(name: str) -> None:
    """Except for its memory: a published configuration outside of the space would make the comparison one-sided."""
    published = read_published(name, (SHIPPED / f"{name}.yaml").read_text("utf-8"))
    value = published_value(published)
    assert value.outside == ()
    if published.measured_step_s is not None:
        assert 0.5 < value.step_time_s / published.measured_step_s < 2


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("measured:", "measurd:", "measurd"),
        ("layout: {tp: 2, sp: true,", "layout: {sp: true,", "layout.tp"),
        ("layout: {tp: 2,", "layout: {recompute: none, tp: 2,", "layout.recompute"),
        ("stage_layers: [4, 2]", "stage_layers: [4, 3]", "stage_layers"),
        ("{layers: 2, recompute: full}", "{layers: 3, recompute: full}", "recompute"),
        ("{step_time_s: 0.5,", "{step_time_s: -1,", "measured.step_time_s"),
        ("job: {gbs: 16,", "job: {gbs: none,", "instance.job.gbs"),
        ("source: made for this test", "", "source"),
    ],
)
def test_wrong_content_is_named(old: str, new: str, key: str) -> None:
    assert old in TINY
    with pytest.raises(InstanceError) as caught:
        read_published("tiny", TINY.replace(old, new))
    assert caught.value.key == key
    assert str(caught.value).startswith("tiny.yaml: ")


def test_wrong_folder_and_filter(tmp_path) -> None:
    with pytest.raises(UsageError, match="is no folder"):
        published_configurations(tmp_path / "none")
    with pytest.raises(UsageError, match=r"no \*\.yaml in"):
        published_configurations(tmp_path)
    with pytest.raises(UsageError, match="'gpt9' is in no name"):
        published_configurations(None, ["gpt9"])


def test_command(command, tmp_path) -> None:
    (tmp_path / "tiny.yaml").write_text(TINY)
    out = tmp_path / "published.md"
    words = ("bench", "published", "--folder", tmp_path, "--workers", 1, "--out")
    code, text, messages = command(*words, out)
    assert code == ExitCode.PROVED
    assert out.read_text() == text
    assert "1/1  tiny: optimal" in messages
    assert json.loads(out.with_suffix(".json").read_text())["rows"][0]["name"] == "tiny"
    assert command(*words, tmp_path / "published.txt")[0] == ExitCode.USAGE
