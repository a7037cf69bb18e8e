"""Inputs room: what an error message says would have been accepted."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def accepted_names(value: object, names: Iterable[str], limit: int = 12) -> str:
    """Text for the `accepted` part of an error: close matches first, then all names (at most `limit`)."""
    known = [str(name) for name in names]
    close = difflib.get_close_matches(str(value), known, n=3, cutoff=0.6)
    if not close:
        folded = {name.lower(): name for name in known}
        close = [folded[name] for name in difflib.get_close_matches(str(value).lower(), folded, n=3, cutoff=0.6)]
    hint = f"did you mean {' or '.join(close)}? " if close else ""
    shown = ", ".join(known[:limit]) + (f" … ({len(known)} in all)" if len(known) > limit else "")
    return hint + shown


def shown(value: object, limit: int = 80) -> str:
    """A value as it appears in a message: one line, never longer than `limit`."""
    try:
        text = ascii(value) if not isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):  # integers beyond Python's digit limit, self-containing containers
        text = f"a {type(value).__name__} too large to show"
    return text if len(text) <= limit else text[: limit - 1] + "…"
