"""Pipeline layouts as text: Megatron-LM's ``--pipeline-model-parallel-layout`` to decoder layers of every stage."""

from __future__ import annotations

import re

from prism_cp.estimation.megatron_arguments.stage_text import expanded
from prism_cp.validation.rows import Skipped


def decoder_layers(text: str) -> tuple[int, ...]:
    """Decoder layers of every virtual stage, in forward order.

    ``E`` embedding, ``t`` decoder layer, ``m`` multi-token-prediction layer, ``L`` loss, ``|`` ends a stage, ``x*3``
    and ``(...)*3`` repeat; commas mean nothing.

    Raises
    ------
    Skipped
        The text is no such layout.
    """
    try:
        plain = expanded(text)
    except ValueError as error:
        raise Skipped(f"pp_layout={text[:80]!r}: {error}") from error
    if not re.fullmatch(r"E[tm|]*L", plain):
        raise Skipped(f"pp_layout={text!r} is not understood")
    return tuple(stage.count("t") for stage in plain.split("|"))
