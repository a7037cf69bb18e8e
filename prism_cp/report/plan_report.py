"""Report room: a plan as tables for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from prism_cp.plan import Alternative, Plan, PlanLayout, RankPlan, VirtualStagePlan
from prism_cp.report.numbers import count, gap, gib, milliseconds, percent, seconds

CERTIFICATE_TEXTS = {
    "checked": "recomputed without the solver",
    "bound": "bound equals step time, as integers",
    "reproved": "the joint model finds nothing better",
    "cross-engine": "HiGHS agrees on the best layout",
    "exhaustive": "enumeration of every plan agrees",
}
HEADLINES = {
    "optimal": "Proved optimal",
    "feasible": "Feasible plan, not proved optimal",
    "infeasible": "Proved infeasible: nothing fits",
    "unknown": "Stopped before a plan was found",
}


def print_plan(plan: Plan, console: Console) -> None:
    """Headline, layout, stages, search, certificate and further layouts."""
    console.print(headline(plan), markup=False, style="bold")
    if plan.layout is not None:
        console.print(figures_line(plan), markup=False)
        console.print()
        console.print("Layout  " + layout_text(plan.layout), markup=False, soft_wrap=True)
        console.print(stage_table(plan))
        console.print(memory_table(plan))
    elif plan.status == "infeasible":
        console.print("`prism-cp explain` says what is missing and which changes would help.", markup=False)
    console.print(search_line(plan), markup=False)
    console.print(certificate_line(plan), markup=False)
    for note in plan.notes:
        console.print(f"Note: {note}", markup=False)
    if plan.top_k:
        console.print(alternatives_table(plan))


def headline(plan: Plan) -> str:
    """Instance, verdict and step time."""
    verdict = HEADLINES[plan.status]
    if plan.step_time_s is None:
        bound = "" if plan.bound_s is None else f" (step time is at least {seconds(plan.bound_s)})"
        return f"{plan.instance_name}: {verdict}{bound}"
    text = f"{plan.instance_name}: {verdict}, step time {seconds(plan.step_time_s)}"
    return text if plan.proved else f"{text}, bound {seconds(plan.bound_s)}, gap {gap(plan.gap)}"


def figures_line(plan: Plan) -> str:
    """Throughput."""
    parts = [f"{count(plan.tokens_per_s)} tokens/s"]
    if plan.mfu is not None:
        parts += [f"MFU {percent(plan.mfu)}", f"HFU {percent(plan.hfu)}"]
    return ", ".join(parts) + f" on {plan.instance.cluster.num_devices:,} x {plan.instance.cluster.device.name}"


def layout_text(layout: PlanLayout) -> str:
    """The layout in one line; sizes of 1 that say nothing are left out."""
    parts = [f"tp {layout.tp}" + ("+sp" if layout.sp and layout.tp > 1 else "")]
    if layout.cp > 1:
        parts.append(f"cp {layout.cp} ({layout.cp_comm})")
    if layout.ep > 1 or layout.etp > 1:
        parts.append(f"ep {layout.ep}, etp {layout.etp}, edp {layout.edp}")
    parts += [f"dp {layout.dp}, zero {layout.zero}", f"pp {layout.pp}"]
    if layout.vpp > 1:
        parts.append(f"vpp {layout.vpp}")
    parts += [layout.schedule, f"mbs {layout.mbs} x {layout.num_microbatches} micro-batches"]
    return ", ".join(parts)


def stage_table(plan: Plan) -> Table:
    """One row per virtual stage: rank, layers, recomputation, times."""
    table = Table(title="Virtual stages (times per micro-batch)", title_justify="left")
    for column in ("stage", "rank"):
        table.add_column(column, justify="right")
    table.add_column("layers", overflow="fold")
    table.add_column("recomputation", overflow="fold")
    for column in ("F ms", "B ms", "W ms"):
        table.add_column(column, justify="right", no_wrap=True)
    for index, stage in enumerate(plan.virtual_stages):
        times = (stage.forward, stage.input_grad, stage.weight_grad)
        table.add_row(
            str(index),
            str(stage.rank),
            layers_text(stage),
            recomputation_text(stage),
            *(milliseconds(time * plan.time_unit_s) for time in times),
        )
    return table


def layers_text(stage: VirtualStagePlan) -> str:
    """Which layers a stage holds, e.g. ``embedding, 0-3 (3 dense, 1 moe)``."""
    layers = stage.layers
    parts = ["embedding"] if layers.embedding else []
    if layers.first is not None and layers.last is not None:
        span = f"{layers.first}-{layers.last}" if layers.last > layers.first else str(layers.first)
        parts.append(f"{span} ({', '.join(f'{n} {kind}' for kind, n in layers.kinds.items())})")
    if layers.head:
        parts.append("head")
    return ", ".join(parts) or "none"


def recomputation_text(stage: VirtualStagePlan) -> str:
    """How many layers recompute what; all-``none`` stages say so once."""
    if all(set(row) == {"none"} for row in stage.strategies.values()):
        return "none"
    texts = []
    for kind, row in stage.strategies.items():
        prefix = f"{kind}: " if len(stage.strategies) > 1 else ""
        texts.append(prefix + ", ".join(f"{n} {name}" for name, n in row.items()))
    return "; ".join(texts)


def memory_table(plan: Plan) -> Table:
    """One row per rank: memory at its fullest moment, and how busy it is."""
    table = Table(title=f"Ranks (GiB at the fullest moment{_margin_text(plan)})", title_justify="left")
    for column in (
        "rank",
        "live",
        "weights",
        "gradients",
        "optimizer",
        "activations",
        "other",
        "total",
        "of",
        "bubble",
    ):
        table.add_column(column, justify="right", no_wrap=True)
    for rank in plan.ranks:
        table.add_row(*_memory_row(rank, plan))
    return table


def _margin_text(plan: Plan) -> str:
    margin = plan.instance.profile.memory_margin
    if not plan.ranks or not margin:
        return "; without a margin" if plan.ranks else ""
    memory = plan.ranks[0].memory_gib
    return f"; {gib(memory.capacity)} of {gib(memory.capacity + memory.margin)} after a margin of {percent(margin)}"


def _memory_row(rank: RankPlan, plan: Plan) -> list[str]:
    memory = rank.memory_gib
    other = memory.transient + memory.buffers + memory.fixed + memory.rounding
    live = "+".join(str(n) for n in rank.live_microbatches) if rank.live_microbatches else "optimizer"
    values = (
        memory.weights,
        memory.gradients,
        memory.optimizer,
        memory.activations,
        other,
        memory.total,
        memory.capacity,
    )
    assert plan.pipeline_time is not None
    bubble = rank.time_s.bubble / (plan.pipeline_time * plan.time_unit_s)
    return [str(rank.rank), live, *(gib(value) for value in values), percent(bubble)]


def search_line(plan: Plan) -> str:
    """What became of the layouts."""
    search = plan.search
    endings = [
        (search.pruned, "pruned by bound"),
        (search.no_better, "proved no better"),
        (search.solved, "solved"),
        (search.infeasible, "infeasible"),
        (search.open, "open"),
    ]
    told = ", ".join(f"{n:,} {name}" for n, name in endings if n)
    stopped = ", interrupted" if search.interrupted else ""
    return f"Search  {search.layouts_total:,} layouts: {told or 'none'}; {search.wall_s:.1f} s wall{stopped}"


def certificate_line(plan: Plan) -> str:
    """Levels with their meaning."""
    texts = dict(CERTIFICATE_TEXTS)
    if plan.status == "infeasible":
        texts["bound"] = "every layout was refuted"
    told = "; ".join(f"{level} ({texts[level]})" for level in plan.certificate.levels)
    return f"Certificate  {told or 'none'}"


def alternatives_table(plan: Plan) -> Table:
    """Further layouts and why each lost."""
    table = Table(title="Further layouts", title_justify="left")
    table.add_column("layout", overflow="fold", ratio=3)
    table.add_column("at least", justify="right", no_wrap=True)
    table.add_column("best known", justify="right", no_wrap=True)
    table.add_column("why it lost", overflow="fold", ratio=3)
    for other in plan.top_k:
        best = "-" if other.best_s is None else seconds(other.best_s)
        least = "-" if other.ending == "infeasible" else seconds(other.lower_bound_s)
        table.add_row(layout_text(other.layout), least, best, why_lost(other, plan))
    return table


def why_lost(other: Alternative, plan: Plan) -> str:
    """One sentence on an alternative, from its ending and its numbers."""
    sentence = _why(other, plan)
    return f"{sentence} ({other.reason})" if other.reason else sentence


def _why(other: Alternative, plan: Plan) -> str:
    if other.ending == "infeasible":
        return "does not fit in memory"
    if plan.step_time_s is None:
        return "undecided"

    def against(value_s: float) -> str:
        assert plan.step_time_s is not None
        difference = value_s / plan.step_time_s - 1
        return "as fast as the plan" if value_s <= plan.step_time_s else f"{100 * difference:.3g} % slower"

    if other.best_s is not None and other.ending == "solved":
        return f"its own optimum is {against(other.best_s)}"
    if other.ending == "open":
        best = "" if other.best_s is None else f"; its best known plan is {against(other.best_s)}"
        return f"undecided, cannot be below {seconds(other.lower_bound_s)}{best}"
    proof = "its lower bound" if other.ending == "pruned" else "a proof that nothing in it is better"
    return f"{proof}: at best {against(other.lower_bound_s)}"
