"""Command line room: ``prism-cp solve``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism_cp.cli.options import (
    ClusterOption,
    GapOption,
    GbsOption,
    JsonOption,
    ModelOption,
    ProfileOption,
    QuietOption,
    SeedOption,
    SeqLenOption,
    SetOption,
    TimeLimitOption,
    TopOption,
    WorkersOption,
    instance_from_options,
    search_options,
)
from prism_cp.cli.output import check_out, data_console, message_console, print_json, write_whole
from prism_cp.errors import ExitCode

if TYPE_CHECKING:
    from prism_cp.inputs.instance import Instance
    from prism_cp.plan import Plan, RobustSummary
    from prism_cp.result import SearchResult
    from prism_cp.robustness.load_range import LoadRange
    from prism_cp.robustness.robust import RobustChoice
    from prism_cp.search.options import SearchOptions

EXAMPLES = (
    "Examples:\n\n"
    "prism-cp solve instances/moe/deepseek-v3-2048xh800.yaml --out plan.json\n\n"
    "prism-cp solve --model llama-3.1-70b --cluster 64xh100 --gbs 1024 --seq-len 8192\n\n"
    "prism-cp solve job.yaml --set layout.tp=8 --set layout.pp=4,8 --time-limit 60 --json > plan.json\n\n"
    "prism-cp solve instances/moe/qwen3-235b-256xh100.yaml --robust load=1.0..2.0"
)


def solve(
    instance: Annotated[Path | None, typer.Argument(help="Instance file (YAML).", show_default=False)] = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    gbs: GbsOption = None,
    seq_len: SeqLenOption = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
    out: Annotated[Path | None, typer.Option("--out", help="Also write the plan (JSON) to this file.")] = None,
    top: TopOption = 5,
    time_limit: TimeLimitOption = None,
    gap: GapOption = 0.0,
    workers: WorkersOption = None,
    seed: SeedOption = 0,
    robust: Annotated[
        str | None,
        typer.Option(
            "--robust",
            metavar="load=LOW..HIGH",
            help="Find the best worst case over these expert loads; each of its searches is limited by --time-limit.",
        ),
    ] = None,
    certify: Annotated[bool, typer.Option("--certify", help="Prove the result again by other means.")] = False,
    quiet: QuietOption = False,
) -> None:
    """Find the fastest plan that fits, and prove it."""
    options = search_options(time_limit, gap, workers, seed, top)
    if out is not None:
        check_out(out)
    spread = None if robust is None else load_range(robust)
    chosen = instance_from_options(instance, set_, model, cluster, gbs, seq_len, profile)

    from prism_cp.cli.running import GentleStop, exit_code, search

    summary = None
    with GentleStop():  # from the first search until its plan is shown
        if spread is None:
            result = search(chosen, options, quiet=quiet)
        else:
            choice = robust_choice(chosen, spread, options, quiet=quiet)
            chosen, result, summary = choice.instance, choice.result, choice.summary
        plan, faults = checked_plan(chosen, result, certify=certify, time_limit_s=time_limit, robust=summary)
        try:
            if out is not None:
                write_whole(out, plan.to_json() + "\n")
        finally:  # a full disk does not cost the answer
            show_plan(plan, as_json=json)
    if faults:
        for fault in faults:
            message_console().print(f"check failed: {fault}", style="red", markup=False)
        raise typer.Exit(int(ExitCode.CHECK_FAILED))
    code = exit_code(result, gap)
    if spread is not None and code == ExitCode.PROVED and not robust_enough(summary, gap):
        code = ExitCode.STOPPED_WITH_INCUMBENT
    raise typer.Exit(int(code))


def show_plan(plan: Plan, *, as_json: bool) -> None:
    """The plan on standard output."""
    from prism_cp.report.plan_report import print_plan
    from prism_cp.report.robust_report import print_robust

    if as_json:
        print_json(plan.to_json())
        return
    print_plan(plan, data_console())
    if plan.robust is not None:
        print_robust(plan.robust, plan.time_unit_s, data_console())


def load_range(text: str) -> LoadRange:
    """The range that ``--robust`` states."""
    from prism_cp.robustness.load_range import parse_load_range

    return parse_load_range(text)


def robust_choice(instance: Instance, spread: LoadRange, options: SearchOptions, *, quiet: bool) -> RobustChoice:
    """The plan with the best worst case; says on standard error why it carries no summary where it does not."""
    from prism_cp.cli.running import search
    from prism_cp.robustness.load_range import require_load
    from prism_cp.robustness.robust import solve_robust

    require_load(instance)
    choice = solve_robust(instance, spread, lambda at_end, known: search(at_end, options, quiet=quiet, known=known))
    load = choice.instance.job.expert_load
    if choice.summary is None and choice.result.objective is not None:
        reason = "the search was stopped" if choice.result.interrupted else "it is not shown to fit at all loads"
        message_console().print(f"the plan is the best known at load {load:g}; {reason}", markup=False)
    elif choice.summary is None:
        known = "there is no plan" if choice.result.status == "infeasible" else "no plan is known"
        message_console().print(f"{known} at load {load:g}", markup=False)
    return choice


def robust_enough(summary: RobustSummary | None, gap: float) -> bool:
    """Whether the worst case is within the asked gap of the bound."""
    if summary is None or summary.worst_case_at_most is None:
        return False
    return summary.worst_case_at_most - summary.lower_bound <= gap * summary.worst_case_at_most


def checked_plan(
    instance: Instance,
    result: SearchResult,
    *,
    certify: bool,
    time_limit_s: float | None,
    robust: RobustSummary | None = None,
) -> tuple[Plan, list[str]]:
    """The plan of a result, with level ``checked`` if the checker agrees; and all objections."""
    from prism_cp.check import check_plan
    from prism_cp.plan_builder import build_plan

    certificate = None
    if certify:
        from prism_cp.certify import certify as certify_result
        from prism_cp.cli.running import unless_stopped

        certificate = unless_stopped(lambda: certify_result(instance, result, time_limit_s=time_limit_s))
        if certificate is None:
            message_console().print("certification stopped; the plan carries no further levels")
    plan = build_plan(instance, result, certificate).model_copy(update={"robust": robust})
    report = check_plan(plan, instance)
    if report.ok and plan.layout is not None:
        levels = ("checked", *plan.certificate.levels)
        plan = plan.model_copy(update={"certificate": plan.certificate.model_copy(update={"levels": levels})})
    return plan, [*contradictions(plan), *(str(finding) for finding in report.findings)]


def contradictions(plan: Plan) -> list[str]:
    """What a certifying solver found that denies the claim."""
    return [
        f"certificate.{level}: {detail['contradiction']}"
        for level, detail in plan.certificate.details.items()
        if isinstance(detail, dict) and "contradiction" in detail
    ]
