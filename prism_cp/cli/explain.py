"""Command line room: ``prism-cp explain``."""

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
from prism_cp.cli.output import data_console, print_json
from prism_cp.cli.sensitivity import (
    DEFAULT_RANGE,
    DEFAULT_RESOLUTION,
    SensitivityOptions,
    probed,
    sensitivity_options,
)
from prism_cp.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from prism_cp.inputs.instance import Instance
    from prism_cp.plan import Plan
    from prism_cp.search.options import SearchOptions

EXAMPLES = (
    "Examples:\n\n"
    "prism-cp explain plan.json\n\n"
    "prism-cp explain instances/tiny/infeasible-states-4.yaml\n\n"
    "prism-cp explain plan.json --sensitivity --time-limit 30\n\n"
    "prism-cp explain plan.json --sensitivity --constant cluster.links.1.bytes_per_s --sensitivity-range 0.25..4\n\n"
    "prism-cp explain --model llama-3.1-405b --cluster 64xh100 --gbs 128 --seq-len 8192 --json"
)
PLAN_MARK = "schema_version"


def explain(
    source: Annotated[
        Path | None,
        typer.Argument(metavar="INSTANCE_OR_PLAN", help="Instance (YAML), or plan (JSON).", show_default=False),
    ] = None,
    model: ModelOption = None,
    cluster: ClusterOption = None,
    gbs: GbsOption = None,
    seq_len: SeqLenOption = None,
    profile: ProfileOption = None,
    set_: SetOption = None,
    json: JsonOption = False,
    top: TopOption = 5,
    time_limit: TimeLimitOption = None,
    gap: GapOption = 0.0,
    workers: WorkersOption = None,
    seed: SeedOption = 0,
    sensitivity: Annotated[
        bool,
        typer.Option(
            "--sensitivity",
            help="Also by how much each constant may change while the layout stays optimal. Every probe is a search, "
            "limited by --time-limit (60 s unless given); nothing is claimed between probed factors.",
        ),
    ] = False,
    sensitivity_range: Annotated[
        str, typer.Option("--sensitivity-range", metavar="LOW..HIGH", help="Factors to probe.")
    ] = DEFAULT_RANGE,
    resolution: Annotated[
        float, typer.Option("--resolution", help="A change is bracketed by factors that differ by at most this share.")
    ] = DEFAULT_RESOLUTION,
    constant: Annotated[
        list[str] | None,
        typer.Option("--constant", metavar="PATH", help="Probe only this one, e.g. job.expert_load; repeatable."),
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Say why: what bounds a plan and why other layouts lost; or why nothing fits, and what would help."""
    options = search_options(time_limit, gap, workers, seed, top)
    factors = sensitivity_options(sensitivity_range, resolution, constant)
    if constant and not sensitivity:
        raise UsageError(f"--constant: {', '.join(constant)} without --sensitivity (accepted: both)")
    wanted = factors if sensitivity else None
    from prism_cp.cli.running import GentleStop, exit_code, search

    if source is not None and is_plan(source):
        given = {"--model": model, "--cluster": cluster, "--gbs": gbs, "--seq-len": seq_len, "--profile": profile}
        extra = [name for name, value in {**given, "--set": set_ or None}.items() if value is not None]
        if extra:
            raise UsageError(f"{', '.join(extra)}: {source} is a plan (accepted with these options: an instance)")
        from prism_cp.estimation.statements import check_plan
        from prism_cp.plan import read_plan

        plan = read_plan(source)
        check_plan(plan)
        with GentleStop():  # between and after searches, too
            if plan.status == "infeasible" and wanted is None:
                _explain_infeasible(plan.instance, options, as_json=json)
            else:
                _explain_plan(plan, wanted, options, as_json=json, quiet=quiet)
        return

    instance = instance_from_options(source, set_, model, cluster, gbs, seq_len, profile)
    with GentleStop():
        result = search(instance, options, quiet=quiet)
        code = exit_code(result, gap)
        if code == ExitCode.INFEASIBLE:
            _explain_infeasible(instance, options, as_json=json)
        else:
            from prism_cp.plan_builder import build_plan

            _explain_plan(build_plan(instance, result), wanted, options, as_json=json, quiet=quiet)
    raise typer.Exit(int(code))


def is_plan(path: Path) -> bool:
    """Whether a file looks like a plan: a JSON object with a schema version."""
    if path.suffix.lower() != ".json":
        return False
    from prism_cp.inputs.reading import read_mapping

    return PLAN_MARK in read_mapping(path)


def _explain_plan(
    plan: Plan, wanted: SensitivityOptions | None, options: SearchOptions, *, as_json: bool, quiet: bool
) -> None:
    """What bounds the plan; with `wanted` also what its layout can bear, which takes searches."""
    import json

    from prism_cp.report.explain_report import plan_explanation, print_plan_explanation
    from prism_cp.report.robust_report import print_robust
    from prism_cp.report.sensitivity_report import print_sensitivity, sensitivity_as_json

    found, complete = probed(plan, wanted, options, quiet=quiet) if wanted is not None else ([], True)
    if as_json:
        explanation = plan_explanation(plan)
        if plan.robust is not None:
            explanation["robust"] = plan.robust.model_dump(mode="json")
        if wanted is not None:
            explanation["sensitivity"] = sensitivity_as_json(
                found,
                low=wanted.low,
                high=wanted.high,
                resolution=wanted.resolution,
                time_unit_s=plan.time_unit_s,
                complete=complete,
            )
        print_json(json.dumps(explanation, indent=2))
    else:
        print_plan_explanation(plan, data_console())
        if plan.robust is not None:
            print_robust(plan.robust, plan.time_unit_s, data_console())
        if wanted is not None and plan.layout is not None:
            print_sensitivity(found, plan.layout.layout(), data_console(), complete=complete)
    if not complete:
        raise typer.Exit(int(ExitCode.STOPPED_WITH_INCUMBENT))


def _explain_infeasible(instance: Instance, options: SearchOptions, *, as_json: bool) -> None:
    """Shortages of the closest layouts, and verified changes (none when stopped by Ctrl-C)."""
    import json

    from prism_cp.cli.running import unless_stopped
    from prism_cp.report.explain_report import infeasible_explanation, print_infeasible
    from prism_cp.report.infeasible import closest_layouts
    from prism_cp.search.relaxations import cheapest_relaxations

    closest = unless_stopped(lambda: closest_layouts(instance)) or []
    relaxations = unless_stopped(lambda: cheapest_relaxations(instance, options)) or []
    if as_json:
        explanation = infeasible_explanation(instance.name, closest, relaxations, instance.time_unit_s)
        print_json(json.dumps(explanation, indent=2))
    else:
        print_infeasible(instance.name, closest, relaxations, instance.time_unit_s, data_console())
