"""`ragbraid kb`: the knowledge bases of a project."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ragbraid.dsl.compile import load_plan
from ragbraid.dsl.plan import Plan
from ragbraid.dsl.tables import format_table
from ragbraid.flows.cli_output import is_terminal, print_json
from ragbraid.flows.cli_params import json_option, profile_option, project_option, with_options
from ragbraid.flows.project import Project, load_project, project_catalogue
from ragbraid.flows.resources import (
    BoundResource,
    ResourcePool,
    bind_project_resource,
    bind_resource,
    project_resource_names,
    resource_roles,
)
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.errors import DamagedStoreError, RunError, SettingsError
from ragbraid.registry.knowledge import KnowledgeBase

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


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the names of knowledge bases are looked up: a project, and the flow whose eyes are borrowed."""

    project: Project
    catalogue: Catalogue
    plan: Plan | None

    def names(self) -> list[str]:
        """Return every name that stands for a knowledge base here."""
        used = [] if self.plan is None else [name for name, role in self.plan.roles.items() if role == "kb"]
        return sorted({*project_resource_names(self.project, self.catalogue, "kb"), *used})

    def bind(self, name: str) -> BoundResource:
        """Find what stands behind a name."""
        if self.plan is not None and name in self.plan.resources:
            return bind_resource(name, "kb", self.plan, self.project, self.catalogue)
        return bind_project_resource(name, "kb", self.project, self.catalogue)


@click.group()
def kb() -> None:
    """List, show, verify and drop knowledge bases.

    A knowledge base is named as the project file names it; `kb` is the one that flows use by default. Without a
    project file it lies in .ragbraid beside the flow that filled it: run this in that folder, or name the flow.
    """


@kb.command("list")
@_shared
def list_(profile: str | None, project: Path | None, flow: Path | None, as_json: bool) -> None:
    """List the knowledge bases of the project with their size and what built them."""
    place = _look(profile, project, flow)
    rows = [_row(place, name) for name in place.names()]
    if as_json:
        print_json(rows)
        return
    keys = ("name", "provider", "documents", "chunks", "generation", "embedder", "sparse")
    click.echo(format_table([key.upper() for key in keys], [[str(row.get(key, "-")) for key in keys] for row in rows]))
    for row in rows:
        if "error" in row:
            click.echo(f"{row['name']}: {row['error']}", err=True)


@kb.command()
@click.argument("name", default="kb")
@_shared
def show(name: str, profile: str | None, project: Path | None, flow: Path | None, as_json: bool) -> None:
    """Show one knowledge base and its documents."""
    with _opened(_look(profile, project, flow), name) as base:
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
@click.argument("name", default="kb")
@_shared
def verify(name: str, profile: str | None, project: Path | None, flow: Path | None, as_json: bool) -> None:
    """Look for anything inconsistent; exit code 1 when there is something."""
    with _opened(_look(profile, project, flow), name) as base:
        base.info()  # what does not exist is not well
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
    """Delete a knowledge base with everything in it, also one whose files are damaged."""
    try:
        with _opened(_look(profile, project, flow), name) as base:
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


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not is_terminal(sys.stdin):
        raise click.UsageError("there is nobody to ask whether to delete it; say so with --yes")
    if not click.confirm(question, err=True):
        click.echo("nothing was deleted", err=True)
        sys.exit(1)


def _look(profile: str | None, project: Path | None, flow: Path | None) -> _Place:
    found = load_project(flow or ".", project=project, profile=profile)
    catalogue = project_catalogue(found)
    plan = None if flow is None else load_plan(flow, catalogue, resource_roles(found, catalogue))
    return _Place(found, catalogue, plan)


@contextmanager
def _opened(place: _Place, name: str) -> Iterator[KnowledgeBase]:
    pool = ResourcePool()
    with closing(pool):
        base: KnowledgeBase = pool.open(place.bind(name))
        yield base


def _row(place: _Place, name: str) -> dict[str, Any]:
    row: dict[str, Any] = {"name": name}
    try:
        row["provider"] = place.bind(name).provider.name
        with _opened(place, name) as base:
            return base.info().model_dump() | row
    except (SettingsError, RunError) as error:
        return row | {"error": str(error)}
