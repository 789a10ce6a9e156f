"""The project file `ragbraid.toml`: local nodes, resources, profiles.

nodes = ["my_nodes.py"]            # modules of nodes, relative to this file
flows = {hybrid = "flows/qa.yaml"}  # flows that others use by name: `use: hybrid`
profile = "laptop"                 # used when neither --profile nor RAGBRAID_PROFILE says another

[resources.kb]
use = "qdrant.embedded"
path = "data/kb"

[profiles.production.resources.kb]
use = "qdrant.server"
url = "${env.QDRANT_URL}"

[profiles.production.task_runners]
dask = "tcp://scheduler:8786"      # where flows with `task_runner: dask` send the items of their maps
"""

from __future__ import annotations

import importlib.util
import os
import sys
import tomllib
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from ragbraid.registry.catalogue import Catalogue, installed_catalogue
from ragbraid.registry.errors import RagbraidError, SettingsError
from ragbraid.registry.suggest import did_you_mean

PROJECT_FILE = "ragbraid.toml"
PROFILE_VARIABLE = "RAGBRAID_PROFILE"
LOCAL_MODULES = "ragbraid_local"
"""What the names of local node modules begin with in `sys.modules`."""

_CODE = "__ragbraid_code__"
"""The attribute of a local module that identifies the file as it was read."""

_TOP_KEYS = ("nodes", "flows", "profile", "profiles", "resources", "task_runners")
_TASK_RUNNERS = ("dask", "ray")


@dataclass(frozen=True, slots=True)
class ResourceEntry:
    """What the project file binds to a name: a provider and its settings, secrets still by reference.

    `origin` says where it stands, for messages: `[resources.kb] in ragbraid.toml`.
    """

    name: str
    provider: str
    settings: Mapping[str, Any]
    origin: str


@dataclass(frozen=True, slots=True)
class Project:
    """A project as one run sees it: its profile is chosen and merged into `resources`.

    `folder` is what relative paths start from: the project file's, or the flow file's where there is no project file.
    """

    folder: Path
    file: Path | None = None
    node_modules: tuple[Path, ...] = ()
    flow_files: tuple[tuple[str, Path], ...] = ()
    """Registered flows: name and file."""
    resources: Mapping[str, ResourceEntry] = field(default_factory=lambda: MappingProxyType({}))
    profile: str | None = None
    profiles: tuple[str, ...] = ()
    task_runners: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """Address of a task runner's cluster by the runner's name, `${env.NAME}` in it unresolved."""


def find_project_file(start: Path) -> Path | None:
    """Return the nearest `ragbraid.toml` in a folder or one of those above it, or None."""
    folder = start.resolve()
    for candidate in (folder, *folder.parents):
        if (candidate / PROJECT_FILE).is_file():
            return candidate / PROJECT_FILE
    return None


def load_project(start: str | Path = ".", *, project: str | Path | None = None, profile: str | None = None) -> Project:
    """Read the project that a flow file belongs to.

    Args:
        start: the flow file or a folder; the project file is looked for from there upwards.
        project: a project file, or a folder that holds one, to take instead.
        profile: the profile to use; else `RAGBRAID_PROFILE`, else the file's own `profile`.

    Raises:
        SettingsError: the file cannot be read or says something that ragbraid does not know, or there is no such profile.
    """
    start = Path(start)
    folder = start.parent if start.suffix in (".yaml", ".yml") else start
    file = _given_file(Path(project)) if project is not None else find_project_file(folder)
    wanted = profile or os.environ.get(PROFILE_VARIABLE) or None
    if file is None:
        if wanted:
            raise SettingsError(
                f"there is no profile `{wanted}`: no {PROJECT_FILE} in {folder.resolve()} or above it",
                hint=f"write `[profiles.{wanted}]` into a {PROJECT_FILE} beside the flow",
            )
        return Project(folder=folder.resolve())
    return _read(file.resolve(), wanted)


def _given_file(path: Path) -> Path:
    file = path / PROJECT_FILE if path.is_dir() else path
    if not file.is_file():
        raise SettingsError(f"there is no project file {file}")
    return file


def _read(file: Path, wanted: str | None) -> Project:
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{file} is not TOML: {error}") from None
    except UnicodeDecodeError:
        raise SettingsError(f"{file} is not UTF-8 text") from None
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}") from None
    _refuse_unknown(table, _TOP_KEYS, file, "")
    profiles = _table(table, "profiles", file, "")
    entries = _entries(_table(table, "resources", file, ""), {}, file, "")
    # Every profile is read, so that a mistake in one that is rarely used does not wait for the day it is needed.
    merged = {name: _profile_entries(name, profiles, entries, file) for name in profiles}
    name = wanted or _text(table, "profile", file)
    if name is not None and name not in merged:
        raise _no_such_profile(name, merged, file)
    return Project(
        folder=file.parent,
        file=file,
        node_modules=_node_modules(table.get("nodes", []), file),
        flow_files=_flow_files(_table(table, "flows", file, ""), file),
        resources=MappingProxyType(merged[name] if name is not None else entries),
        profile=name,
        profiles=tuple(sorted(merged)),
        task_runners=MappingProxyType(_addresses(table, name, file)),
    )


def _addresses(table: Mapping[str, Any], profile: str | None, file: Path) -> dict[str, str]:
    """Return the addresses of task runners, those of the profile before those of the whole project."""
    found: dict[str, str] = {}
    profiles = _table(table, "profiles", file, "")
    places = [("", table), *((f"profiles.{name}.", profiles[name]) for name in sorted(profiles))]
    for where, part in places:
        addresses = _table(part, "task_runners", file, where)
        _refuse_unknown(addresses, _TASK_RUNNERS, file, f"{where}task_runners.")
        given = {runner: _text(addresses, runner, file) for runner in addresses}
        if where in ("", f"profiles.{profile}."):
            found.update((runner, address) for runner, address in given.items() if address)
    return found


