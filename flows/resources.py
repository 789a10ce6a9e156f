"""Opening what stands behind a flow's resources: bound by name, opened once per process, closed at its end.

A name is bound by the first of: the flow's `resources`, the chosen profile, the project file, the embedded default
of its role. Nothing is opened before a step asks for it.
"""

from __future__ import annotations

import atexit
import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ragbraid.dsl.plan import Plan
from ragbraid.dsl.walk import node_steps
from ragbraid.flows.project import Project
from ragbraid.flows.secrets import has_reference, hide, missing_references, redact, redacted, resolve
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.errors import RagbraidError, ServiceError, SettingsError
from ragbraid.registry.providers import ResourceProvider, ResourceSetting
from ragbraid.registry.suggest import did_you_mean

_logger = logging.getLogger(__name__)

DEFAULTS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "kb": ("qdrant.embedded", {"path": ".ragbraid/kb"}),
    "embedder": ("packaged.e5", {}),
    "token_embedder": ("packaged.e5_tokens", {}),
    "sparse": ("bm25.multilingual", {}),
}
"""What serves a role that nothing is bound to: no server, no key, no download. Reranker and LLM have no default."""

_WHAT_TO_BIND = {
    "reranker": 'use = "fastembed.cross_encoder"',
    "llm": 'use = "openai.chat"',
}


@dataclass(frozen=True, slots=True)
class BoundResource:
    """A name with the provider that stands behind it, its settings checked but secrets still by reference.

    `folder` is what relative paths start from (settings of type Path, and texts named `path` or `..._path`); `origin`
    names the place of the binding for messages.
    """

    name: str
    role: str
    provider: ResourceProvider
    settings: Mapping[str, Any]
    folder: Path
    origin: str


_Binding = tuple[str, Mapping[str, Any], Path, str]
"""Provider, its settings, the folder that relative paths start from, and the place of the binding."""


# -- binding -----------------------------------------------------------------------------------------------------------


def bind_resource(name: str, role: str, plan: Plan, project: Project, catalogue: Catalogue) -> BoundResource:
    """Find what stands behind a resource of a flow and check its settings; opens nothing and needs no secret.

    Raises:
        SettingsError: nothing is bound, the provider is unknown or of another role, or a setting is wrong.
    """
    return _bind(name, role, _binding(name, role, plan, project), catalogue)


def bind_project_resource(name: str, role: str, project: Project, catalogue: Catalogue) -> BoundResource:
    """Find what stands behind a name of the project file, or behind an embedded default, without a flow.

    Raises:
        SettingsError: as `bind_resource`; names what the project has for the role.
    """
    binding = _project_binding(name, role, project)
    if binding is None:
        known = project_resource_names(project, catalogue, role)
        listed = ", ".join(f"`{other}`" for other in known) or "nothing"
        raise SettingsError(
            f"the project binds no resource `{name}`; for the role {role} it has {listed}",
            hint=did_you_mean(name, known),
        )
    return _bind(name, role, binding, catalogue)


def project_resource_names(project: Project, catalogue: Catalogue, role: str) -> list[str]:
    """Return the names that serve a role in the project, the embedded default among them."""
    named = [name for name, found in resource_roles(project, catalogue).items() if found == role]
    return sorted({*named, role} if role in DEFAULTS else named)


def _bind(name: str, role: str, binding: _Binding, catalogue: Catalogue) -> BoundResource:
    provider_name, settings, folder, origin = binding
    provider = catalogue.find_resource(provider_name)
    if provider is None:
        known = [other.name for other in catalogue.resources() if other.role == role]
        listed = ", ".join(f"`{other}`" for other in sorted(known)) or "none is installed"
        raise SettingsError(
            f"{origin}: there is no resource provider `{provider_name}`; for the role {role}: {listed}",
            hint=did_you_mean(provider_name, known),
        )
    if provider.role != role:
        raise SettingsError(
            f"{origin}: `{provider_name}` serves the role {provider.role}, but `{name}` is used as {role}"
        )
    _check_settings(provider, settings, origin)
    if provider.name_setting is not None:
        settings = {provider.name_setting: name, **settings}
    return BoundResource(name, role, provider, settings, folder, origin)


def check_resources(plan: Plan, project: Project, catalogue: Catalogue, *, secrets: bool = False) -> list[str]:
    """Return a sentence for everything that would stop a run at its resources; opens nothing.

    Args:
        plan: the flow.
        project: where its names are bound.
        catalogue: the providers.
        secrets: also look whether every environment variable and secret is there. A check needs none, a run does.
    """
    sentences = []
    for name, role in plan.roles.items():
        if name in optional_resources(plan) and not is_bound(name, role, plan, project):
            continue
        try:
            bound = bind_resource(name, role, plan, project, catalogue)
        except SettingsError as error:
            sentences.append(_with_hint(error))
            continue
        if secrets:
            sentences += [f"{bound.origin}: {sentence}" for sentence in missing_references(bound.settings)]
    return sentences


