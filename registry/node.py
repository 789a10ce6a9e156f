"""The `@node` decorator: a typed function becomes a node whose contract is its signature."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter

from ragbraid.registry.contracts import FanIn
from ragbraid.registry.errors import ContractError
from ragbraid.registry.providers import is_resource_type, role_of

F = TypeVar("F", bound=Callable[..., Any])

NODE_ATTRIBUTE = "__ragbraid_node__"
RESERVED_KEYS = frozenset({"use", "when", "retry", "timeout", "cache", "on_error", "ensure", "about"})
"""Keys that a flow file may write under every node; no parameter may bear one of these names."""
BLOCK_KEYS = frozenset({"loop", "map", "switch", "gate"})

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_NAME = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)+")


@dataclass(frozen=True, slots=True)
class FilePath:
    """Marks a text port or input as a file path: in a flow file it is relative to that file, elsewhere to the caller.

    A URL (`s3://bucket/docs/`) is left as it is.
    """


@dataclass(frozen=True, slots=True)
class PromptFile:
    """Marks a text port as a prompt template: a flow names a file (`./mine.jinja`), the node gets the file's text.

    `variables` are the names that the node fills in; the checker reports any other name that a template uses.
    """

    variables: tuple[str, ...]


def is_url(text: str) -> bool:
    """Whether a text that may be a file path is a URL."""
    return _URL.match(text) is not None


class Required:
    """The default of a port that has none."""

    def __repr__(self) -> str:
        return "REQUIRED"


REQUIRED = Required()


@dataclass(frozen=True)
class Port:
    """One parameter of a node that a flow can fill.

    `type` is the full annotation, bounds included; `item` is `T` where the port is a `FanIn[T]`; `ambient` holds the
    names in scope that may fill the port beside its own name.
    """

    name: str
    type: Any
    kind: Literal["data", "setting"]
    default: Any = REQUIRED
    item: Any = None
    ambient: tuple[str, ...] = ()
    about: str = ""

    @property
    def required(self) -> bool:
        """Whether a flow must fill the port."""
        return self.default is REQUIRED

    @property
    def fan_in(self) -> bool:
        """Whether the port collects several arrows."""
        return self.item is not None

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """The validator of the port's values."""
        return TypeAdapter(dict[str, self.item]) if self.fan_in else TypeAdapter(self.type)  # type: ignore[name-defined]


@dataclass(frozen=True)
class ResourceNeed:
    """A parameter that a resource fills: its name, the role it asks for, and whether the node can do without."""

    name: str
    role: str
    required: bool = True


@dataclass(frozen=True)
class NodeContract:
    """Everything that the checker, the scheduler and the catalogue know about a node."""

    name: str
    version: int
    function: Callable[..., Any]
    ports: tuple[Port, ...]
    resources: tuple[ResourceNeed, ...]
    output: Any
    is_async: bool
    blocking: bool
    cacheable: bool
    about: str
    docstring: str
    example: str
    place: str
    _by_name: dict[str, Port] = field(default_factory=dict, compare=False, repr=False)

    def port(self, name: str) -> Port | None:
        """Return the port of that name, or None."""
        return self._by_name.get(name)

    @property
    def data_ports(self) -> tuple[Port, ...]:
        """The ports that arrows may fill, in order."""
        return tuple(port for port in self.ports if port.kind == "data")

    @property
    def settings(self) -> tuple[Port, ...]:
        """The ports after the `*`, in order."""
        return tuple(port for port in self.ports if port.kind == "setting")

    @property
    def reference(self) -> str:
        """Name and version as a flow file may write them: `fuse.rrf@2`."""
        return f"{self.name}@{self.version}"

    @cached_property
    def output_adapter(self) -> TypeAdapter[Any]:
        """The validator of the node's output."""
        return TypeAdapter(self.output)


def node(
    name: str,
    *,
    version: int = 1,
    ambient: Mapping[str, tuple[str, ...]] | None = None,
    blocking: bool = False,
    cacheable: bool = True,
    example: str = "",
) -> Callable[[F], F]:
    """Declare a function as a node. The function itself is returned unchanged and stays callable.

    Args:
        name: `family.name`; the family is also the entry point under which its module is found.
        version: counts up when the meaning of the same inputs changes; part of cache keys.
        ambient: other names in scope that may fill a port, such as `{"query": ("question",)}`.
        blocking: the (synchronous) function waits for disk, network or a model, so it runs in a worker thread.
        cacheable: whether `cache: true` makes sense; false for nodes with effects.
        example: a runnable piece of a flow: the YAML value under `nodes:`, several lines where needed.

    Raises:
        ContractError: the name is malformed, an annotation is missing, or a parameter bears a reserved name.
    """

    def attach(function: F) -> F:
        contract = derive_contract(
            function,
            name,
            version=version,
            ambient=ambient or {},
            blocking=blocking,
            cacheable=cacheable,
            example=example,
        )
        setattr(function, NODE_ATTRIBUTE, contract)
        return function

    return attach