def _profile_entries(
    name: str, profiles: Mapping[str, Any], base: Mapping[str, ResourceEntry], file: Path
) -> dict[str, ResourceEntry]:
    where = f"profiles.{name}."
    profile = _table(profiles, name, file, "profiles.")
    _refuse_unknown(profile, ("resources", "task_runners"), file, where)
    return {**base, **_entries(_table(profile, "resources", file, where), base, file, where)}


def _entries(
    table: Mapping[str, Any], base: Mapping[str, ResourceEntry], file: Path, where: str
) -> dict[str, ResourceEntry]:
    entries = {}
    for name in table:
        settings = dict(_table(table, name, file, f"{where}resources."))
        heading = f"[{where}resources.{name}]"
        provider = settings.pop("use", None)
        if provider is not None and not isinstance(provider, str):
            raise SettingsError(f'{file}: `use` of {heading} must be a text such as "qdrant.embedded"')
        under = base.get(name)
        if provider is None and under is not None:
            # A profile that names no provider changes single settings of the one below it.
            provider, settings = under.provider, {**under.settings, **settings}
        if provider is None:
            raise SettingsError(
                f"{file}: {heading} does not say what stands behind `{name}`", hint='write `use = "qdrant.embedded"`'
            )
        entries[name] = ResourceEntry(name, provider, MappingProxyType(settings), f"{heading} in {file}")
    return entries


def _node_modules(value: Any, file: Path) -> tuple[Path, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise SettingsError(f'{file}: `nodes` must be a list of files such as ["my_nodes.py"]')
    paths = tuple((file.parent / item).resolve() for item in value)
    for path in paths:
        if not path.is_file():
            raise SettingsError(f"{file}: `nodes` names {path}, which does not exist")
    return paths


def _flow_files(table: Mapping[str, Any], file: Path) -> tuple[tuple[str, Path], ...]:
    found = []
    for name, value in table.items():
        path = (file.parent / str(value)).resolve()
        if not isinstance(value, str) or not path.is_file():
            raise SettingsError(f"{file}: `flows.{name}` must name a flow file; there is no {path}")
        found.append((name, path))
    return tuple(found)


def _table(table: Mapping[str, Any], key: str, file: Path, where: str) -> Mapping[str, Any]:
    value = table.get(key, {})
    if not isinstance(value, dict):
        raise SettingsError(f"{file}: `{where}{key}` must be a table, written as [{where}{key}]")
    return value


def _text(table: Mapping[str, Any], key: str, file: Path) -> str | None:
    value = table.get(key)
    if value is not None and not isinstance(value, str):
        raise SettingsError(f"{file}: `{key}` must be a text")
    return value


def _refuse_unknown(table: Mapping[str, Any], known: Iterable[str], file: Path, where: str) -> None:
    for key in table:
        if key not in known:
            known_keys = ", ".join(f"`{name}`" for name in known)
            raise SettingsError(
                f"{file}: unknown key `{where}{key}`; known here: {known_keys}", hint=did_you_mean(key, known)
            )


def _no_such_profile(name: str, profiles: Iterable[str], file: Path) -> SettingsError:
    known = sorted(profiles)
    listed = "it has " + ", ".join(f"`{other}`" for other in known) if known else "it has none"
    return SettingsError(f"{file} has no profile `{name}`; {listed}", hint=did_you_mean(name, known))


def project_catalogue(project: Project) -> Catalogue:
    """Return the catalogue of a project: everything that is installed, the nodes of its local modules, its flows.

    Raises:
        SettingsError: a local module cannot be loaded; says where in it.
        ContractError: a local module declares a node wrongly or under a name that is taken, or a flow has such a name.
    """
    if not project.node_modules and not project.flow_files:
        return installed_catalogue()
    stamps = tuple((path, path.stat().st_mtime_ns) for path in project.node_modules)
    return _local_catalogue(stamps, project.flow_files)


@lru_cache(maxsize=8)
def _local_catalogue(stamps: tuple[tuple[Path, int], ...], flow_files: tuple[tuple[str, Path], ...]) -> Catalogue:
    catalogue = Catalogue()
    catalogue.add_installed()
    for path, _ in stamps:
        catalogue.add_module(_load_module(path))
    for name, path in flow_files:
        catalogue.add_flow(name, path)
    return catalogue


def local_module_name(path: Path) -> str:
    """Return the name under which a local module is imported."""
    # It is the same in every process, so that results pickled in one can be read in another.
    return f"{LOCAL_MODULES}_{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"


def code_of(function: Callable[..., Any]) -> str:
    """Identify the file that a node of a local module was read from; empty for nodes of packages, which have versions."""
    return str(getattr(sys.modules.get(function.__module__), _CODE, ""))


def _load_module(path: Path) -> ModuleType:
    name = local_module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise SettingsError(f"{path} is no Python module")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        setattr(module, _CODE, sha256(path.read_bytes()).hexdigest()[:16])
        spec.loader.exec_module(module)
    except RagbraidError:
        del sys.modules[name]
        raise
    except Exception as error:  # the module is the user's: whatever it raises is told with its place
        del sys.modules[name]
        raise SettingsError(
            f"{path}{_line_of(error, path)} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    return module


def _line_of(error: Exception, path: Path) -> str:
    if isinstance(error, SyntaxError):
        return f":{error.lineno}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f":{lines[-1]}" if lines else ""
