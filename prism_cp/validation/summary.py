"""Summary: errors by family, source, model and precision, rankings by section, and what was skipped and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from prism_cp.inputs.catalog import catalog_entry, catalog_names
from prism_cp.validation.families import precision_name
from prism_cp.validation.statistics import (
    ErrorStatistics,
    Ranking,
    UnderPrediction,
    error_statistics,
    ranking,
    under_prediction,
)
from prism_cp.validation.validate import Prediction

Pairs = list[tuple[float, float]]
_REASON_LENGTH = 110
_TEST_SUITES = ("megatron_lm_golden", "mindspeed_llm_npu_ci")
_RANKED_SOURCES = ("bloom_prequel",)  # dozens of topologies of one model, measured to be ranked


@dataclass(frozen=True)
class Group:
    """Errors of a group of rows in every quantity; None where nothing was measured."""

    name: str
    rows: int
    skipped: int
    step_time: ErrorStatistics | None
    memory: ErrorStatistics | None
    steady_memory: ErrorStatistics | None
    flops: ErrorStatistics | None


@dataclass(frozen=True)
class OutOfMemory:
    """Runs that did not fit, and how many of them are predicted not to: by the prediction itself, and with the margin
    that a plan keeps. `ran` counts the runs that did fit and were predicted; `refused` and `refused_with_margin` how
    many of those are predicted not to."""

    rows: int
    predicted: int
    predicted_with_margin: int
    ran: int
    refused: int
    refused_with_margin: int


@dataclass(frozen=True)
class Margin:
    """A profile's margin beside the memory that its rows were predicted too low by."""

    profile: str
    margin: float
    under_prediction: UnderPrediction


@dataclass(frozen=True)
class Summary:
    """Everything a table of results says."""

    rows: int
    skipped: int
    groups: dict[str, tuple[Group, ...]]  # by what they are grouped by
    rankings: tuple[Ranking, ...]
    out_of_memory: OutOfMemory
    margins: tuple[Margin, ...]
    reasons: tuple[tuple[str, str, int], ...]  # source, reason, rows

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; errors are fractions."""
        return asdict(self)


def summarize(found: Sequence[Prediction]) -> Summary:
    """Summary of predictions, at least one."""
    keys: dict[str, Callable[[Prediction], str]] = {
        "family": lambda item: item.family,
        "source": lambda item: item.source,
        "model": _model,
        "precision": lambda item: f"{item.source}: {precision_name(item.row)}",
    }
    without = [item for item in found if item.skipped]
    reasons = Counter((item.source, _short(item.skipped)) for item in without)
    return Summary(
        rows=len(found),
        skipped=len(without),
        groups={name: _groups(found, key) for name, key in keys.items()},
        rankings=_rankings(found),
        out_of_memory=_out_of_memory(found),
        margins=_margins(found),
        reasons=tuple((source, reason, count) for (source, reason), count in reasons.most_common()),
    )


def _out_of_memory(found: Sequence[Prediction]) -> OutOfMemory:
    known = [item for item in found if item.fits is not None]
    failed = [item for item in known if item.measured.out_of_memory]
    ran = [item for item in known if not item.measured.out_of_memory]
    return OutOfMemory(
        rows=len(failed),
        predicted=sum(not item.fits for item in failed),
        predicted_with_margin=sum(not item.fits_with_margin for item in failed),
        ran=len(ran),
        refused=sum(not item.fits for item in ran),
        refused_with_margin=sum(not item.fits_with_margin for item in ran),
    )


def _margins(found: Sequence[Prediction]) -> tuple[Margin, ...]:
    """Of every profile that some row's memory was predicted with, in order of name."""
    margins = []
    for name in catalog_names("profiles"):
        pairs = _plan_memory_pairs([item for item in found if item.profile == name])
        if pairs:
            margin = float(catalog_entry("profiles", name)["memory_margin"])
            margins.append(Margin(name, margin, under_prediction(pairs)))
    return tuple(margins)


def _model(item: Prediction) -> str:
    """Source and model; the cases of a test suite, each a configuration of its own, are one."""
    return item.source if item.source in _TEST_SUITES else f"{item.source}: {item.row.text('model')}"


def step_time_pairs(found: Sequence[Prediction]) -> Pairs:
    """(predicted, measured) seconds of a step."""
    return _known((item.iteration_s, item.measured.step_s) for item in found)


def memory_pairs(found: Sequence[Prediction]) -> Pairs:
    """(predicted, measured) GiB in the meaning of the row."""
    return _known((item.memory_gib, item.measured.memory_gib) for item in found)


def _plan_memory_pairs(found: Sequence[Prediction]) -> Pairs:
    """The same as plans count memory."""
    return _known((item.plan_memory_gib, item.measured.memory_gib) for item in found)


def _steady_pairs(found: Sequence[Prediction]) -> Pairs:
    return _known((item.steady_gib, item.measured.steady_gib) for item in found)


def _flop_pairs(found: Sequence[Prediction]) -> Pairs:
    return _known((item.tflop_per_token, item.row.measurement("median")) for item in found if item.tflop_per_token)


def _known(pairs: Iterable[tuple[float | None, float | None]]) -> Pairs:
    return [(predicted, actual) for predicted, actual in pairs if predicted and actual]


def _groups(found: Sequence[Prediction], key: Callable[[Prediction], str]) -> tuple[Group, ...]:
    names = sorted({key(item) for item in found})
    return tuple(_group(name, [item for item in found if key(item) == name]) for name in names)


def _group(name: str, items: Sequence[Prediction]) -> Group:
    return Group(
        name=name,
        rows=len(items),
        skipped=sum(bool(item.skipped) for item in items),
        step_time=error_statistics(step_time_pairs(items)),
        memory=error_statistics(memory_pairs(items)),
        steady_memory=error_statistics(_steady_pairs(items)),
        flops=error_statistics(_flop_pairs(items)),
    )


def _rankings(found: Sequence[Prediction]) -> tuple[Ranking, ...]:
    result = []
    for section in dict.fromkeys(item.section for item in found if item.source in _RANKED_SOURCES):
        pairs = step_time_pairs([item for item in found if item.section == section and item.source in _RANKED_SOURCES])
        if len(pairs) > 1:
            result.append(ranking(section, pairs))
    return tuple(result)


def _short(reason: str) -> str:
    return reason if len(reason) <= _REASON_LENGTH else f"{reason[: _REASON_LENGTH - 1]}…"
