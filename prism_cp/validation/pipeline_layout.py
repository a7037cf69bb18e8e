"""Pipeline layouts as text: Megatron-LM's ``--pipeline-model-parallel-layout`` to decoder layers of every stage."""

from __future__ import annotations

import re

from prism_cp.validation.rows import Skipped

_GROUP = re.compile(r"\(([^()]*)\)\*(\d{1,4})")
_LETTER = re.compile(r"([EtmL])\*(\d{1,4})")


def decoder_layers(text: str) -> tuple[int, ...]:
    """Decoder layers of every virtual stage, in forward order.

    ``E`` embedding, ``t`` decoder layer, ``m`` multi-token-prediction layer, ``L`` loss, ``|`` ends a stage, ``x*3``
    and ``(...)*3`` repeat; commas mean nothing.

    Raises
    ------
    Skipped
        The text is no such layout.
    """
    plain = text.replace(",", "").replace(" ", "")
    while True:
        longer = _GROUP.sub(lambda match: match[1] * int(match[2]), plain)
        if longer == plain:
            break
        plain = longer
    plain = _LETTER.sub(lambda match: match[1] * int(match[2]), plain)
    if not re.fullmatch(r"E[tm|]*L", plain):
        raise Skipped(f"pp_layout={text!r} is not understood")
    return tuple(stage.count("t") for stage in plain.split("|"))