def resource_roles(project: Project, catalogue: Catalogue) -> dict[str, str]:
    """Return name and role of everything that the project binds, for the compiler; unknown providers are left out."""
    providers = {name: catalogue.find_resource(entry.provider) for name, entry in project.resources.items()}
    return {name: provider.role for name, provider in providers.items() if provider is not None}


def is_bound(name: str, role: str, plan: Plan, project: Project) -> bool:
    """Whether anything stands behind a name: the flow, the project, or an embedded default."""
    return name in plan.resources or name in project.resources or (name == role and role in DEFAULTS)


def optional_resources(plan: Plan) -> frozenset[str]:
    """Return the names that every step using them can do without."""
    needed: set[str] = set()
    optional: set[str] = set()
    for step in node_steps(plan.body):
        required = {need.name for need in step.node.resources if need.required}
        for parameter, name in step.resources:
            (needed if parameter in required else optional).add(name)
    return frozenset(optional - needed)


def _binding(name: str, role: str, plan: Plan, project: Project) -> _Binding:
    if (declared := plan.resources.get(name)) is not None:
        where = f"resource `{name}` at {declared.span}"
        return declared.provider, declared.settings, Path(plan.file).resolve().parent, where
    if (found := _project_binding(name, role, project)) is not None:
        return found
    example = _WHAT_TO_BIND.get(role, 'use = "..."')
    raise SettingsError(
        f"the flow `{plan.name}` needs the resource `{name}` ({role}), and nothing is bound to it",
        hint=f"write `[resources.{name}]` with `{example}` into ragbraid.toml, or bind it under `resources` in the flow",
    )


def _project_binding(name: str, role: str, project: Project) -> _Binding | None:
    if (entry := project.resources.get(name)) is not None:
        return entry.provider, entry.settings, project.folder, entry.origin
    if name == role and role in DEFAULTS:
        provider, settings = DEFAULTS[role]
        return provider, settings, project.folder, f"embedded default of `{role}`"
    return None


def _check_settings(provider: ResourceProvider, settings: Mapping[str, Any], origin: str) -> None:
    known = {setting.name: setting for setting in provider.settings}
    for name, value in settings.items():
        if name not in known:
            listed = ", ".join(f"`{other}`" for other in known) or "none"
            raise SettingsError(
                f"{origin}: `{provider.name}` has no setting `{name}`; it has {listed}", hint=did_you_mean(name, known)
            )
        if not has_reference(value):
            _validated(known[name], value, origin)
    for setting in provider.settings:
        if setting.required and setting.name not in settings:
            raise SettingsError(f"{origin}: `{provider.name}` needs the setting `{setting.name}`")


def _validated(setting: ResourceSetting, value: Any, origin: str) -> Any:
    try:
        return TypeAdapter(setting.type).validate_python(value)
    except ValidationError as error:
        # Only pydantic's rule is told, never the value: it may be a secret.
        reason = "; ".join(sorted({detail["msg"] for detail in error.errors(include_input=False, include_url=False)}))
        raise SettingsError(f"{origin}: setting `{setting.name}`: {reason}") from None


def _with_hint(error: SettingsError) -> str:
    return f"{error} ({error.hint})" if error.hint else str(error)


# -- opening -----------------------------------------------------------------------------------------------------------


class _Opening:
    """One resource of the pool: its lock is held while it is being opened, so that it is opened once."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.resource: Any = None
        self.is_open = False


class ResourcePool:
    """The open resources of a process, one per provider and settings, shared by every flow and thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._openings: dict[str, _Opening] = {}

    def open(self, bound: BoundResource) -> Any:
        """Return the resource, opening it when it is not open yet. Blocks while it opens.

        Raises:
            SettingsError: a secret is missing, a resolved setting is wrong, or the provider refuses.
            ServiceError: what stands behind it did not answer.
        """
        settings = self._resolved(bound)
        with self._lock:
            opening = self._openings.setdefault(_key(bound.provider, settings), _Opening())
        if opening.is_open:
            return opening.resource
        with opening.lock:
            if not opening.is_open:
                opening.resource = _call_factory(bound, settings)
                opening.is_open = True
        return opening.resource

    def close(self) -> None:
        """Close every open resource. One that fails to close does not keep the others open.

        Raises:
            ServiceError: some resource could not be closed; names all of those.
        """
        with self._lock:
            openings, self._openings = list(self._openings.values()), {}
        failures = []
        for opening in openings:
            close = getattr(opening.resource, "close", None)
            if not callable(close):
                continue
            try:
                close()
            except Exception as error:  # noqa: BLE001 - raised together below
                failures.append(redact(f"{type(opening.resource).__name__}: {error}"))
        if failures:
            raise ServiceError("resources could not be closed: " + "; ".join(failures))

    @staticmethod
    def _resolved(bound: BoundResource) -> dict[str, Any]:
        settings = {}
        for setting in bound.provider.settings:
            if setting.name not in bound.settings:
                continue
            try:
                value = resolve(bound.settings[setting.name])
            except SettingsError as error:
                raise SettingsError(f"{bound.origin}: {error}", hint=error.hint) from None
            if setting.secret:
                hide(value)  # it may stand literally in the file
            value = _validated(setting, value, bound.origin)
            settings[setting.name] = _absolute(value, setting, bound.folder)
        return settings


