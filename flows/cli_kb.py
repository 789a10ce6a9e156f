"""`ragbraid kb`: the knowledge bases of a project."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click

from ragbraid.dsl.tables import format_table
from ragbraid.flows.cli_output import print_json
from ragbraid.flows.project import Project, load_project, project_catalogue
from ragbraid.flows.resources import ResourcePool, bind_project_resource, project_resource_names
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.resources import KnowledgeBase

_SHARED = (
    click.option("--profile", help="The profile of ragbraid.toml to use."),
    click.option("--project", type=click.Path(path_type=Path), help="The project file (ragbraid.toml)."),
    click.option(
        "--flow", type=click.Path(path_type=Path), help="Look where this flow looks, when there is no project file."
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)


def _shared(function: Any) -> Any:
    for option in reversed(_SHARED):
        function = option(function)
    return function


@click.group()
def kb() -> None:
    """List, show, verify and drop knowledge bases.

    A knowledge base is named as the project file names it; `kb` is the one that flows use by default.
    """


@kb.command("list")
@_shared
def list_(profile: str | None, project: Path | None, flow: Path | None, as_json: bool) -> None:
    """List the knowledge bases of the project with their size and what built them."""
    found = load_project(flow or ".", project=project, profile=profile)
    rows = [_row(found, name) for name in project_resource_names(found, project_catalogue(found), "kb")]
    if as_json:
        print_json(rows)
        return
    keys = ("name", "documents", "chunks", "generation", "embedder", "sparse")
    click.echo(format_table([key.upper() for key in keys], [[str(row.get(key, "-")) for key in keys] for row in rows]))
    for row in rows:
        if "error" in row:
            click.echo(f"{row['name']}: {row['error']}", err=True)


@kb.command()
@click.argument("name", default="kb")
@_shared
def show(name: str, profile: str | None, project: Path | None, flow: Path | None, as_json: bool) -> None:
    """Show one knowledge base and its documents."""
    with _opened(load_project(flow or ".", project=project, profile=profile), name) as base:
        info, documents = base.info(), list(base.documents())
    if as_json:
        print_json({"info": info, "documents": [document.model_dump(mode="json") for document in documents]})
        return
    for key, value in info.model_dump().items():
        click.echo(f"{key:<16} {value}")
    click.echo()
    rows = [(d.source, str(len(d.chunk_ids)), d.state, d.content_hash[:12]) for d in documents]
    click.echo(format_table(("SOURCE", "CHUNKS", "STATE", "CONTENT"), rows))


@kb.command()
@click.argument("name", default="kb")
@_shared
def verify(name: str, profile: str | None, project: Path | None, flow: Path | None, as_json: bool) -> None:
    """Look for anything inconsistent; exit code 1 when there is something."""
    with _opened(load_project(flow or ".", project=project, profile=profile), name) as base:
        problems = base.verify()
    if as_json:
        print_json(problems)
    else:
        click.echo("\n".join(problems) if problems else f"{name}: all is well")
    sys.exit(1 if problems else 0)


@kb.command()
@click.argument("name", default="kb")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_shared
def drop(name: str, yes: bool, profile: str | None, project: Path | None, flow: Path | None, as_json: bool) -> None:
    """Delete a knowledge base with everything in it."""
    with _opened(load_project(flow or ".", project=project, profile=profile), name) as base:
        info = base.info()
        if not yes:
            question = f"Delete `{name}` with {info.documents} documents and {info.chunks} chunks?"
            click.confirm(question, abort=True, err=True)
        base.drop()
    if as_json:
        print_json({"dropped": name, "documents": info.documents, "chunks": info.chunks})
    else:
        click.echo(f"dropped `{name}`")


@contextmanager
def _opened(project: Project, name: str) -> Iterator[KnowledgeBase]:
    pool = ResourcePool()
    with closing(pool):
        base: KnowledgeBase = pool.open(bind_project_resource(name, "kb", project, project_catalogue(project)))
        yield base


def _row(project: Project, name: str) -> dict[str, Any]:
    try:
        with _opened(project, name) as base:
            return {**base.info().model_dump(), "name": name}
    except SettingsError as error:
        return {"name": name, "error": str(error)}
