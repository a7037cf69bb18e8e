"""Command line room: ``prism-cp estimate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from prism_cp.cli.options import JsonOption, SetOption, instance_from_options
from prism_cp.cli.output import data_console, print_json
from prism_cp.errors import UsageError

if TYPE_CHECKING:
    from prism_cp.estimation.configuration import Configuration

EXAMPLES = (
    "Examples:\n\n"
    "prism-cp estimate plan.json\n\n"
    "prism-cp estimate run.yaml --set layout.recompute=full --stages 15,16,16,15\n\n"
    "prism-cp estimate --megatron-args args.txt --cluster 64xh100\n\n"
    "prism-cp estimate --megatron-args cases.json --case NAME --cluster 8x910b --framework mindspeed"
)


def estimate(
    source: Annotated[
        Path | None,
        typer.Argument(help="Instance with every layout field pinned (YAML), or a plan (JSON).", show_default=False),
    ] = None,
    set_: SetOption = None,
    stages: Annotated[
        str | None,
        typer.Option("--stages", metavar="N,N,…", help="Decoder layers of every virtual stage.  [default: even]"),
    ] = None,
    megatron_args: Annotated[
        Path | None,
        typer.Option("--megatron-args", help="Megatron-LM arguments: text of --flag value, JSON, or YAML."),
    ] = None,
    case: Annotated[str | None, typer.Option("--case", help="Case in a JSON file of several argument lists.")] = None,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Devices x catalogue cluster of the arguments, e.g. 64xh100.")
    ] = None,
    framework: Annotated[str, typer.Option("--framework", help="megatron or mindspeed.")] = "megatron",
    json: JsonOption = False,
) -> None:
    """Predict memory and step time of one given configuration, whether or not it fits."""
    if (source is None) == (megatron_args is None):
        raise UsageError("estimate needs one source (accepted: INSTANCE, PLAN, or --megatron-args FILE)")
    if megatron_args is not None:
        if set_ or stages:
            raise UsageError("--set and --stages change an instance (accepted with --megatron-args: flags in the file)")
        run = _from_arguments(megatron_args, case, cluster, framework)
    else:
        assert source is not None
        if case is not None or cluster is not None or framework != "megatron":
            raise UsageError("--case, --cluster and --framework belong to --megatron-args (accepted: --set)")
        run = _from_file(source, set_, stages)

    from prism_cp.estimation.estimate import estimate as estimated
    from prism_cp.report.estimate_report import estimate_as_json, print_estimate

    found = estimated(run)
    if json:
        print_json(estimate_as_json(run, found))
    else:
        print_estimate(run, found, data_console())


def _from_file(source: Path, set_: list[str] | None, stages: str | None) -> Configuration:
    from prism_cp.estimation.statements import configuration_from_instance, configuration_from_plan

    if source.suffix.lower() == ".json":
        if set_ or stages:
            raise UsageError(f"--set and --stages change an instance, {source} is a plan (accepted: neither)")
        from prism_cp.plan import read_plan

        return configuration_from_plan(read_plan(source))
    instance = instance_from_options(source, set_, None, None, None, None, None)
    return configuration_from_instance(instance, None if stages is None else _sizes(stages))


def _sizes(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise UsageError(f"--stages: {text!r} (accepted: layers of every virtual stage, such as 15,16,16,15)")
    return [int(part) for part in parts]


def _from_arguments(path: Path, case: str | None, cluster: str | None, framework: str) -> Configuration:
    from prism_cp.estimation.megatron_arguments import configuration_from_arguments, read_arguments
    from prism_cp.estimation.megatron_arguments.arguments import FRAMEWORKS
    from prism_cp.inputs.catalog import catalog_names

    if framework not in FRAMEWORKS:
        raise UsageError(f"--framework: {framework!r} (accepted: {', '.join(FRAMEWORKS)})")
    number, _, family = (cluster or "").partition("x")
    if not number.isdecimal() or int(number) < 1 or family not in catalog_names("clusters"):
        names = ", ".join(catalog_names("clusters"))
        given = "is missing" if cluster is None else repr(cluster)
        raise UsageError(f"--cluster: {given} (accepted: devices x family, e.g. 64xh100; families: {names})")
    arguments = read_arguments(path, case)
    return configuration_from_arguments(
        arguments, cluster=family, num_devices=int(number), framework=framework, name=case or path.stem
    )
