"""Types as flow files write them: `list[Triple]`, `str | none`, `literal["a", "b"]`.

Such a text becomes a Python type hint, and a hint becomes such a text again: `parse_type(describe(t)) == t`.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import JsonValue

from ragbraid.registry.suggest import did_you_mean

MAX_DEPTH = 20


@dataclass(frozen=True, slots=True)
class TypeProblem:
    """Why a text is no type; `start` and `end` are offsets in it."""

    message: str
    start: int
    end: int
    hint: str | None = None


BUILTIN_TYPES: dict[str, Any] = {
    "str": str,
    "int": int,
    "float": float,
    "bool": bool,
    "date": date,
    "datetime": datetime,
    "any": Any,
    "none": type(None),
}
_GENERIC = {"list": 1, "dict": 2}
_OTHER_LANGUAGES = {
    "string": "str", "text": "str", "String": "str", "integer": "int", "Integer": "int", "number": "float",
    "double": "float", "boolean": "bool", "Boolean": "bool", "object": "dict[str, any]", "mapping": "dict[str, any]",
    "map": "dict[str, any]", "array": "list[any]", "List": "list", "Dict": "dict", "Any": "any", "None": "none",
    "null": "none", "Literal": "literal", "enum": "literal", "Optional": "T | none", "Union": "A | B",
    "tuple": "list[T]", "set": "list[T]", "time": "datetime",
}  # fmt: skip
_TOKEN = re.compile(
    r"""\s*(?: (?P<name> [^\W\d]\w* ) | (?P<text> "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' )
           | (?P<number> [-+]?\d+ ) | (?P<mark> [\[\],|] ) | (?P<other> \S ) )""",
    re.VERBOSE,
)


def parse_type(text: str, find: Callable[[str], Any | None], known: Callable[[], Iterable[str]]) -> Any | TypeProblem:
    """Read a type as a flow file writes it.

    Args:
        text: such as `list[Chunk] | none`.
        find: returns the contract of a name, or None.
        known: the names that `find` knows, asked only to suggest one.

    Returns:
        A Python type hint, or what is wrong with the text.
    """
    parser = _Parser(text, find, known)
    try:
        found = parser.union(0)
        parser.expect_end()
    except _Wrong as wrong:
        return wrong.problem
    return found


def union_of(members: Iterable[Any]) -> Any:
    """Return the union of types that are known at run time only."""
    return Union[tuple(members)]  # noqa: UP007


def is_union(tp: Any) -> bool:
    """Whether a hint is written as a union."""
    return get_origin(tp) in (Union, types.UnionType)


def split_declaration(text: str) -> tuple[str, str | None]:
    """Split `TYPE = VALUE` at the first `=` outside brackets and quotes.

    The type begins where the text begins; the value (None without a `=`) is the end of the text, from its first
    visible character on. Offsets in either are therefore easily turned into offsets in the text.
    """
    depth = 0
    quote = ""
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "[]":
            depth += 1 if character == "[" else -1
        elif character == "=" and depth <= 0:
            return text[:position].rstrip(), text[position + 1 :].lstrip()
    return text.rstrip(), None


def describe(tp: Any) -> str:
    """Return a type hint as a flow file writes it: `list[Triple]`, `Ranking | none`, a contract by its bare name."""
    if get_origin(tp) is Annotated:
        return describe(get_args(tp)[0])
    if tp is Any or tp is JsonValue or isinstance(tp, TypeVar):
        return "any"
    for name, builtin in BUILTIN_TYPES.items():
        if tp is builtin or (name == "none" and tp is None):
            return name
    origin, args = get_origin(tp), get_args(tp)
    if origin is Literal:
        return f"literal[{', '.join(_written(value) for value in args)}]"
    if is_union(tp):
        members = [describe(arg) for arg in args if arg is not type(None)]
        return " | ".join([*members, *(["none"] if type(None) in args else [])])
    if origin is not None:
        return _describe_generic(origin, args)
    if tp in (list, tuple, set, frozenset):
        return "list[any]"
    return "dict[str, any]" if tp is dict else getattr(tp, "__name__", str(tp))


def _describe_generic(origin: Any, args: tuple[Any, ...]) -> str:
    inner = [describe(arg) for arg in args if arg is not Ellipsis]
    if isinstance(origin, type) and issubclass(origin, dict) or origin.__name__ in ("Mapping", "MutableMapping"):
        return f"dict[{', '.join(['str', *inner][-2:])}]"
    if origin is tuple and Ellipsis not in args and len(set(inner)) != 1:
        return f"list[{' | '.join(dict.fromkeys(inner)) or 'any'}]"
    if origin in (list, tuple, set, frozenset) or origin.__module__ == "collections.abc":
        return f"list[{inner[0] if inner else 'any'}]"
    return f"{origin.__name__}[{', '.join(inner)}]"


def _written(value: Any) -> str:
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "none"}[value]
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return str(value)


class _Wrong(Exception):
    def __init__(self, message: str, start: int, end: int, hint: str | None = None) -> None:
        self.problem = TypeProblem(message, start, end, hint)


class _Token(NamedTuple):
    kind: str
    text: str
    start: int
    end: int


class _Parser:
    def __init__(self, text: str, find: Callable[[str], Any | None], known: Callable[[], Iterable[str]]) -> None:
        self.text = text
        self.find = find
        self.known = known
        self.tokens = [
            _Token(str(match.lastgroup), match[str(match.lastgroup)], *match.span(str(match.lastgroup)))
            for match in _TOKEN.finditer(text)
        ]
        self.tokens.append(_Token("end", "", len(text.rstrip()), len(text.rstrip())))
        self.position = 0

    @property
    def next(self) -> _Token:
        return self.tokens[self.position]

    def advance(self) -> _Token:
        token = self.next
        self.position += token.kind != "end"
        return token

    def accept(self, mark: str) -> bool:
        if self.next.kind == "mark" and self.next.text == mark:
            self.position += 1
            return True
        return False

    def union(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise _Wrong("this type is nested too deeply", self.next.start, self.next.end)
        members = [self.single(depth)]
        while self.accept("|"):
            members.append(self.single(depth))
        return union_of(members)

    def single(self, depth: int) -> Any:
        token = self.advance()
        if token.kind != "name":
            raise self.no_type(token)
        if token.text == "literal":
            return self.literal(token)
        if token.text in _GENERIC:
            return self.generic(token, depth)
        found = BUILTIN_TYPES.get(token.text) or self.find(token.text)
        if found is None:
            raise self.unknown(token)
        if self.next.text == "[":
            raise _Wrong(f"`{token.text}` takes nothing in brackets", self.next.start, self.next.end)
        return found

    def generic(self, token: _Token, depth: int) -> Any:
        wanted = _GENERIC[token.text]
        if not self.accept("["):
            return list[Any] if wanted == 1 else dict[str, Any]
        start = self.next.start
        inner = [self.union(depth + 1)]
        while self.accept(","):
            inner.append(self.union(depth + 1))
        self.close(token)
        if len(inner) != wanted:
            form = "list[T]" if wanted == 1 else "dict[K, V]"
            raise _Wrong(f"`{token.text}` is written `{form}`", start, self.tokens[self.position - 1].start)
        if wanted == 1:
            return list[inner[0]]  # type: ignore[valid-type]
        if inner[0] not in (str, int, float, bool, date, datetime, Any) and get_origin(inner[0]) is not Literal:
            raise _Wrong(f"{describe(inner[0])} cannot be the key of a dict", start, start + 1, "keys are str or int")
        return dict[inner[0], inner[1]]  # type: ignore[valid-type]

    def literal(self, token: _Token) -> Any:
        if not self.accept("["):
            raise _Wrong("`literal` names its values in brackets", token.start, token.end, 'write literal["a", "b"]')
        values = [self.literal_value()]
        while self.accept(","):
            values.append(self.literal_value())
        self.close(token)
        return Literal[tuple(values)]

    def literal_value(self) -> Any:
        token = self.advance()
        if token.kind == "text":
            return re.sub(r"\\(.)", r"\1", token.text[1:-1], flags=re.DOTALL)
        if token.kind == "number":
            return int(token.text[:300])
        if token.text in ("true", "false"):
            return token.text == "true"
        if token.kind == "name":
            raise _Wrong("a text in `literal` needs quotes", token.start, token.end, f'write "{token.text}"')
        raise _Wrong("a value is missing here", token.start, max(token.end, token.start), 'write literal["a", "b"]')

    def close(self, opened: _Token) -> None:
        token = self.advance()
        if token.kind == "end":
            raise _Wrong(f"the bracket of `{opened.text}[` is not closed", opened.start, opened.end + 1, "add `]`")
        if token.text != "]":
            raise _Wrong(f"`{token.text}` does not belong here", token.start, token.end, "a `,` or a `]` comes here")

    def expect_end(self) -> None:
        token = self.next
        if token.kind == "end":
            return
        if token.text == "?":
            raise _Wrong(
                "`?` is not part of a type", token.start, token.end, "a value that may be missing is `T | none`"
            )
        if token.text == "]":
            raise _Wrong("this bracket closes nothing", token.start, token.end, "delete it")
        raise _Wrong(f"`{token.text}` does not belong behind a type", token.start, token.end)

    def no_type(self, token: _Token) -> _Wrong:
        if token.kind == "end":
            return _Wrong("a type is missing here", token.start, token.end, "such as `str` or `list[Chunk]`")
        hint = f"fixed values are written literal[{token.text}]" if token.kind in ("text", "number") else None
        return _Wrong(f"`{token.text}` is no type", token.start, token.end, hint)

    def unknown(self, token: _Token) -> _Wrong:
        other = _OTHER_LANGUAGES.get(token.text)
        names = (*BUILTIN_TYPES, *_GENERIC, "literal")
        hint = f"write `{other}`" if other else did_you_mean(token.text, (*names, *self.known()))
        return _Wrong(f"there is no type `{token.text}`", token.start, token.end, hint)
