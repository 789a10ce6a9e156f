"""What a text of a flow file can be, and the tree of an expression.

All offsets count code points from the beginning of the whole text, not of the expression in it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class ExpressionProblem:
    """One mistake in an expression, a template or a reference.

    Codes: RB104 unknown field, RB205 types that do not go together, RB401 syntax, RB402 unknown variable, RB403
    something that expressions may not do, RB404 an environment variable or secret outside `resources`.
    """

    code: str
    message: str
    start: int
    end: int
    hint: str | None = None


@dataclass(frozen=True, slots=True)
class NameUse:
    """A name that is read, with the fields and positions behind it; `end` is behind the last of them."""

    root: str
    path: tuple[str | int, ...]
    start: int
    end: int


# -- the tree of an expression -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Const:
    """A number, a text, true, false or none."""

    value: Any
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Name:
    """A name in scope."""

    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Attribute:
    """`owner.name`; the name stands from `at` to `end`."""

    owner: Tree
    name: str
    start: int
    at: int
    end: int


@dataclass(frozen=True, slots=True)
class Item:
    """`owner[index]`."""

    owner: Tree
    index: Tree
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Slice:
    """`owner[first:stop:step]`; a bound that is left out is None."""

    owner: Tree
    bounds: tuple[Tree | None, Tree | None, Tree | None]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class ListOf:
    """`[a, b]` or `(a, b)`."""

    items: tuple[Tree, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class DictOf:
    """`{"a": b}`."""

    pairs: tuple[tuple[Tree, Tree], ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Unary:
    """`not x`, `-x` or `+x`."""

    operator: Literal["not", "-", "+"]
    operand: Tree
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Binary:
    """`left OPERATOR right`: arithmetic, `~` (joins texts), `and`, `or`."""

    operator: str
    left: Tree
    right: Tree
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """`first < second <= third`: every neighbouring pair must hold."""

    first: Tree
    rest: tuple[tuple[str, Tree], ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Choice:
    """`yes if test else no`."""

    test: Tree
    yes: Tree
    no: Tree
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Apply:
    """`value | name(arguments)`, or with `is_test` `value is name(arguments)`; the name stands from `at` to `at_end`."""

    is_test: bool
    name: str
    value: Tree
    arguments: tuple[Tree, ...]
    named: tuple[tuple[str, Tree], ...]
    start: int
    at: int
    at_end: int
    end: int


Tree = (
    Const | Name | Attribute | Item | Slice | ListOf | DictOf | Unary | Binary | Comparison | Choice | Apply
)  # fmt: skip


# -- what a text is ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PlainText:
    """A text without references; `$$` has become `$`."""

    text: str


@dataclass(frozen=True, slots=True)
class Reference:
    """`$root.field[0]`. `spans` has begin and end of the root (the dollar included) and of every element of `path`."""

    root: str
    path: tuple[str | int, ...]
    spans: tuple[tuple[int, int], ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class EnvReference:
    """`${env.NAME}` or `${secret.NAME}`."""

    kind: Literal["env", "secret"]
    name: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Expression:
    """`${ ... }`: `source` is what stands inside, `start` and `end` enclose the braces."""

    source: str
    tree: Tree = field(repr=False, compare=False)
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Template:
    """A text with expressions in it."""

    source: str
    parts: tuple[str | Expression | EnvReference, ...]


Value = PlainText | Reference | EnvReference | Expression | Template
