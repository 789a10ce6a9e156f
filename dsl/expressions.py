"""References, expressions and templates: everything in a flow file that begins with a dollar sign.

$plan.steps[0].text          a reference: a value as it is
${ hits | length >= 3 }      an expression: Jinja2's expression syntax, typed and without calls
Answer in ${language}.       a template: a text with expressions in it
$$                           a dollar sign
${env.NAME}  ${secret.NAME}  read when a resource is opened
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

from ragbraid.dsl.expression_eval import Run, compile_tree
from ragbraid.dsl.expression_parse import parse_expression
from ragbraid.dsl.expression_tree import (
    Apply,
    Attribute,
    Binary,
    Choice,
    Comparison,
    Const,
    DictOf,
    EnvReference,
    Expression,
    ExpressionProblem,
    Item,
    ListOf,
    Name,
    NameUse,
    PlainText,
    Reference,
    Slice,
    Template,
    Tree,
    Unary,
    Value,
)
from ragbraid.dsl.expression_types import check_text, infer_tree, path_of
from ragbraid.dsl.expression_values import Failure, bounded, to_text
from ragbraid.registry.errors import RunError

__all__ = [
    "EnvReference",
    "Expression",
    "ExpressionProblem",
    "NameUse",
    "PlainText",
    "Reference",
    "Template",
    "compile_expression",
    "infer",
    "names",
    "parse_value",
]

_IDENTIFIER = r"[^\W\d]\w*"
_PART = rf"\.(?P<field>{_IDENTIFIER})|\[\s*(?:(?P<index>-?\d{{1,9}})|\"(?P<double>[^\"]*)\"|'(?P<single>[^']*)')\s*\]"
_REFERENCE = re.compile(rf"\s*(?P<root>\${_IDENTIFIER})(?P<path>(?:{re.sub(r'[?]P<[a-z]+>', '?:', _PART)})*)\s*")
_PATH_PART = re.compile(_PART)
_DOLLAR_NAME = re.compile(rf"\${_IDENTIFIER}(?:\.{_IDENTIFIER}|\[[^\]]*\])*")
_ENV = re.compile(rf"\s*(?P<kind>env|secret)\.(?P<name>{_IDENTIFIER})\s*")


@lru_cache(maxsize=4096)
def parse_value(text: str) -> Value | ExpressionProblem:
    """Read what a text of a flow file is: plain, a reference, an expression, a template, or wrong."""
    if "$" not in text:
        return PlainText(text)
    reference = _REFERENCE.fullmatch(text)
    if reference:
        return _reference(reference)
    parts: list[str | Expression | EnvReference] = []
    for part in _split(text):
        if isinstance(part, ExpressionProblem):
            return part
        if isinstance(part, str) and parts and isinstance(parts[-1], str):
            part = parts.pop() + part  # type: ignore[operator]  # both are text
        parts.append(part)
    if all(isinstance(part, str) for part in parts):
        return PlainText("".join(str(part) for part in parts))
    visible = [part for part in parts if not isinstance(part, str) or part.strip()]
    if len(visible) == 1 and not isinstance(visible[0], str):
        return visible[0]
    return Template(text, tuple(parts))


def infer(value: Value, scope: Mapping[str, Any]) -> tuple[Any, tuple[ExpressionProblem, ...]]:
    """Return the type of an expression (a template is a `str`) and what is wrong with it.

    Args:
        value: what `parse_value` returned.
        scope: the types of the names in scope.
    """
    if isinstance(value, Expression):
        return infer_tree(value.tree, scope)
    if isinstance(value, Reference):
        return infer_tree(_tree_of(value), scope)
    if isinstance(value, EnvReference):
        return str, (_misplaced(value),)
    problems: list[ExpressionProblem] = []
    for part in value.parts if isinstance(value, Template) else ():
        if isinstance(part, EnvReference):
            problems.append(_misplaced(part))
        elif isinstance(part, Expression):
            found, wrong = infer_tree(part.tree, scope)
            problem = None if wrong else check_text(found, part.tree)
            problems += wrong if problem is None else [problem]
    return str, tuple(problems)


def names(value: Value) -> tuple[NameUse, ...]:
    """Return every name that is read, in the order of the text, each with the fields behind it."""
    if isinstance(value, Reference):
        return (NameUse(value.root, value.path, value.start, value.end),)
    if isinstance(value, Expression):
        return tuple(sorted(_uses(value.tree), key=lambda use: use.start))
    if isinstance(value, Template):
        return tuple(use for part in value.parts if isinstance(part, Expression) for use in names(part))
    return ()


def compile_expression(value: Expression | Template) -> Callable[..., Any]:
    """Return a function from the values of the names, given by keyword, to the result.

    A template gives a text. The function can be pickled. It raises `RunError` with the text of the expression and the
    reason when there is no result; a template refuses none and everything that is not a single value.
    """
    return _Evaluator(value)


@dataclass(frozen=True)
class _Evaluator:
    value: Expression | Template

    def __call__(self, **values: Any) -> Any:
        """Compute the result."""
        return self._run(values)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Evaluator, (self.value,)

    @cached_property
    def _run(self) -> Run:
        if isinstance(self.value, Expression):
            return _guarded(self.value)
        parts = [part if isinstance(part, str) else _text_part(part) for part in self.value.parts]

        def run(values: Mapping[str, Any]) -> str:
            text = "".join([part if isinstance(part, str) else part(values) for part in parts])
            return bounded(text)

        return run


def _text_part(part: Expression | EnvReference) -> Run:
    if isinstance(part, EnvReference):
        raise RunError(f"`${{{part.kind}.{part.name}}}` can be read by resources only")
    return _guarded(part, to_text)


def _guarded(expression: Expression, finish: Callable[[Any], Any] = lambda result: result) -> Run:
    run = compile_tree(expression.tree)
    shown = f"${{{expression.source}}}"

    def guarded(values: Mapping[str, Any]) -> Any:
        try:
            return finish(run(values))
        except Failure as failure:
            reason = str(failure)
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {error}"
        raise RunError(f"`{shown}` has no value: {reason}")

    return guarded


# -- reading -----------------------------------------------------------------------------------------------------------


def _reference(match: re.Match[str]) -> Reference:
    path: list[str | int] = []
    spans = [match.span("root")]
    for part in _PATH_PART.finditer(match.string, *match.span("path")):
        index = part["index"]
        path.append(int(index) if index is not None else part["field"] or part["double"] or part["single"] or "")
        spans.append(part.span(str(part.lastgroup)))
    return Reference(match["root"][1:], tuple(path), tuple(spans), match.start("root"), match.end("path"))


def _split(text: str) -> Iterator[str | Expression | EnvReference | ExpressionProblem]:
    """Cut a text into plain pieces and what stands in `${ }`; stop at the first mistake."""
    position = 0
    while True:
        dollar = text.find("$", position)
        if dollar < 0:
            yield text[position:]
            return
        if dollar > position:
            yield text[position:dollar]
        following = text[dollar + 1 : dollar + 2]
        if following == "$":
            yield "$"
            position = dollar + 2
        elif following == "{":
            end = _closing_brace(text, dollar + 2)
            if end is None:
                message = "the brace of this `${` is not closed"
                yield ExpressionProblem(
                    "RB401", message, dollar, dollar + 2, "add `}`, or write `$$` for a dollar sign"
                )
                return
            yield _expression(text, dollar, end)
            position = end
        else:
            yield _lone_dollar(text, dollar)
            return


def _closing_brace(text: str, position: int) -> int | None:
    """Return the offset behind the brace that closes an expression: not one in quotes, not one of an inner pair."""
    depth = 1
    quote = ""
    while position < len(text):
        character = text[position]
        if quote:
            position += character == "\\"
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in "{}":
            depth += 1 if character == "{" else -1
            if depth == 0:
                return position + 1
        position += 1
    return None


def _expression(text: str, start: int, end: int) -> Expression | EnvReference | ExpressionProblem:
    env = _ENV.fullmatch(text, start + 2, end - 1)
    if env:
        return EnvReference("env" if env["kind"] == "env" else "secret", env["name"], start, end)
    tree = parse_expression(text, start + 2, end - 1)
    return tree if isinstance(tree, ExpressionProblem) else Expression(text[start + 2 : end - 1], tree, start, end)


def _lone_dollar(text: str, dollar: int) -> ExpressionProblem:
    named = _DOLLAR_NAME.match(text, dollar)
    if named is None:
        message = "a single `$` means nothing here"
        apart = re.compile(rf"\$\s+({_IDENTIFIER})\s*").fullmatch(text, dollar) if not text[:dollar].strip() else None
        hint = f"write `${apart[1]}` without the space" if apart else "write `$$` for a dollar sign"
        return ExpressionProblem("RB401", message, dollar, dollar + 1, hint)
    shown = named[0]
    rest = text[named.end() :].strip()
    if not text[:dollar].strip() and rest and not re.search(r"\s", rest):
        found = _misspelt_reference(shown, rest)
        if found is not None:
            return ExpressionProblem("RB401", found[0], dollar, dollar + len(shown) + len(rest), found[1])
    hint = f"inside a text or a computation write `${{{shown[1:]}}}`; for a dollar sign write `$$`"
    message = f"the reference `{shown}` does not stand alone"
    return ExpressionProblem("RB401", message, dollar, named.end(), hint)


def _misspelt_reference(shown: str, rest: str) -> tuple[str, str] | None:
    """Return what is wrong with a text that is a reference but for its end, and what to write."""
    index = re.match(r"\.(\d+)", rest)
    if index:
        return f"an item of a list is not written `{index[0]}`", f"write `{shown}[{index[1]}]{rest[index.end() :]}`"
    if rest == ".":
        return f"the name of a field is missing after `{shown}.`", "add it, or delete the dot"
    if re.fullmatch(rf"-{_IDENTIFIER}(?:-\w+)*", rest):
        return f"`{shown}{rest}` is no reference: a name has no `-` in it", "write `_`, as where the name is declared"
    return None


def _misplaced(reference: EnvReference) -> ExpressionProblem:
    shown = f"${{{reference.kind}.{reference.name}}}"
    message = f"`{shown}` may only stand under `resources`"
    hint = "bind it to a resource, where it is read when the resource is opened and never written anywhere"
    return ExpressionProblem("RB404", message, reference.start, reference.end, hint)


def _tree_of(reference: Reference) -> Tree:
    (start, end), *spans = reference.spans
    tree: Tree = Name(reference.root, start, end)
    for part, (at, end) in zip(reference.path, spans, strict=True):
        if isinstance(part, str):
            tree = Attribute(tree, part, start, at, end)
        else:
            tree = Item(tree, Const(part, at, end), start, end)
    return tree


def _uses(tree: Tree) -> Iterator[NameUse]:
    path = path_of(tree)
    if path is not None:
        yield NameUse(str(path[0]), path[1:], tree.start, tree.end)
        return
    for child in _children(tree):
        yield from _uses(child)


def _children(tree: Tree) -> list[Tree]:
    if isinstance(tree, Attribute):
        return [tree.owner]
    if isinstance(tree, Item):
        return [tree.owner, tree.index]
    if isinstance(tree, Slice):
        return [tree.owner, *(bound for bound in tree.bounds if bound is not None)]
    if isinstance(tree, ListOf):
        return list(tree.items)
    if isinstance(tree, DictOf):
        return [part for pair in tree.pairs for part in pair]
    if isinstance(tree, Unary):
        return [tree.operand]
    if isinstance(tree, Binary):
        return [tree.left, tree.right]
    if isinstance(tree, Comparison):
        return [tree.first, *(operand for _, operand in tree.rest)]
    if isinstance(tree, Choice):
        return [tree.test, tree.yes, tree.no]
    return [tree.value, *tree.arguments, *(value for _, value in tree.named)] if isinstance(tree, Apply) else []