class PlanResources:
    """The resources of one plan: what a runner hands to the scheduler to look them up by name."""

    def __init__(self, plan: Plan, project: Project, catalogue: Catalogue, pool: ResourcePool) -> None:
        self._plan = plan
        self._project = project
        self._catalogue = catalogue
        self._pool = pool
        self._bound: dict[str, BoundResource] = {}
        self._optional = optional_resources(plan)

    def get(self, name: str, role: str) -> Any:
        """Return an open resource, or None for one that its steps can do without and nothing is bound to.

        Blocks while it opens for the first time.

        Raises:
            SettingsError: as `bind_resource` and `ResourcePool.open`.
            ServiceError: as `ResourcePool.open`.
        """
        if name in self._optional and not is_bound(name, role, self._plan, self._project):
            return None
        return self._pool.open(self.bound(name, role))

    def bound(self, name: str, role: str) -> BoundResource:
        """Return what stands behind a name; opens nothing."""
        bound = self._bound.get(name)
        if bound is None:
            bound = bind_resource(name, role, self._plan, self._project, self._catalogue)
            self._bound[name] = bound
        return bound

    def binding(self, name: str, role: str) -> str:
        """Identify what is bound to a name, opening nothing; never holds a secret.

        Raises:
            SettingsError: as `bind_resource`.
        """
        if name in self._optional and not is_bound(name, role, self._plan, self._project):
            return ""
        bound = self.bound(name, role)
        return f"{bound.provider.name}:{_digest(_shown(bound))}"

    def fingerprint(self, name: str, role: str) -> str:
        """Identify a resource's content and behaviour for cache keys, opening it; never holds a secret.

        The resource's own `fingerprint()` where it has one, else its `identity`, else provider and settings.
        """
        resource = self.get(name, role)
        return "" if resource is None else fingerprint_of(resource, self.bound(name, role))


def fingerprint_of(resource: Any, bound: BoundResource) -> str:
    """Identify an open resource for cache keys: see `PlanResources.fingerprint`."""
    own = getattr(resource, "fingerprint", None)
    if callable(own):
        return f"{bound.provider.name}:{own()}"
    identity = getattr(resource, "identity", None)
    if isinstance(identity, str):
        return f"{bound.provider.name}:{identity}"
    return f"{bound.provider.name}:{_digest(_shown(bound))}"


def _shown(bound: BoundResource) -> dict[str, Any]:
    return {name: value for name, value in bound.settings.items() if name not in bound.provider.secrets}


def shared_pool() -> ResourcePool:
    """Return the pool of this process; it is closed when the interpreter ends."""
    return _shared_pool


def _call_factory(bound: BoundResource, settings: Mapping[str, Any]) -> Any:
    try:
        return bound.provider.factory(**settings)
    except RagbraidError as error:
        raise redacted(error) from None
    except Exception as error:  # noqa: BLE001 - an SDK may raise anything
        message = redact(f"{bound.origin}: `{bound.provider.name}` cannot be opened: {type(error).__name__}: {error}")
        raise ServiceError(message) from None


def _absolute(value: Any, setting: ResourceSetting, folder: Path) -> Any:
    if isinstance(value, Path):
        return folder / value.expanduser()
    if isinstance(value, str) and (setting.name == "path" or setting.name.endswith("_path")):
        return str(folder / Path(value).expanduser())
    return value


def _key(provider: ResourceProvider, settings: Mapping[str, Any]) -> str:
    return f"{provider.name}:{_digest(settings)}"


def _digest(settings: Mapping[str, Any]) -> str:
    return sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()[:16]


_shared_pool = ResourcePool()


@atexit.register
def _close_shared_pool() -> None:
    try:
        _shared_pool.close()
    except ServiceError as error:
        _logger.warning("%s", error)  # the interpreter is ending: there is no caller to raise to
