"""How resources are provided: the roles that flows can bind, and factories declared with `@resource`.

A node names a protocol in its signature (`kb: KnowledgeBase`). A flow binds the role to a provider (`use:
qdrant.embedded`) directly, through the project file, or not at all, and then the embedded default serves.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from ragbraid.registry.errors import ContractError
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.resources import LLM, Embedder, RemoteFiles, Reranker, SparseEncoder, TokenEmbedder

F = TypeVar("F", bound=Callable[..., Any])

RESOURCE_ATTRIBUTE = "__ragbraid_resource__"

ROLES: Mapping[str, type[Any]] = {
    "kb": KnowledgeBase,
    "embedder": Embedder,
    "token_embedder": TokenEmbedder,
    "sparse": SparseEncoder,
    "reranker": Reranker,
    "llm": LLM,
    "remote": RemoteFiles,
}
"""The roles that a flow or the project file can bind, and the protocol behind each."""

_ROLE_OF = {protocol: role for role, protocol in ROLES.items()}


def unwrap_optional(annotation: Any) -> Any:
    """Return `T` for `T | None` and `Annotated[T, ...]`, anything else unchanged."""
    if get_origin(annotation) in (Union, types.UnionType):
        rest = [arg for arg in get_args(annotation) if arg is not type(None)]
        return rest[0] if len(rest) == 1 else annotation
    return annotation


def is_resource_type(annotation: Any) -> bool:
    """Whether a parameter of this annotation is filled by a resource and not by a port."""
    return unwrap_optional(annotation) in _ROLE_OF


def role_of(annotation: Any) -> str:
    """Return the role that a resource annotation asks for."""
    return _ROLE_OF[unwrap_optional(annotation)]


@dataclass(frozen=True)
class ResourceSetting:
    """One setting of a provider."""

    name: str
    type: Any
    default: Any
    required: bool
    secret: bool
    about: str = ""


@dataclass(frozen=True)
class ResourceProvider:
    """A way to get a resource: a factory whose keyword parameters are the provider's settings."""

    name: str
    role: str
    factory: Callable[..., Any]
    settings: tuple[ResourceSetting, ...]
    about: str
    docstring: str
    place: str
    secrets: frozenset[str]
    name_setting: str | None = None
    """The setting that, left out, takes the name under which a flow or the project binds the resource."""
    one_process: bool = False
    """Whether what stands behind it belongs to the process that opened it, so that no other one can use it."""


def resource(
    name: str, *, secrets: Sequence[str] = (), name_setting: str | None = None, one_process: bool = False
) -> Callable[[F], F]:
    """Declare a factory as a resource provider; its role follows from the return annotation.

    Args:
        name: `family.name`, written as `use:` in flow and project files.
        secrets: settings whose values never reach logs, traces, artifacts, caches or error messages.
        name_setting: the setting that, left out, takes the name under which a flow or the project binds the resource.
        one_process: whether what stands behind it belongs to the process that opened it; items of a map that use it
            cannot be run in other processes.

    Raises:
        ContractError: no docstring, or the return annotation is none of the resource protocols.
    """

    def attach(factory: F) -> F:
        code = factory.__code__
        place = f"{code.co_filename}:{code.co_firstlineno}"
        hints = get_type_hints(factory, include_extras=True)
        if not is_resource_type(hints.get("return")):
            raise ContractError(f"resource {name}: the return annotation must be a resource protocol ({place})")
        docstring = inspect.getdoc(factory)
        if not docstring:
            raise ContractError(f"resource {name}: a provider needs a docstring ({place})")
        settings = tuple(
            ResourceSetting(
                name=parameter.name,
                type=hints[parameter.name],
                default=None if parameter.default is parameter.empty else parameter.default,
                required=parameter.default is parameter.empty,
                secret=parameter.name in secrets,
            )
            for parameter in inspect.signature(factory).parameters.values()
        )
        provider = ResourceProvider(
            name=name,
            role=role_of(hints["return"]),
            factory=factory,
            settings=settings,
            about=docstring.splitlines()[0],
            docstring=docstring,
            place=place,
            secrets=frozenset(secrets),
            name_setting=name_setting,
            one_process=one_process,
        )
        setattr(factory, RESOURCE_ATTRIBUTE, provider)
        return factory

    return attach
