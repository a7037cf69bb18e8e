"""Collective formulas: group placement on link levels, bandwidth and latency terms."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sympy import Integer, Rational

from prism_cp.formulas.collectives import (
    CALL_LATENCY_S,
    deduplicated_exchange_template,
    distinct_destinations,
    doublings,
    process_groups,
)
from prism_cp.formulas.program import Program
from prism_cp.inputs.cluster import Cluster, Device, LinkLevel
from tests.formulas.time_instances import layout_values

DEVICE = Device(
    name="device",
    memory_bytes=2**36,
    hbm_bytes_per_s=2e12,
    peak_flops={"bf16": 3e14},
    num_cores=100,
    gemm_efficiency=0.8,
    grouped_gemm_efficiency=0.8,
    attention_efficiency=0.6,
    hbm_efficiency=0.8,
)
INNER = LinkLevel(name="inner", domain_size=8, bytes_per_s=200e9, efficiency=0.5, latency_s=5e-6)
OUTER = LinkLevel(name="outer", domain_size=4096, bytes_per_s=50e9, efficiency=0.8, latency_s=15e-6)
CALL = float(CALL_LATENCY_S)
MIB = 2**20


def cluster(*links: LinkLevel, num_devices: int = 4096) -> Cluster:
    return Cluster(name="cluster", device=DEVICE, num_devices=num_devices, links=links)


def collective(links: Cluster, group: str, method: str, *arguments: Any, **layout: Any) -> float:
    """Seconds of one collective of a group in a layout."""
    program = Program()
    value = program.value(getattr(process_groups(links, program)[group], method)(*arguments))
    program.step()
    return float(program.run(layout_values(**layout), exact=True)[value.name])


CLUSTER = cluster(INNER, OUTER)


def test_ring_inside_a_domain() -> None:
    expected = CALL + 7 * 5e-6 + 7 / 8 * MIB / 100e9
    assert collective(CLUSTER, "tp", "ring_s", MIB, tp=8) == pytest.approx(expected, rel=1e-12)


def test_all_reduce_is_two_passes_of_one_call() -> None:
    once = collective(CLUSTER, "tp", "ring_s", MIB, tp=8) - CALL
    assert collective(CLUSTER, "tp", "ring_s", MIB, 2, tp=8) - CALL == pytest.approx(2 * once, rel=1e-12)


@pytest.mark.parametrize("method", ["ring_s", "exchange_s", "neighbour_s"])
@pytest.mark.parametrize("group", ["tp", "cp", "dp_cp", "etp", "ep", "edp", "pp", "ends"])
def test_a_group_of_one_rank_costs_nothing(group: str, method: str) -> None:
    assert collective(CLUSTER, group, method, MIB) == 0


def test_a_strided_group_leaves_the_domain() -> None:
    """With tp = 8 in a domain of 8, every data-parallel neighbour is in another domain."""
    expected = CALL + 2 * 15e-6 + 3 / 4 * MIB / 40e9
    assert collective(CLUSTER, "dp_cp", "ring_s", MIB, tp=8, dp=4) == pytest.approx(expected, rel=1e-12)


def test_a_group_over_domains_runs_level_by_level() -> None:
    """tp = 2: four data-parallel ranks in each domain of 8, so 16 ranks span four domains."""
    inside = 3 * 5e-6 + 3 / 4 * MIB / 100e9
    between = 2 * 15e-6 + 3 / 4 * (MIB / 4) / 40e9
    expected = CALL + inside + between
    assert collective(CLUSTER, "dp_cp", "ring_s", MIB, tp=2, dp=16) == pytest.approx(expected, rel=1e-12)


def test_all_to_all_over_domains_is_bound_by_the_slower_level() -> None:
    """Of 32 expert-parallel ranks 24 are in other domains."""
    expected = CALL + 7 * 5e-6 + 2 * 15e-6 + 24 / 32 * MIB / 40e9
    assert collective(CLUSTER, "ep", "exchange_s", MIB, ep=32, dp=32) == pytest.approx(expected, rel=1e-12)


def test_pipeline_neighbours_use_the_level_their_stride_needs() -> None:
    inside = CALL + 5e-6 + MIB / 100e9
    outside = CALL + 15e-6 + MIB / 40e9
    assert collective(CLUSTER, "pp", "neighbour_s", MIB, tp=2, pp=4) == pytest.approx(inside, rel=1e-12)
    assert collective(CLUSTER, "pp", "neighbour_s", MIB, tp=4, pp=4) == pytest.approx(outside, rel=1e-12)
    assert collective(CLUSTER, "pp", "neighbour_s", MIB, tp=8, dp=4, pp=2) == pytest.approx(outside, rel=1e-12)


def test_experts_start_their_own_numbering() -> None:
    """edp = tp * cp * dp / (ep * etp) ranks, ep * etp apart."""
    expected = CALL + 15e-6 + 1 / 2 * MIB / 40e9
    times = collective(CLUSTER, "edp", "ring_s", MIB, tp=2, dp=8, ep=4, etp=2)
    assert times == pytest.approx(expected, rel=1e-12)


def test_mesh_gives_a_group_its_own_links_only() -> None:
    mesh = INNER.model_copy(update={"topology": "mesh"})
    whole, half = (collective(cluster(mesh, OUTER), "tp", "ring_s", MIB, tp=tp) for tp in (8, 4))
    assert whole == pytest.approx(CALL + 7 * 5e-6 + 7 / 8 * MIB / 100e9, rel=1e-12)
    assert half == pytest.approx(CALL + 3 * 5e-6 + 3 / 4 * MIB / (100e9 * 3 / 7), rel=1e-12)
    neighbour = collective(cluster(mesh, OUTER), "pp", "neighbour_s", MIB, pp=4)
    assert neighbour == pytest.approx(CALL + 5e-6 + MIB / (100e9 / 7), rel=1e-12)


def test_three_levels() -> None:
    middle = LinkLevel(name="middle", domain_size=32, bytes_per_s=100e9, efficiency=0.5, latency_s=10e-6)
    expected = CALL + 7 * 5e-6 + 7 / 8 * MIB / 100e9  # in the node
    expected += 2 * 10e-6 + 3 / 4 * (MIB / 8) / 50e9  # four nodes of the supernode
    expected += 15e-6 + 1 / 2 * (MIB / 32) / 40e9  # two supernodes
    assert collective(cluster(INNER, middle, OUTER), "dp_cp", "ring_s", MIB, dp=64) == pytest.approx(expected)


def test_one_level() -> None:
    single = cluster(INNER, num_devices=8)
    assert collective(single, "dp_cp", "ring_s", MIB, dp=8) == pytest.approx(CALL + 7 * 5e-6 + 7 / 8 * MIB / 100e9)
    assert collective(single, "ep", "exchange_s", MIB, dp=8, ep=8) > 0


@given(st.integers(1, 5000))
def test_doublings_interpolate_the_logarithm(n: int) -> None:
    low = n.bit_length() - 1
    assert doublings(n) == low + Rational(n, 2**low) - 1
    assert low <= doublings(n) <= math.log2(n) + 1e-12


@pytest.mark.parametrize("ranks", [2, 3, 5, 12, 100, 512])
def test_latency_between_domains_follows_the_doublings(ranks: int) -> None:
    """tp = 8 fills a domain, so every data-parallel rank is in another one."""
    latency = collective(CLUSTER, "dp_cp", "ring_s", 0, tp=8, dp=ranks) - CALL
    assert latency == pytest.approx(float(doublings(ranks)) * 15e-6, rel=1e-9)


def test_distinct_destinations() -> None:
    assert distinct_destinations(Integer(1), 16, 4) == 1
    assert distinct_destinations(Integer(16), 16, 4) == 4  # every expert on its own rank
    # two halves, two of four experts: both in the same half with probability 1/3
    assert distinct_destinations(Integer(2), 4, 2) == Rational(5, 3)


def test_deduplicated_exchange_respects_the_node_limit_and_beats_plain_copies() -> None:
    links = (INNER, OUTER)
    free, limited = (deduplicated_exchange_template(links, 256, 8, limit) for limit in (None, 4))
    (unlimited_s,), (limited_s,) = free.exact(8, 64), limited.exact(8, 64)
    assert float(limited_s) == pytest.approx(4 * (1 - 1 / 8) / 40e9)
    assert limited_s < unlimited_s < 8 * Fraction(56, 64) / 40 / 10**9  # eight plain copies over the same level
    assert deduplicated_exchange_template((INNER,), 8, 2, None).exact(1) == [0]
