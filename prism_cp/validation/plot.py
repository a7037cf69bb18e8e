"""Plot: predicted against measured, one picture a family. Needs matplotlib."""

from __future__ import annotations

import re
from collections.abc import Sequence

from prism_cp.report.plot import GRID_COLOUR, QUIET_COLOUR, drawing, rendered, require_matplotlib
from prism_cp.validation.summary import Pairs, memory_pairs, step_time_pairs
from prism_cp.validation.validate import Prediction

_QUANTITIES = (("step time, s", step_time_pairs), ("memory, GiB", memory_pairs))


def family_pictures(found: Sequence[Prediction]) -> dict[str, bytes]:
    """File-name part and PNG of every family that has measured values.

    Raises
    ------
    UsageError
        matplotlib is not installed.
    """
    require_matplotlib()
    pictures = {}
    for family in sorted({item.family for item in found}):
        items = [item for item in found if item.family == family]
        panels = [(title, pairs(items)) for title, pairs in _QUANTITIES]
        panels = [(title, values) for title, values in panels if values]
        if panels:
            pictures[re.sub(r"[^a-z0-9]+", "-", family.lower()).strip("-")] = _picture(family, panels)
    return pictures


def _picture(family: str, panels: Sequence[tuple[str, Pairs]]) -> bytes:
    from matplotlib.figure import Figure

    with drawing():
        figure = Figure(figsize=(5.2 * len(panels), 5.0))
        for index, (title, pairs) in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), index + 1)
            predicted, measured = zip(*pairs, strict=True)
            low, high = 0.8 * min(*predicted, *measured), 1.25 * max(*predicted, *measured)
            axes.plot([low, high], [low, high], color=QUIET_COLOUR, linewidth=1)
            axes.fill_between([low, high], [0.9 * low, 0.9 * high], [1.1 * low, 1.1 * high], color=GRID_COLOUR)
            axes.plot(measured, predicted, "o", markersize=4, alpha=0.7, color="#2f6db3")
            axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high))
            axes.set_xlabel(f"measured {title}")
            axes.set_ylabel(f"predicted {title}")
            axes.set_title(f"{family}: {len(pairs)} rows; band ±10 %", fontsize=10)
        figure.tight_layout()
        return rendered(figure, ".png")
