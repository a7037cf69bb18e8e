"""What NVIDIA's published recipes have in common: names of precisions."""

from __future__ import annotations

from prism_cp.validation.rows import Skipped


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
