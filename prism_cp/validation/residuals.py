"""Residuals: what the committed table says about its figures and about the errors that are left."""

from __future__ import annotations

READING = """Errors are predicted over measured, minus one; mean, median, p95 and max are of their absolute value.
Constants belong to devices and framework profiles and were fitted on these tables, so the figures are in-sample. A row
is skipped where a fact is missing or a feature is unknown, never for its prediction."""

RESIDUALS = """"""
