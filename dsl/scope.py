"""What a name in a flow file can refer to, and where its value will stand at run time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from ragbraid.registry.errors import SourceSpan


class Poison:
    """The type of something that is already reported as wrong: nothing that follows from it is reported again."""

    def __repr__(self) -> str:
        return "POISON"


POISON = Poison()
NOWHERE = SourceSpan("", 1, 1, 1, 1)


@dataclass(frozen=True, slots=True)
class Visible:
    """A name in scope: its slot, its type (or POISON), and what it names."""

    name: str
    slot: int
    type: Any
    kind: Literal["input", "state", "variable", "node", "unknown"]
    span: SourceSpan

    @property
    def given(self) -> bool:
        """Whether the name has its value before the body runs: an input, a carried state, a loop variable."""
        return self.kind in ("input", "state", "variable")

    @property
    def shown(self) -> str:
        """How findings call it."""
        return f"the loop variable `{self.name}`" if self.kind == "variable" else f"the {self.kind} `{self.name}`"


@dataclass(frozen=True)
class Scope:
    """The names of one body, and the scope around it.

    `complete` is false where a part of the file that declares names could not be read: a name that is not found may
    then be one of those, so it is taken to be there and wrong.
    """

    names: dict[str, Visible]
    parent: Scope | None = None
    complete: bool = True
    used: set[str] = field(default_factory=set)
    """Names of this body that something referred to; filled while binding."""
    _types: Mapping[str, Any] | None = None

    def find(self, name: str) -> tuple[int, Visible] | None:
        """Return how many bodies outwards the name stands, and what it names; innermost first."""
        found = self.peek(name)
        if found is not None:
            self._body(found[0]).used.add(name)
        elif not self.complete:
            return 0, Visible(name, -1, POISON, "unknown", NOWHERE)
        return found

    def peek(self, name: str) -> tuple[int, Visible] | None:
        """Look a name up without counting it as used."""
        scope: Scope | None = self
        depth = 0
        while scope is not None:
            if name in scope.names:
                return depth, scope.names[name]
            scope, depth = scope.parent, depth + 1
        return None

    def settle(self, name: str, type_: Any) -> None:
        """Give a name of this body its type, where that is found out after the scope was made."""
        if name in self.names:
            self.names[name] = replace(self.names[name], type=type_)
            object.__setattr__(self, "_types", None)

    def types(self) -> Mapping[str, Any]:
        """Return the type of every visible name; `any` stands for what is wrong."""
        if self._types is None:
            object.__setattr__(self, "_types", {v.name: Any if v.type is POISON else v.type for v in self.visible()})
        assert self._types is not None
        return self._types

    def _body(self, depth: int) -> Scope:
        scope = self
        for _ in range(depth):
            assert scope.parent is not None
            scope = scope.parent
        return scope

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
