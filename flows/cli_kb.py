"""`ragbraid kb`: the knowledge bases of a project."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import click

from ragbraid.dsl.tables import format_table
from ragbraid.flows.cli_errors import stop
from ragbraid.flows.cli_kb_graph import graph
from ragbraid.flows.cli_kb_place import DEFAULT_RESOURCE, Place, called, look, opened
from ragbraid.flows.cli_output import is_terminal, print_json
from ragbraid.flows.cli_params import json_option, profile_option, project_option, with_options
from ragbraid.registry.errors import DamagedStoreError, RunError, SettingsError

_shared = with_options(
    profile_option,
    project_option,
    click.option(
        "--flow",
        type=click.Path(path_type=Path),
        help="Look where this flow looks: in the folder of its project or its own, and at what it binds itself.",
    ),
    json_option,
)


@click.group()
def kb() -> None:
    """List, show, verify and drop knowledge bases.

    A knowledge base is called as the resource that it is bound to, unless it is given a `name`; `kb` is the one that
    flows use by default. Without a project file it lies in .ragbraid beside the flow that filled it: run this in that
    folder, or name the flow.
    """


@kb.command("list")
@_shared
def list_(profile: str | None, project: Path | None, flow: Path | None, as_json: bool) -> None:
    """List the knowledge bases of the project with their size and what built them."""
    place = look(profile, project, flow)
    rows = [_row(place, resource) for resource in place.resources()]
    if as_json:
        print_json(rows)
        return
    keys = ("name", "resource", "provider", "documents", "chunks", "generation", "embedder", "sparse")
    click.echo(format_table([key.upper() for key in keys], [[str(row.get(key, "-")) for key in keys] for row in rows]))
    for row in rows:
        if "error" in row:
            click.echo(f"{row['name']}: {row['error']}", err=True)


@kb.command()
@click.argument("name", default=DEFAULT_RESOURCE)
@_shared
def show(name: str, profile: str | None, project: Path | None, flow: Path | None, as_json: bool) -> None:
    """Show one knowledge base and its documents."""
    with opened(look(profile, project, flow).find(name)) as base:
        info, documents = base.info(), list(base.documents())
    if as_json:
        print_json({"info": info, "documents": documents})
        return
    for key, value in info.model_dump().items():
        click.echo(f"{key:<16} {value}")
    click.echo()
    rows = [(d.source, str(len(d.chunk_ids)), d.state, d.content_hash[:12]) for d in documents]
    click.echo(format_table(("SOURCE", "CHUNKS", "STATE", "CONTENT"), rows))


@kb.command()
@click.argument("name", default=DEFAULT_RESOURCE)
@_shared
def verify(name: str, profile: str | None, project: Path | None, flow: Path | None, as_json: bool) -> None:
    """Look for anything inconsistent; exit code 1 when there is something."""
    with opened(look(profile, project, flow).find(name)) as base:
        base.info()  # what does not exist is not well
        problems = base.verify()
    if as_json:
        print_json(problems)
    else:
        click.echo("\n".join(problems) if problems else f"{base.name}: all is well")
    sys.exit(1 if problems else 0)


@kb.command()
@click.argument("name", default=DEFAULT_RESOURCE)
@click.option("--yes", is_flag=True, help="Do not ask.")
@_shared
def drop(name: str, yes: bool, profile: str | None, project: Path | None, flow: Path | None, as_json: bool) -> None:
    """Delete a knowledge base with everything in it, also one whose files are damaged."""
    bound = look(profile, project, flow).find(name)
    name = called(bound)
    try:
        with opened(bound) as base:
            info = base.info()
            _confirm(f"Delete `{name}` with {info.documents} documents and {info.chunks} chunks?", yes)
            base.drop()
    except DamagedStoreError as error:
        if not error.folder:
            raise
        _confirm(f"`{name}` is damaged and cannot be opened. Delete the folder {error.folder}?", yes)
        shutil.rmtree(error.folder)
        if as_json:
            print_json({"dropped": name, "folder": error.folder})
        else:
            click.echo(f"dropped `{name}`, which was damaged: deleted the folder {error.folder}")
        return
    if as_json:
        print_json({"dropped": name, "documents": info.documents, "chunks": info.chunks})
    else:
        click.echo(f"dropped `{name}` with {info.documents} documents and {info.chunks} chunks")


kb.add_command(_shared(graph))


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not is_terminal(sys.stdin):
        raise click.UsageError("there is nobody to ask whether to delete it; say so with --yes")
    try:
        agreed = click.confirm(question, err=True)
    except click.Abort as ending:
        click.echo(err=True)  # ends the line of the question
        if isinstance(ending.__context__, KeyboardInterrupt):
            stop("stopped; nothing was deleted")
        agreed = False  # the end of the input answers nothing
    if not agreed:
        click.echo("nothing was deleted", err=True)
        sys.exit(1)


def _row(place: Place, resource: str) -> dict[str, Any]:
    row: dict[str, Any] = {"name": resource, "resource": resource}
    try:
        bound = place.bind(resource)
        row |= {"name": called(bound), "provider": bound.provider.name}
        with opened(bound) as base:
            return base.info().model_dump() | row
    except (SettingsError, RunError) as error:
        return row | {"error": str(error)}
