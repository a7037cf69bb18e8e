"""Blocks of the caching allocator: rests of requests, and of a rank's state."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest

from prism_cp.estimation.allocator_blocks import MIB, BlockRests, Segments, block_rests
from prism_cp.estimation.configuration import Configuration
from prism_cp.estimation.estimate import estimate
from prism_cp.estimation.flat_buffer import parameters_of_rank, pieces_of_share
from prism_cp.estimation.megatron_arguments import configuration_from_arguments

GIVEN = {
    "num-layers": "2",
    "hidden-size": "512",
    "num-attention-heads": "8",
    "seq-length": "1024",
    "position-embedding-type": "rope",
    "micro-batch-size": "1",
    "global-batch-size": "2",
    "bf16": "true",
    "disable-bias-linear": "true",
    "padded-vocab-size": "25216",
}


def configuration(framework: str = "megatron", **changes: str) -> Configuration:
    """Two layers and a vocabulary of 24.625 MiB in 16 bits, on two devices."""
    added = {name.replace("_", "-"): value for name, value in changes.items()}
    cluster = "h100" if framework == "megatron" else "910b"
    return configuration_from_arguments({**GIVEN, **added}, cluster=cluster, num_devices=2, framework=framework)


@pytest.mark.parametrize(
    ("requests", "rests"),
    [
        ([0.5, 1], [0, 0]),  # small ones are cut
        ([49.25], [0.75]),  # 50 MiB are given
        ([98.25], [0]),  # of 100 MiB, 1.75 are cut off
        ([24.625], [0]),
        ([3, 4, 4, 3, 4, 2], [0, 0, 0, 0, 0, 0]),  # 20 MiB are filled
        ([7, 12, 6, 6], [0, 1, 0, 0]),  # 12 of the 13 MiB that are left; the last one is not worth a cut
        ([9, 9, 9.5, 9.5], [0, 0, 0, 1]),  # 2 MiB are left of the first segment, 1 MiB of the second
    ],
)
def test_rests_of_requests(requests: list[float], rests: list[float]) -> None:
    segments = Segments()
    assert [segments.rest(Fraction(size) * MIB) / MIB for size in requests] == rests


def gradient_rest(run: Configuration) -> int:
    """Of the buffer of gradients, which needs between 73 and 74 MiB."""
    needed = 4 * sum(parameters_of_rank(run, 0)[0])
    assert 73 * MIB < needed < 74 * MIB
    return int(74 * MIB - needed) // 512 * 512


def test_without_a_sharded_optimizer_every_tensor_is_a_block() -> None:
    """The embedding's master weight and both of its moments are 49.25 MiB each, of 50."""
    run = configuration()
    assert block_rests(run, 0) == BlockRests(gradient_rest(run) + 3 * MIB // 4, 3 * MIB // 2)
    away = configuration(optimizer_cpu_offload="true")
    assert block_rests(away, 0) == BlockRests(gradient_rest(away), 0)


def test_with_a_sharded_optimizer_weights_are_one_block_and_states_are_pieces() -> None:
    """36.63 MiB of weights, and as much of the embedding's states in the last share, are cut out of 38 MiB."""
    run = configuration(use_distributed_optimizer="true")
    assert block_rests(run, 0) == BlockRests(gradient_rest(run), 0)
    parameters = sum(parameters_of_rank(run, 0)[0])
    for device in range(2):
        assert sum(pieces_of_share(run, 0, device)) == parameters / 2
    assert len(pieces_of_share(run, 0, 1)) == 1


def test_blocks_count_between_steps_and_at_the_peak() -> None:
    run = configuration()
    whole, cut = (estimate(replace(run, whole_blocks=flag)).ranks[0] for flag in (True, False))
    kept, moments = gradient_rest(run) + 3 * MIB // 4, 3 * MIB // 2
    assert (whole.steady_gib - cut.steady_gib) * 2**30 == pytest.approx(kept + moments)
    assert (whole.phases_gib["first step"] - cut.phases_gib["first step"]) * 2**30 == pytest.approx(kept)
    assert (whole.phases_gib["later steps"] - cut.phases_gib["later steps"]) * 2**30 == pytest.approx(kept + moments)
    assert whole.breakdown_gib["unsplit blocks"] * 2**30 == pytest.approx(kept + moments)


def test_growing_segments_and_zero_3_have_no_rests() -> None:
    assert block_rests(configuration("mindspeed"), 0) == BlockRests(0, 0)
    assert not configuration("mindspeed").whole_blocks
    sharded = {"use_megatron_fsdp": "true", "data_parallel_sharding_strategy": "optim_grads_params"}
    assert block_rests(configuration(**sharded), 0) == BlockRests(0, 0)