def contract_of(function: Callable[..., Any]) -> NodeContract:
    """Return the contract that `@node` attached.

    Raises:
        ContractError: the function is not a node.
    """
    contract = getattr(function, NODE_ATTRIBUTE, None)
    if not isinstance(contract, NodeContract):
        raise ContractError(f"{getattr(function, '__qualname__', function)!r} is not declared with @node")
    return contract


def derive_contract(
    function: Callable[..., Any],
    name: str,
    *,
    version: int = 1,
    ambient: Mapping[str, tuple[str, ...]],
    blocking: bool = False,
    cacheable: bool = True,
    example: str = "",
) -> NodeContract:
    """Read a function's signature into a contract. Raises ContractError as `node` does."""
    code = inspect.unwrap(function).__code__
    place = f"{code.co_filename}:{code.co_firstlineno}"
    if not _NAME.fullmatch(name):
        raise ContractError(f"node name {name!r} is not of the form family.name in lower case ({place})")
    try:
        hints = get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ContractError(f"node {name}: an annotation cannot be resolved: {error} ({place})") from error
    if "return" not in hints:
        raise ContractError(f"node {name}: the return type is not annotated ({place})")
    docstring = inspect.getdoc(function) or ""
    if not docstring:
        raise ContractError(f"node {name}: a node needs a docstring; its first line is the catalogue entry ({place})")
    abouts = _argument_texts(docstring)
    ports: list[Port] = []
    needs: list[ResourceNeed] = []
    for parameter in inspect.signature(function).parameters.values():
        _check_parameter(parameter, name, hints, place)
        annotation = hints[parameter.name]
        if is_resource_type(annotation):
            needs.append(ResourceNeed(parameter.name, role_of(annotation), parameter.default is parameter.empty))
            continue
        is_fan_in = get_origin(annotation) is FanIn
        ports.append(
            Port(
                name=parameter.name,
                type=annotation,
                kind="setting" if parameter.kind is parameter.KEYWORD_ONLY else "data",
                default=REQUIRED if parameter.default is parameter.empty else parameter.default,
                item=get_args(annotation)[0] if is_fan_in else None,
                ambient=ambient.get(parameter.name, ()),
                about=abouts.get(parameter.name, ""),
            )
        )
    return NodeContract(
        name=name,
        version=version,
        function=function,
        ports=tuple(ports),
        resources=tuple(needs),
        output=hints["return"],
        is_async=inspect.iscoroutinefunction(function),
        blocking=blocking,
        cacheable=cacheable,
        about=docstring.splitlines()[0].strip(),
        docstring=docstring,
        example=inspect.cleandoc(example),
        place=place,
        _by_name={port.name: port for port in ports},
    )


def _check_parameter(parameter: inspect.Parameter, name: str, hints: Mapping[str, Any], place: str) -> None:
    if parameter.name in RESERVED_KEYS | BLOCK_KEYS:
        raise ContractError(f"node {name}: `{parameter.name}` is a reserved key of flow files ({place})")
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
        raise ContractError(f"node {name}: `{parameter.name}` must be a named parameter ({place})")
    if parameter.name not in hints:
        raise ContractError(f"node {name}: parameter `{parameter.name}` is not annotated ({place})")


def _argument_texts(docstring: str) -> dict[str, str]:
    """Read the `Args:` section of a Google-style docstring: parameter name -> its text on one line."""
    texts: dict[str, str] = {}
    current = None
    inside = False
    for line in docstring.splitlines():
        if line.strip() == "Args:":
            inside = True
        elif inside and line and not line.startswith(" "):
            inside = False
        elif inside and (match := re.fullmatch(r" {4}(\w+)(?: \(.*?\))?: (.*)", line)):
            current = match[1]
            texts[current] = match[2].strip()
        elif inside and current and line.strip():
            texts[current] += " " + line.strip()
    return texts
