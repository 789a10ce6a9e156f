"""What a name in a flow file can refer to, and where its value will stand at run time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ragbraid.registry.errors import SourceSpan


class Poison:
    """The type of something that is already reported as wrong: nothing that follows from it is reported again."""

    def __repr__(self) -> str:
        return "POISON"


POISON = Poison()


@dataclass(frozen=True, slots=True)
class Visible:
    """A name in scope: its slot, its type (or POISON), and what it names."""

    name: str
    slot: int
    type: Any
    kind: Literal["input", "node"]
    span: SourceSpan


@dataclass(frozen=True)
class Scope:
    """The names of one body, and the scope around it."""

    names: Mapping[str, Visible]
    parent: Scope | None = None
    used: set[str] = field(default_factory=set)
    """Names of this body that something referred to; filled while binding."""

    def find(self, name: str) -> tuple[int, Visible] | None:
        """Return how many bodies outwards the name stands, and what it names; innermost first."""
        scope: Scope | None = self
        depth = 0
        while scope is not None:
            if name in scope.names:
                scope.used.add(name)
                return depth, scope.names[name]
            scope, depth = scope.parent, depth + 1
        return None

    def visible(self) -> Iterator[Visible]:
        """Yield every visible name, innermost first, hidden ones left out."""
        seen: set[str] = set()
        scope: Scope | None = self
        while scope is not None:
            for name, entry in scope.names.items():
                if name not in seen:
                    seen.add(name)
                    yield entry
            scope = scope.parent
