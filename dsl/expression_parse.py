"""The text between `${` and `}` becomes a tree.

Jinja2 supplies the lexer and the parser. Its parser copies the line number of a token into the nodes it makes; here
it is given offsets in that place, so every node knows exactly where it stands.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from ragbraid.dsl.expression_functions import FILTERS, TESTS, Function
from ragbraid.dsl.expression_tree import (
    Apply,
    Attribute,
    Binary,
    Choice,
    Comparison,
    Const,
    DictOf,
    ExpressionProblem,
    Item,
    ListOf,
    Name,
    Slice,
    Tree,
    Unary,
)
from ragbraid.registry.suggest import did_you_mean

MAX_LENGTH = 2_000
MAX_DEPTH = 80
MAX_EXPONENT = 1_000

_OPERATORS = {
    "Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "FloorDiv": "//", "Mod": "%", "Pow": "**", "And": "and", "Or": "or",
}  # fmt: skip
_COMPARISONS = {
    "eq": "==", "ne": "!=", "lt": "<", "lteq": "<=", "gt": ">", "gteq": ">=", "in": "in", "notin": "not in",
}  # fmt: skip
_FOREIGN = {
    "&&": "write `and`", "&": "write `and`", "||": "write `or`", "!": "write `not`", "?": "write `A if CONDITION else B`",
    "=": "write `==` to compare", "===": "write `==`", "for": "use a filter such as `map`, `select` or `selectattr`",
    "lambda": "use a filter such as `map`, `select` or `selectattr`", "<>": "write `!=`", "^": "write `**`",
    "$": "inside `${ }` names are written without `$`", "%}": "statements are not possible here",
}  # fmt: skip
_NAME = re.compile(r"[^\W\d]\w*")
_OF_ITEMS = {"map": FILTERS, "select": TESTS, "reject": TESTS}
_OF_ATTRIBUTES = {"selectattr": TESTS, "rejectattr": TESTS}


class _Wrong(Exception):
    def __init__(self, code: str, message: str, start: int, end: int, hint: str | None = None) -> None:
        self.problem = ExpressionProblem(code, message, start, end, hint)


def parse_expression(text: str, start: int, end: int) -> Tree | ExpressionProblem:
    """Read `text[start:end]` as an expression; offsets in the result are those of `text`."""
    source = text[start:end]
    if not source.strip():
        return ExpressionProblem("RB401", "the expression is empty", start, end, "write something between the braces")
    if len(source) > MAX_LENGTH:
        message = f"the expression is longer than {MAX_LENGTH} characters"
        return ExpressionProblem("RB401", message, start, end, "compute this in a node")
    try:
        return _Reading(source, start).read()
    except _Wrong as wrong:
        return wrong.problem
    except RecursionError:
        return ExpressionProblem("RB401", "the expression is nested too deeply", start, end, "compute this in a node")


@cache
def _environment() -> Any:
    from jinja2 import Environment

    return Environment(autoescape=False)


class _Reading:
    """One expression on its way from text to tree."""

    def __init__(self, source: str, shift: int) -> None:
        # The lexer makes one character of `\r\n`; a space keeps the offsets.
        self.source = source.replace("\r", " ")
        self.shift = shift
        self.ends: dict[int, int] = {}
        self.depth = 0

    def wrong(self, code: str, message: str, start: int, end: int, hint: str | None = None) -> _Wrong:
        return _Wrong(code, message, start + self.shift, end + self.shift, hint)

    def read(self) -> Tree:
        from jinja2 import TemplateSyntaxError
        from jinja2.lexer import TokenStream
        from jinja2.parser import Parser

        environment = _environment()
        parser = Parser(environment, "", state="variable")
        tokens = environment.lexer.wrap(iter(self.tokens()), None, None)
        stream = None
        try:
            stream = parser.stream = TokenStream(tokens, None, None)
            tree = parser.parse_expression()
        except TemplateSyntaxError as error:
            breaks_off = stream is not None and stream.current.type == "eof"
            raise self.syntax(len(self.source) if breaks_off else error.lineno) from None
        if not stream.eos:
            raise self.syntax(stream.current.lineno)
        return self.convert(tree)

    def tokens(self) -> list[tuple[int, str, str]]:
        """Return the lexer's tokens with offsets in the place of line numbers."""
        from jinja2 import TemplateSyntaxError

        found: list[tuple[int, str, str]] = []
        at = 0
        try:
            for _, kind, text in _environment().lexer.tokeniter(self.source, None, None, state="variable"):
                if kind in ("variable_end", "data"):
                    break  # a brace that closes nothing
                found.append((at, kind, text))
                at += len(text)
                self.ends[at - len(text)] = at
        except TemplateSyntaxError:
            raise self.syntax(at) from None
        if at < len(self.source.rstrip()):
            raise self.syntax(at)
        return found

    def syntax(self, at: int) -> _Wrong:
        """Return what to say about a place where the expression cannot be read on."""
        rest = self.source[at:]
        at += len(rest) - len(rest.lstrip())
        rest = rest.strip()
        if not rest:
            end = len(self.source.rstrip())
            return self.wrong("RB401", "the expression breaks off here", max(0, end - 1), end)
        if rest[0] in "\"'":
            return self.wrong("RB401", f"the quote {rest[0]} that opens here is never closed", at, at + 1)
        shown = next((mark for mark in sorted(_FOREIGN, key=len, reverse=True) if rest.startswith(mark)), None)
        if shown is None or (shown.isalpha() and _NAME.match(rest)[0] != shown):  # type: ignore[index]
            word = re.match(r"\w+|\S", rest)
            shown = word[0] if word else rest[0]
        return self.wrong("RB401", f"`{shown}` does not belong here", at, at + len(shown), _FOREIGN.get(shown))

    # -- Jinja2's nodes to ours ----------------------------------------------------------------------------------

    def convert(self, node: Any) -> Tree:
        """Return our form of a node."""
        self.depth += 1
        kind = type(node).__name__
        if self.depth > MAX_DEPTH:
            raise RecursionError
        method = _CONVERTERS.get(kind)
        if method is not None:
            tree = method(self, node)
        elif kind in _OPERATORS:
            tree = self.binary(_OPERATORS[kind], self.convert(node.left), self.convert(node.right))
        else:
            raise self.forbidden(node)
        self.depth -= 1
        return tree

    def end_of(self, start: int, fallback: int = 1) -> int:
        return self.ends.get(start, start + fallback)

    def forbidden(self, node: Any) -> _Wrong:
        start = node.lineno
        if type(node).__name__ != "Call":
            return self.wrong("RB403", "this is not possible in an expression", start, self.end_of(start))
        callee = self.convert(node.node)
        hint = "compute this in a node"
        if isinstance(callee, Name) and callee.name in FILTERS:
            hint = f"write it as a filter: `... | {callee.name}`"
        elif isinstance(callee, Name) and callee.name == "len":
            hint = "write `... | length`"
        elif isinstance(callee, Attribute) and callee.name in FILTERS:
            hint = f"write it as a filter: `... | {callee.name}`"
        shown = self.source[callee.start - self.shift : callee.end - self.shift]
        message = f"`{shown}(...)` is a call, and expressions cannot call anything"
        return self.wrong("RB403", message, callee.start - self.shift, callee.end - self.shift, hint)

    def const(self, node: Any) -> Tree:
        return Const(node.value, node.lineno + self.shift, self.end_of(node.lineno) + self.shift)

    def name(self, node: Any) -> Tree:
        start = node.lineno + self.shift
        return Name(node.name, start, start + len(node.name))

    def attribute(self, node: Any) -> Tree:
        owner = self.convert(node.node)
        at = self.source.index(node.attr, node.lineno)
        end = at + len(node.attr)
        self.check_public(node.attr, at, end)
        return Attribute(owner, node.attr, owner.start, at + self.shift, end + self.shift)

    def check_public(self, name: str, start: int, end: int) -> None:
        if name.startswith("_"):
            raise self.wrong("RB403", f"`{name}` cannot be read: it begins with `_`", start, end)

    def item(self, node: Any) -> Tree:
        owner = self.convert(node.node)
        if type(node.arg).__name__ == "Slice":
            parts = (node.arg.start, node.arg.stop, node.arg.step)
            first, stop, step = (None if part is None else self.convert(part) for part in parts)
            last = max((part.end for part in (first, stop, step) if part is not None), default=owner.end)
            return Slice(owner, (first, stop, step), owner.start, self.closing(last))
        index = self.convert(node.arg)
        if isinstance(index, Const) and isinstance(index.value, str):
            self.check_public(index.value, index.start - self.shift, index.end - self.shift)
        return Item(owner, index, owner.start, self.closing(index.end))

    def closing(self, end: int) -> int:
        """Return the offset behind a bracket that closes right after `end`, or `end`."""
        found = re.compile(r"\s*[\])}]").match(self.source, end - self.shift)
        return found.end() + self.shift if found else end

    def list_of(self, node: Any) -> Tree:
        items = tuple(self.convert(item) for item in node.items)
        start = node.lineno + self.shift
        return ListOf(items, start, self.closing(items[-1].end if items else start + 1))

    def dict_of(self, node: Any) -> Tree:
        pairs = tuple((self.convert(pair.key), self.convert(pair.value)) for pair in node.items)
        start = node.lineno + self.shift
        return DictOf(pairs, start, self.closing(pairs[-1][1].end if pairs else start + 1))

    def unary(self, node: Any) -> Tree:
        operand = self.convert(node.node)
        operator: Any = {"Not": "not", "Neg": "-", "Pos": "+"}[type(node).__name__]
        return Unary(operator, operand, min(node.lineno + self.shift, operand.start), operand.end)

    def binary(self, operator: str, left: Tree, right: Tree) -> Tree:
        huge = isinstance(right, Const) and isinstance(right.value, int) and abs(right.value) > MAX_EXPONENT
        if operator == "**" and huge:
            raise _Wrong("RB403", f"an exponent above {MAX_EXPONENT} is not allowed", right.start, right.end)
        return Binary(operator, left, right, left.start, right.end)

    def concat(self, node: Any) -> Tree:
        first, *rest = (self.convert(part) for part in node.nodes)
        for part in rest:
            first = self.binary("~", first, part)
        return first

    def comparison(self, node: Any) -> Tree:
        first = self.convert(node.expr)
        rest = tuple((_COMPARISONS[operand.op], self.convert(operand.expr)) for operand in node.ops)
        return Comparison(first, rest, first.start, rest[-1][1].end)

    def choice(self, node: Any) -> Tree:
        test, yes = self.convert(node.test), self.convert(node.expr1)
        if node.expr2 is None:
            message = "this `if` has no `else`, so it has no value when its condition is false"
            raise _Wrong("RB401", message, yes.start, test.end, "write `A if CONDITION else B`, B may be `none`")
        no = self.convert(node.expr2)
        return Choice(test, yes, no, yes.start, no.end)

    def apply(self, node: Any) -> Tree:
        is_test = type(node).__name__ == "Test"
        value = self.convert(node.node)
        at = self.source.index(node.name, node.lineno)
        at_end = at + len(node.name)
        kind, table = ("test", TESTS) if is_test else ("filter", FILTERS)
        function = table.get(node.name)
        if function is None:
            known = ", ".join(sorted(table))
            hint = did_you_mean(node.name, table) or f"there are {known}"
            raise self.wrong("RB403", f"there is no {kind} `{node.name}`", at, at_end, hint)
        if node.dyn_args is not None or node.dyn_kwargs is not None:
            raise self.wrong("RB403", "`*` in front of an argument is not possible here", at, at_end)
        arguments = tuple(self.convert(argument) for argument in node.args)
        named = tuple((pair.key, self.convert(pair.value)) for pair in node.kwargs)
        last = max((part.end for part in (*arguments, *(value for _, value in named))), default=at_end + self.shift)
        end = self.closing(last) if arguments or named else last
        place = (at + self.shift, at_end + self.shift)
        tree = Apply(is_test, node.name, value, arguments, named, value.start, *place, max(end, place[1]))
        self.check_arguments(tree, function, kind)
        return tree

    def check_arguments(self, tree: Apply, function: Function, kind: str) -> None:
        try:
            inspect.signature(function.apply).bind(None, *tree.arguments, **dict(tree.named))
        except TypeError as error:
            message = f"the {kind} `{tree.name}` does not take these arguments: {error}"
            raise _Wrong("RB403", message, tree.at, tree.end) from None
        inner = (tree.arguments, _OF_ITEMS) if tree.name in _OF_ITEMS else (tree.arguments[1:], _OF_ATTRIBUTES)
        names, tables = inner
        if tree.is_test or tree.name not in tables or not names:
            return
        name, table = names[0], tables[tree.name]
        if not isinstance(name, Const) or name.value not in table:
            known = name.value if isinstance(name, Const) else "..."
            what = "filter" if table is FILTERS else "test"
            hint = did_you_mean(str(known), table) or f"there are {', '.join(sorted(table))}"
            raise _Wrong("RB403", f"`{tree.name}` needs the name of a {what} here", name.start, name.end, hint)


_CONVERTERS: dict[str, Callable[[_Reading, Any], Tree]] = {
    "Const": _Reading.const,
    "Name": _Reading.name,
    "Getattr": _Reading.attribute,
    "Getitem": _Reading.item,
    "List": _Reading.list_of,
    "Tuple": _Reading.list_of,
    "Dict": _Reading.dict_of,
    "Not": _Reading.unary,
    "Neg": _Reading.unary,
    "Pos": _Reading.unary,
    "Concat": _Reading.concat,
    "Compare": _Reading.comparison,
    "CondExpr": _Reading.choice,
    "Filter": _Reading.apply,
    "Test": _Reading.apply,
}
