"""Command line room: ``prism-cp catalog``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from prism_cp.cli.options import JsonOption
from prism_cp.cli.output import data_console, print_json

app = typer.Typer(
    help="Models, devices, clusters and framework profiles that instances can name.",
    epilog="Examples:\n\nprism-cp catalog list models\n\nprism-cp catalog show h100",
    invoke_without_command=True,
)


@app.callback()
def default(context: typer.Context, json: JsonOption = False) -> None:
    """Without a command: list everything."""
    if context.invoked_subcommand is None:
        list_entries(None, json)


@app.command("list")
def list_entries(
    section: Annotated[str | None, typer.Argument(help="models, devices, clusters or profiles")] = None,
    json: JsonOption = False,
) -> None:
    """List entry names, of one section or of all."""
    import json as json_text

    from prism_cp.inputs.catalog import SECTIONS, catalog_names

    names = {one: list(catalog_names(one)) for one in ([section] if section else SECTIONS)}
    if json:
        print_json(json_text.dumps(names, indent=2))
        return
    from rich.columns import Columns

    console = data_console()
    for one, entries in names.items():
        console.print(f"[bold]{one}[/bold] ({len(entries)})")
        console.print(Columns(entries, padding=(0, 3), expand=False))
        console.print()


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="Entry name; SECTION/NAME where a name occurs in several sections.")],
    json: JsonOption = False,
) -> None:
    """Show an entry as its data file has it, with the source of every value."""
    found = find_entries(name)
    import json as json_text

    if json:
        print_json(json_text.dumps(found, indent=2))
        return
    import yaml

    text = yaml.safe_dump(found, sort_keys=False, allow_unicode=True, width=110)
    data_console().print(text, markup=False, soft_wrap=True, end="")


def find_entries(name: str) -> dict[str, Any]:
    """Every entry of that name by section (a device and a cluster may share one).

    Raises
    ------
    InstanceError
        There is none; the message suggests close names.
    """
    from prism_cp.errors import InstanceError
    from prism_cp.inputs.catalog import SECTIONS, catalog_entry, catalog_names
    from prism_cp.inputs.suggest import accepted_names

    section, slash, rest = name.partition("/")
    if slash and section in SECTIONS:
        return {section: catalog_entry(section, rest)}
    found = {one: catalog_entry(one, name) for one in SECTIONS if name in catalog_names(one)}
    if not found:
        every = dict.fromkeys(entry for one in SECTIONS for entry in catalog_names(one))
        raise InstanceError("name", f"{name!r} is not in the catalogue", accepted_names(name, every))
    return found
