"""Report room: numbers as people read them."""

from __future__ import annotations


def seconds(value: float | None) -> str:
    """A duration with four significant digits and a fitting unit."""
    if value is None:
        return "unknown"
    for unit, factor in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(value) >= factor:
            return f"{_significant(value / factor)} {unit}"
    return "0 s" if value == 0 else f"{_significant(value / 1e-9)} ns"


def milliseconds(value: float) -> str:
    """A duration in ms, for table columns."""
    return f"{value * 1e3:,.3f}" if value < 0.1 else f"{value * 1e3:,.1f}"


def percent(value: float | None, digits: int = 1) -> str:
    """A ratio as percent."""
    return "unknown" if value is None else f"{100 * value:.{digits}f} %"


def gap(value: float | None) -> str:
    """A relative gap: small ones keep their first digits."""
    if value is None:
        return "unknown"
    return "0 %" if value == 0 else f"{100 * value:.3g} %"


def gib(value: float) -> str:
    """GiB with two decimals."""
    return f"{value:,.2f}"


def count(value: float | None) -> str:
    """A whole number with thousands separators."""
    return "unknown" if value is None else f"{value:,.0f}"


def _significant(value: float) -> str:
    magnitude = abs(value)
    digits = 3 if magnitude < 10 else 2 if magnitude < 100 else 1 if magnitude < 1000 else 0
    return f"{value:,.{digits}f}"
