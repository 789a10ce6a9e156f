"""What travels with a deployment: a flow's files by content and what its project binds, never a secret.

A bundle holds the flow file, the flows that it uses, its prompt files, and those resources of the project (its profile
chosen) that the flow asks for, references such as `${env.LLM_KEY}` unresolved. Local node modules are named, not held.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from importlib.metadata import version as installed_version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ragbraid.dsl.compile import load_plan
from ragbraid.dsl.files import files_given
from ragbraid.dsl.plan import Plan, Visible
from ragbraid.dsl.walk import node_steps
from ragbraid.flows.api import Flow, load
from ragbraid.flows.project import Project, ResourceEntry, local_module_name, project_catalogue
from ragbraid.flows.resources import BoundResource, bind_resource, is_bound, resource_roles
from ragbraid.flows.secrets import has_reference
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.errors import SettingsError

FOLDER_VARIABLE = "RAGBRAID_FOLDER"
"""Environment variable of a worker: the folder that a deployed flow's relative paths start from there."""

MAX_BYTES = 96 * 1024
"""How long a packed bundle may be: it passes through an environment variable, of which Linux allows 128 KiB."""

_FORMAT = 1
_URL_WITH_PASSWORD = re.compile(r"://[^/@\s:]*:[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A flow as it was when it was deployed. Paths are relative to `folder`, with forward slashes."""

    folder: str
    """Where relative paths start from: the project's folder on the machine that deployed."""
    flow: str
    version: str
    """The hash of the plan."""
    files: Mapping[str, str]
    flows: Mapping[str, str]
    """Registered flows that the flow uses: name and file."""
    resources: Mapping[str, Mapping[str, Any]]
    modules: Mapping[str, str]
    """Local node modules that the flow needs, each with a digest of its content."""
    profile: str | None = None
    visible: Visible | None = None
    """What of it is a task run, where the deployment says another than the flow."""
    ragbraid: str = installed_version("ragbraid")
    task_runner: str | None = None
    """Who runs the items of maps, where the deployment says another than the flow."""
    task_runners: Mapping[str, str] = field(default_factory=dict)
    """Addresses of the project's task runners by their names."""

    def pack(self, limit: int = MAX_BYTES) -> str:
        """Return the bundle as text of letters, digits and `+/=`.

        Raises:
            SettingsError: it is longer than `limit`.
        """
        plain = json.dumps({"format": _FORMAT, **asdict(self)}, sort_keys=True, ensure_ascii=False).encode()
        packed = b64encode(zlib.compress(plain, 9)).decode()
        if len(packed) > limit:
            raise SettingsError(
                f"{self.flow} and the files that it uses are too large to travel: {len(packed):,} bytes packed, "
                f"and {limit:,} are allowed",
                hint="shorten its prompt files, or put what they hold into documents",
            )
        return packed

    @staticmethod
    def unpack(packed: str) -> Bundle:
        """Return the bundle that a text holds.

        Raises:
            SettingsError: it is none, or one of a later version of ragbraid.
        """
        try:
            fields = json.loads(zlib.decompress(b64decode(packed, validate=True)))
            found = fields.pop("format")
            if found == _FORMAT:
                return Bundle(**fields)
        except (ValueError, zlib.error, KeyError, TypeError, AttributeError):
            raise SettingsError("what came with the deployment is no flow", hint="deploy it again") from None
        raise SettingsError(
            f"the flow was deployed by another version of ragbraid (format {found}, this one reads {_FORMAT})",
            hint="install the same version of ragbraid where flows are deployed and where they run",
        )


def load_with_bundle(
    path: str | Path, *, profile: str | None = None, project: str | Path | None = None
) -> tuple[Flow, Bundle]:
    """Load a flow, and everything that it was made of; see `ragbraid.load`.

    Raises:
        FlowError: the file has mistakes.
        SettingsError: the project file is wrong, or a secret stands where it would travel.
    """
    flow = load(Path(os.path.abspath(path)), profile=profile, project=project)
    return flow, bundle_of(flow)


def bundle_of(flow: Flow, *, goes_to: str = "be stored on the Prefect server") -> Bundle:
    """Return everything that a flow was made of.

    Args:
        flow: a flow that was loaded from files, or came in a bundle itself.
        goes_to: what would become of a secret in it, to complete "the secret would ...".

    Raises:
        SettingsError: a secret stands where it would travel, or the flow was not made from files.
    """
    if flow.files is None:
        raise SettingsError(
            f"`{flow.name}` was not loaded from a file, so it cannot go to another process",
            hint="load it by `ragbraid.load`",
        )
    return _make_bundle(flow, flow.files, goes_to)


def open_bundle(bundle: Bundle) -> Flow:
    """Compile a bundle, as it was deployed; of this machine it reads nothing but the local modules that it needs.

    Raises:
        SettingsError: a module, or the folder that relative paths start from, is not here.
        FlowError: the nodes that are installed here are not those that the flow was checked with.
    """
    folder = _folder_of(bundle)
    project = Project(
        folder=folder,
        node_modules=tuple(_present_module(name, folder) for name in bundle.modules),
        flow_files=tuple((name, _within(folder, file)) for name, file in bundle.flows.items()),
        resources=MappingProxyType({name: ResourceEntry(name, **entry) for name, entry in bundle.resources.items()}),
        profile=bundle.profile,
        task_runners=MappingProxyType(dict(bundle.task_runners)),
    )
    catalogue = project_catalogue(project)
    contents = {_within(folder, file): text.encode() for file, text in bundle.files.items()}
    with files_given(contents):
        plan = load_plan(_within(folder, bundle.flow), catalogue, resource_roles(project, catalogue))
    if not folder.is_dir() and (needed := next(_places(plan, project, catalogue), None)):
        raise SettingsError(
            f"`{plan.name}` was deployed from {folder}, which is not here, and {needed} lies in it",
            hint=f"set {FOLDER_VARIABLE} to the folder that its relative paths start from on this machine",
        )
    flow = Flow(plan, project, catalogue=catalogue, files=contents)
    flow = flow if bundle.task_runner is None else flow.with_task_runner(bundle.task_runner)
    return flow if bundle.visible is None else flow.with_visible(bundle.visible)


def differences_here(bundle: Bundle) -> list[str]:
    """Return sentences about what a run uses here that is not as it was where the flow was deployed."""
    folder = _folder_of(bundle)
    here = installed_version("ragbraid")
    sentences = [
        f"{_within(folder, name)} is not as it was when the flow was deployed; its nodes run as they are now"
        for name, digest in bundle.modules.items()
        if _digest(_within(folder, name)) != digest
    ]
    if bundle.ragbraid != here:
        sentences.append(f"the flow was deployed by ragbraid {bundle.ragbraid} and runs on ragbraid {here}")
    return sentences


def _folder_of(bundle: Bundle) -> Path:
    return Path(os.environ.get(FOLDER_VARIABLE) or bundle.folder)


def _make_bundle(flow: Flow, seen: Mapping[Path, bytes], goes_to: str) -> Bundle:
    folder = flow.project.folder
    resources = {name: entry for name, entry in flow.project.resources.items() if name in flow.plan.roles}
    _refuse_secrets(flow, goes_to)
    return Bundle(
        folder=str(folder),
        flow=_relative(Path(flow.plan.file), folder),
        version=flow.plan.hash,
        files={_relative(path, folder): content.decode() for path, content in seen.items()},
        flows={name: _relative(path, folder) for name, path in flow.project.flow_files if path in seen},
        resources={
            name: {"provider": entry.provider, "settings": dict(entry.settings), "origin": entry.origin}
            for name, entry in resources.items()
        },
        modules={_relative(path, folder): _digest(path) for path in _modules_of(flow)},
        profile=flow.project.profile,
        task_runners=dict(flow.project.task_runners),
    )


def _refuse_secrets(flow: Flow, goes_to: str) -> None:
    """Raise where a secret stands literally among what would leave this process."""
    for bound in _bound(flow.plan, flow.project, flow.catalogue):
        for setting, value in bound.settings.items():
            literal = setting in bound.provider.secrets and value is not None and not has_reference(value)
            if literal or (isinstance(value, str) and _URL_WITH_PASSWORD.search(value)):
                raise SettingsError(
                    f"{bound.origin}: the secret in `{setting}` would {goes_to}",
                    hint=f'write `{setting} = "${{env.NAME}}"` and set NAME where the flow runs',
                )


def _modules_of(flow: Flow) -> Iterator[Path]:
    """Yield the local modules that hold a node or a provider which the flow uses."""
    functions = [step.node.function for step in node_steps(flow.plan.body)]
    functions += [bound.provider.factory for bound in _bound(flow.plan, flow.project, flow.catalogue)]
    used = {function.__module__ for function in functions}
    yield from (path for path in flow.project.node_modules if local_module_name(path) in used)


def _present_module(name: str, folder: Path) -> Path:
    path = _within(folder, name)
    if not path.is_file():
        raise SettingsError(
            f"the flow needs the nodes of {name}, which did not travel with it, and {path} is not here",
            hint="copy the module there, or install it as a package with an entry point in `ragbraid.nodes`",
        )
    return path


def _places(plan: Plan, project: Project, catalogue: Catalogue) -> Iterator[str]:
    """Yield, for every setting of a resource that is a path relative to the project's folder, words that name it."""
    for bound in _bound(plan, project, catalogue):
        for setting, value in bound.settings.items():
            is_path = setting == "path" or setting.endswith("_path")
            if is_path and isinstance(value, str) and not has_reference(value) and not Path(value).is_absolute():
                yield f"`{setting}` ({value}) of the resource `{bound.name}`"


def _bound(plan: Plan, project: Project, catalogue: Catalogue) -> Iterator[BoundResource]:
    """Yield everything that the flow asks for and that something is bound to.

    Raises:
        SettingsError: as `bind_resource`.
    """
    for name, role in plan.roles.items():
        if is_bound(name, role, plan, project):
            yield bind_resource(name, role, plan, project, catalogue)


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _within(folder: Path, file: str) -> Path:
    return Path(os.path.normpath(folder / file))


def _digest(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()[:16]
