"""Text of ``--pipeline-model-parallel-layout``: repetitions written out (megatron/core/transformer/pipeline_layout)."""

from __future__ import annotations

import re

MOST_LETTERS = 100_000  # ten thousand layers, the largest model, each in a stage of its own
_REPEATED = re.compile(r"\(([^()]*)\)\*(\d+)|([A-Za-z])\*(\d+)")


def expanded(text: str) -> str:
    """The layout with ``x*3`` and ``(...)*3`` written out; commas and blanks mean nothing.

    Raises
    ------
    ValueError
        It has more letters than any model's.
    """
    plain = text.replace(",", "").replace(" ", "")
    while True:
        longer = _REPEATED.sub(_repeated, plain)
        if len(longer) > MOST_LETTERS:
            raise ValueError("too many stages")
        if longer == plain:
            return plain
        plain = longer


def _repeated(match: re.Match[str]) -> str:
    body, times = match[1] if match[1] is not None else match[3], match[2] or match[4]
    if len(times) > len(str(MOST_LETTERS)) or len(body) * int(times) > MOST_LETTERS:
        raise ValueError("too many stages")
    return body * int(times)
