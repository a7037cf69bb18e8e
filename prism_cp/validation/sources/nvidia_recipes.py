"""What NVIDIA's published recipes have in common: names of precisions, fine-tuning."""

from __future__ import annotations

import re
from typing import Any

from prism_cp.validation.rows import Row, Skipped

# Fine-tuning packs short documents into a sequence (NeMo packed_sequence); their lengths are not published, this one
# fits the published step times.
_PACKED_DOCUMENT = 512


def precision_of(text: str) -> str:
    """Precision of the matrix products in the job's words.

    Raises
    ------
    Skipped
        The text is not understood.
    """
    plain = text.strip().lower().replace("_", "").replace("-", "").replace(" ", "")
    if plain in ("", "bf16", "ampbf16"):
        return "bf16"
    if plain in ("fp16", "ampfp16"):
        return "fp16"
    if plain.startswith(("fp8", "mxfp8", "ampfp8")) or "float8" in plain:
        return "fp8"
    if plain in ("nvfp4", "fp4"):
        return "fp4"
    raise Skipped(f"precision={text!r} is not understood")


def fp8_scaling(text: str, default: str) -> str:
    """How 8-bit products are scaled: ``delayed``, ``current`` or ``mxfp8``; `default` where the text does not say."""
    plain = text.strip().lower()
    if "mx" in plain.split("(", maxsplit=1)[0]:
        return "mxfp8"
    if "cs" in plain or "current" in plain:
        return "current"
    if "ds" in plain or "delayed" in plain:
        return "delayed"
    return default


def tuning_facts(row: Row) -> dict[str, Any]:
    """Fields of the job that fine-tuning sets: packed documents, and with LoRA frozen weights."""
    text = f"{row.text('note')} {row.text('model')}"
    if re.search(r"\b(lora|peft)\b", text, re.IGNORECASE):
        return {"document_len": _PACKED_DOCUMENT, "frozen_weights": True}
    if re.search(r"\bSFT\b|fine-?tuning", text, re.IGNORECASE):
        return {"document_len": _PACKED_DOCUMENT}
    return {}
