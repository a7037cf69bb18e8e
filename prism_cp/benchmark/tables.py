"""The benchmark tables."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from prism_cp.benchmark.process import Run, environment, run_solve

FAMILIES = ("moe", "dense", "ascend")


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines)


def measure(arguments: Sequence[str], repeats: int) -> tuple[Run, float, float]:
    """A run, and the median wall time and largest memory over `repeats` runs."""
    runs = [run_solve(arguments) for _ in range(repeats)]
    return runs[-1], statistics.median(run.wall_s for run in runs), max(run.peak_gib for run in runs)


def instances_table(
    folder: Path, repeats: int, workers: int, families: Sequence[str] = FAMILIES, say: Callable[[str], None] = print
) -> str:
    """Every instance of the families: layouts, effort, bound and incumbent."""
    rows = []
    for family in families:
        for path in sorted((folder / family).glob("*.yaml")):
            run, wall_s, peak_gib = measure([str(path), "--workers", str(workers)], repeats)
            plan, search = run.plan, run.plan["search"]
            say(f"{path.stem}: {plan['status']} in {wall_s:.1f} s")
            rows.append(
                [
                    f"{family}/{path.stem}",
                    f"{search['layouts_total']:,}",
                    f"{search['solved'] + search['no_better']:,}",
                    f"{wall_s:.1f}",
                    f"{peak_gib:.2f}",
                    _seconds(plan["bound_s"]),
                    _seconds(plan["step_time_s"]),
                    "yes" if plan["proved"] else "no",
                ]
            )
    header = ["instance", "layouts", "opened", "wall s", "peak GiB", "bound s", "incumbent s", "proved"]
    return markdown(header, rows) + f"\n\nMedian of {repeats} runs, {workers} worker(s). {environment()}.\n"


def growth_table(repeats: int, workers: int, say: Callable[[str], None] = print) -> str:
    """Layers x16, devices x64, micro-batches x64, each from one base point."""
    base = ["--model", "llama-3.1-8b", "--cluster", "64xh100", "--gbs", "512", "--seq-len", "8192"]
    points: list[tuple[str, list[str]]] = [("base: 32 layers, 64 devices, gbs 512", base)]
    for factor in (4, 16):
        points.append((f"layers x{factor}", [*base, "--set", f"model.layers.0.count={32 * factor}"]))
    for factor in (8, 64):
        changed = [*base, "--set", f"cluster.num_devices={64 * factor}"]
        points.append((f"devices x{factor}", [*changed, "--set", f"job.gbs={512 * factor}"]))
    for factor in (8, 64):
        points.append((f"micro-batches x{factor}", [*base, "--set", f"job.gbs={512 * factor}"]))
    rows = []
    for name, arguments in points:
        run, wall_s, peak_gib = measure([*arguments, "--workers", str(workers)], repeats)
        say(f"{name}: {run.plan['status']} in {wall_s:.1f} s")
        search = run.plan["search"]
        rows.append(
            [
                name,
                f"{search['layouts_total']:,}",
                f"{wall_s:.1f}",
                f"{peak_gib:.2f}",
                _seconds(run.plan["step_time_s"]),
                "yes" if run.plan["proved"] else "no",
            ]
        )
    header = ["point", "layouts", "wall s", "peak GiB", "step time s", "proved"]
    return markdown(header, rows) + f"\n\nMedian of {repeats} runs, {workers} worker(s). {environment()}.\n"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.6f}"
