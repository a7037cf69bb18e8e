"""Validate: predictions beside the measurements of every row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from prism_cp.errors import PrismError, UsageError
from prism_cp.estimation.configuration import Configuration
from prism_cp.estimation.estimate import Estimate, estimate
from prism_cp.validation.arguments import arguments_of
from prism_cp.validation.families import Measured, family_name, measured, section_name, source_name
from prism_cp.validation.flops_per_token import predicted_tflop_per_token
from prism_cp.validation.names import model_name
from prism_cp.validation.rows import Row, Skipped, is_flop_row
from prism_cp.validation.sources import configuration, memory_of
from prism_cp.validation.sources.common import catalog_model

PREDICTED_COLUMNS = (
    "predicted_memory_gib",
    "predicted_steady_gib",
    "predicted_plan_memory_gib",
    "predicted_fits",
    "predicted_fits_with_margin",
    "predicted_iteration_s",
    "predicted_tflops_per_device",
    "predicted_tflop_per_token",
    "profile",
    "skipped",
)

FLOP_FAMILY = "tflop_per_token"


@dataclass(frozen=True)
class Prediction:
    """One row and what is predicted for it.

    Attributes
    ----------
    skipped
        Why nothing is predicted; empty text where something is.
    memory_gib
        In the meaning of the row's `memory_kind`.
    plan_memory_gib
        The same without the rests of the allocator's blocks, which plans do not count: what the margin is held against.
    fits
        Whether peak memory and what lies outside of the framework's allocator fit in the usable capacity: the
        prediction itself, without the margin that a plan keeps.
    fits_with_margin
        Whether a planner that keeps the margin would allow the configuration.
    profile
        Framework profile of the catalogue that the row was predicted with.
    tflop_per_token
        Of rows that state FLOPs per token; the other predictions are None there.
    """

    row: Row
    family: str
    source: str
    section: str
    measured: Measured
    skipped: str = ""
    memory_gib: float | None = None
    steady_gib: float | None = None
    plan_memory_gib: float | None = None
    fits: bool | None = None
    fits_with_margin: bool | None = None
    iteration_s: float | None = None
    tflops_per_device: float | None = None
    tflop_per_token: float | None = None
    profile: str = ""

    def columns(self) -> dict[str, str]:
        """The row's columns and the predicted ones, as text."""
        values: dict[str, str] = dict(self.row.columns)
        predicted = {
            "predicted_memory_gib": _text(self.memory_gib),
            "predicted_steady_gib": _text(self.steady_gib),
            "predicted_plan_memory_gib": _text(self.plan_memory_gib),
            "predicted_fits": _text_of_bool(self.fits),
            "predicted_fits_with_margin": _text_of_bool(self.fits_with_margin),
            "predicted_iteration_s": _text(self.iteration_s),
            "predicted_tflops_per_device": _text(self.tflops_per_device),
            "predicted_tflop_per_token": _text(self.tflop_per_token),
            "profile": self.profile,
            "skipped": self.skipped,
        }
        return values | predicted


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


def _text_of_bool(value: bool | None) -> str:
    return "" if value is None else str(value).lower()


def filtered(rows: Sequence[Row], filters: Sequence[str]) -> list[Row]:
    """Rows whose columns have the values that ``column=value`` texts ask for; several must all hold.

    Raises
    ------
    UsageError
        A text is no ``column=value``, a column does not exist, or no row is left.
    """
    kept = list(rows)
    for text in filters:
        column, separator, value = text.partition("=")
        known = sorted({name for row in rows for name in row.columns} | {"family"})
        if not separator or column not in known:
            raise UsageError(f"--filter {text}: no column {column!r} (accepted: column=value with {', '.join(known)})")
        if column == "family":
            kept = [row for row in kept if value.strip().lower() in _family_of(row).lower()]
        else:
            kept = [row for row in kept if row.text(column).lower() == value.strip().lower()]
    if not kept:
        raise UsageError(f"--filter {' '.join(filters)}: no row is left of {len(rows)}")
    return kept


def _family_of(row: Row) -> str:
    """The row's family, as far as its texts alone tell it."""
    if is_flop_row(row):
        return FLOP_FAMILY
    try:
        return family_name(row, catalog_model(model_name(row.text("model"))))
    except Skipped:
        return family_name(row, None)


def predictions(rows: Sequence[Row], say: Callable[[str], None] = lambda _: None) -> list[Prediction]:
    """Predict every row, in order."""
    found = []
    for number, row in enumerate(rows):
        if number % 50 == 0 and number:
            say(f"{number} of {len(rows)} rows")
        found.append(predict(row))
    return found


def predict(row: Row) -> Prediction:
    """Predict one row; a missing fact or an unknown feature ends in `Prediction.skipped`."""
    if is_flop_row(row):
        return _predict_flops(row)
    common = {"row": row, "source": source_name(row), "section": section_name(row)}
    arguments = arguments_of(row)
    try:
        run = configuration(row, arguments)
        return _predicted(row, run, estimate(run))
    except PrismError as reason:
        return Prediction(family=family_name(row, None), measured=_measured(row), skipped=str(reason), **common)  # type: ignore[arg-type]


def _measured(row: Row) -> Measured:
    try:
        return measured(row)
    except Skipped:
        return Measured(None, None, None, False)


def _predicted(row: Row, run: Configuration, result: Estimate) -> Prediction:
    return Prediction(
        row=row,
        family=family_name(row, run.instance.model),
        source=source_name(row),
        section=section_name(row),
        measured=measured(row, run.instance.job.seq_len),
        memory_gib=memory_of(row, run, result),
        steady_gib=result.steady_gib,
        plan_memory_gib=memory_of(row, run, result.planned),
        fits=result.fits,
        fits_with_margin=result.fits_with_margin,
        iteration_s=result.iteration_s,
        tflops_per_device=result.tflops_per_device,
        profile=run.instance.profile.name,
    )


def _predict_flops(row: Row) -> Prediction:
    nothing = Measured(None, None, None, False)
    try:
        value, reason = predicted_tflop_per_token(row), ""
    except Skipped as error:
        value, reason = None, str(error)
    return Prediction(
        row=row,
        family=FLOP_FAMILY,
        source=FLOP_FAMILY,
        section="",
        measured=nothing,
        skipped=reason,
        tflop_per_token=value,
    )
