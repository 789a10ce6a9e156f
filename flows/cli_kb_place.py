"""Where `ragbraid kb` looks: the project of the current folder, or the eyes of a flow; and what is called how there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import click

from ragbraid.dsl.compile import load_plan
from ragbraid.dsl.plan import Plan
from ragbraid.flows.project import PROJECT_FILE, Project, load_project, project_catalogue
from ragbraid.flows.resources import (
    DEFAULTS,
    BoundResource,
    ResourcePool,
    bind_project_resource,
    bind_resource,
    project_resource_names,
    resource_roles,
)
from ragbraid.flows.secrets import has_reference
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.knowledge import KnowledgeBase

DEFAULT_RESOURCE = "kb"
"""The resource that flows use by default, and what its knowledge base is called where nothing else is said."""

_FLOW = re.compile(rb"^ragbraid[ \t]*:", re.MULTILINE)
_FILLS = b"index.upsert"


@dataclass(frozen=True, slots=True)
class Place:
    """Where the names of knowledge bases are looked up: a project, and the flow whose eyes are borrowed."""

    project: Project
    catalogue: Catalogue
    plan: Plan | None

    def resources(self) -> list[str]:
        """Return the name of every resource that stands for a knowledge base here."""
        used = [] if self.plan is None else [name for name, role in self.plan.roles.items() if role == "kb"]
        return sorted({*project_resource_names(self.project, self.catalogue, "kb"), *used})

    def bind(self, resource: str) -> BoundResource:
        """Find what stands behind a resource."""
        if self.plan is not None and resource in self.plan.resources:
            return bind_resource(resource, "kb", self.plan, self.project, self.catalogue)
        return bind_project_resource(resource, "kb", self.project, self.catalogue)

    def find(self, name: str) -> BoundResource:
        """Find a knowledge base by the resource that it is bound to, or by what it is called itself.

        Raises:
            SettingsError: there is none, or several are called so.
        """
        resources = self.resources()
        if name in resources:
            return self.bind(name)
        found = []
        for resource in resources:
            with suppress(SettingsError):  # what is wrong with another one does not matter here
                bound = self.bind(resource)
                if called(bound) == name:
                    found.append(bound)
        if len(found) > 1:
            listed = " or ".join(f"`{bound.name}`" for bound in found)
            raise SettingsError(
                f"{len(found)} knowledge bases are called `{name}`; name the resource instead: {listed}"
            )
        return found[0] if found else self.bind(name)


def called(bound: BoundResource) -> str:
    """Return what a knowledge base is called, in the report of an ingestion and everywhere else."""
    own = bound.settings.get(bound.provider.name_setting or "")
    return own if isinstance(own, str) and not has_reference(own) else bound.name


def look(profile: str | None, project: Path | None, flow: Path | None) -> Place:
    """Return the place that the options of a command point at.

    Raises:
        SettingsError: nothing is here, and a flow nearby says where to look instead.
    """
    found = load_project(flow or ".", project=project, profile=profile)
    if flow is None and found.file is None:
        _point_to_flows(found.folder)
    catalogue = project_catalogue(found)
    plan = None if flow is None else load_plan(flow, catalogue, resource_roles(found, catalogue))
    return Place(found, catalogue, plan)


@contextmanager
def opened(bound: BoundResource) -> Iterator[KnowledgeBase]:
    """Open a knowledge base for the block."""
    with closing(ResourcePool()) as pool:
        base: KnowledgeBase = pool.open(bound)
        yield base


def _point_to_flows(folder: Path) -> None:
    """Say which command to type where a folder has no knowledge base and no project but flows, here or one below."""
    default = str(DEFAULTS["kb"][1]["path"])
    if (folder / default).is_dir():
        return
    flows = {path: text for path in sorted([*folder.glob("*.y*ml"), *folder.glob("*/*.y*ml")]) if (text := _flow(path))}
    below = [path for path in flows if path.parent != folder]
    nothing = f"there is no {PROJECT_FILE} in {folder} or above it, and no knowledge base has been filled here"
    if below:
        best = min(
            below, key=lambda path: (not (path.parent / default).is_dir(), _fills_first(path, flows[path]), path)
        )
        context = click.get_current_context()
        named = context.params.get("name", DEFAULT_RESOURCE)
        words = [*([named] if named != DEFAULT_RESOURCE else []), "--flow", str(best.relative_to(folder))]
        raise SettingsError(
            f"{nothing}; flows lie in {best.parent.relative_to(folder)}",
            hint=f"to look where they look, type: {context.command_path} {shlex.join(words)}",
        )
    if filling := [path for path, text in flows.items() if _FILLS in text]:
        first = min(filling, key=lambda path: (_fills_first(path, flows[path]), path))
        raise SettingsError(nothing, hint=f"to fill one, type: ragbraid ingest {shlex.quote(first.name)}")


def _fills_first(path: Path, text: bytes) -> int:
    """Return the place of a flow among those to name: plain ingestion, other flows that fill, all others."""
    return 2 if _FILLS not in text else int(path.stem != "ingest")


def _flow(path: Path) -> bytes | None:
    """Return the text of a flow file; None of any other."""
    with suppress(OSError):
        text = path.read_bytes()
        return text if _FLOW.search(text) else None
    return None
