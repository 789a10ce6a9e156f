"""Expression trees become functions.

There is no generated code and no `eval`: every node of the tree is one small closure, and what an expression can do
is what stands here, in `expression_functions` and in `expression_values`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ragbraid.dsl.expression_functions import FILTERS, TESTS
from ragbraid.dsl.expression_tree import (
    Apply,
    Attribute,
    Binary,
    Choice,
    Comparison,
    Const,
    DictOf,
    Item,
    ListOf,
    Name,
    Slice,
    Tree,
    Unary,
)
from ragbraid.dsl.expression_values import (
    MISSING,
    Absent,
    Failure,
    before,
    bounded,
    contains,
    items_of,
    kind_of,
    read_field,
    same,
    to_text,
)

MAX_BITS = 4_096
"""Largest number that `**` may make."""

Run = Callable[[Mapping[str, Any]], Any]


def compile_tree(tree: Tree) -> Run:
    """Return a function from the values of the names to the value of the expression; it raises `Failure`."""
    return _COMPILERS[type(tree)](tree)


def _const(tree: Const) -> Run:
    value = tree.value
    return lambda values: value


def _name(tree: Name) -> Run:
    name = tree.name

    def run(values: Mapping[str, Any]) -> Any:
        if name not in values:
            raise Failure(f"`{name}` has no value")
        return values[name]

    return run


def _attribute(tree: Attribute) -> Run:
    owner, name = compile_tree(tree.owner), tree.name
    return lambda values: read_field(owner(values), name)


def _item(tree: Item) -> Run:
    owner, index = compile_tree(tree.owner), compile_tree(tree.index)

    def run(values: Mapping[str, Any]) -> Any:
        key = index(values)
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise Failure(f"{kind_of(key)} is no position")
        return read_field(owner(values), key)

    return run


def _slice(tree: Slice) -> Run:
    owner = compile_tree(tree.owner)
    bounds = [None if bound is None else compile_tree(bound) for bound in tree.bounds]

    def run(values: Mapping[str, Any]) -> Any:
        whole = owner(values)
        first, stop, step = (None if bound is None else _whole_number(bound(values)) for bound in bounds)
        if step == 0:
            raise Failure("the step of a slice cannot be 0")
        return (whole if isinstance(whole, str) else items_of(whole))[first:stop:step]

    return run


def _whole_number(value: Any) -> int | None:
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    raise Failure(f"{kind_of(value)} is no position")


def _list_of(tree: ListOf) -> Run:
    items = [compile_tree(item) for item in tree.items]
    return lambda values: [item(values) for item in items]


def _dict_of(tree: DictOf) -> Run:
    pairs = [(compile_tree(key), compile_tree(value)) for key, value in tree.pairs]
    return lambda values: {to_text(key(values)): value(values) for key, value in pairs}


def _unary(tree: Unary) -> Run:
    operand = compile_tree(tree.operand)
    if tree.operator == "not":
        return lambda values: not operand(values)
    sign = -1 if tree.operator == "-" else 1
    return lambda values: sign * _numbers(operand(values), 0, tree.operator)[0]


def _numbers(left: Any, right: Any, operator: str) -> tuple[Any, Any]:
    for value in (left, right):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise Failure(f"`{operator}` needs numbers, and this is {kind_of(value)}")
    return left, right


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        return bounded(left + right)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return bounded([*left, *right])
    if isinstance(left, str | list | tuple) or isinstance(right, str | list | tuple):
        raise Failure(f"`+` cannot join {kind_of(left)} and {kind_of(right)}")
    left, right = _numbers(left, right, "+")
    return left + right


def _divided(operator: str, compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def run(left: Any, right: Any) -> Any:
        left, right = _numbers(left, right, operator)
        if right == 0:
            raise Failure("nothing can be divided by 0")
        return compute(left, right)

    return run


def _power(left: Any, right: Any) -> Any:
    left, right = _numbers(left, right, "**")
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > MAX_BITS:
        raise Failure("the power is too large")
    try:
        result = left**right
    except ZeroDivisionError:
        raise Failure("nothing can be divided by 0") from None
    if isinstance(result, complex):
        raise Failure("the root of a negative number is no number")
    return result


def _subtract(left: Any, right: Any) -> Any:
    left, right = _numbers(left, right, "-")
    return left - right


def _multiply(left: Any, right: Any) -> Any:
    left, right = _numbers(left, right, "*")
    return left * right


_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": _add,
    "-": _subtract,
    "*": _multiply,
    "**": _power,
    "/": _divided("/", lambda left, right: left / right),
    "//": _divided("//", lambda left, right: left // right),
    "%": _divided("%", lambda left, right: left % right),
    "~": lambda left, right: bounded(to_text(left) + to_text(right)),
}


def _binary(tree: Binary) -> Run:
    left, right = compile_tree(tree.left), compile_tree(tree.right)
    if tree.operator == "and":
        return lambda values: left(values) and right(values)
    if tree.operator == "or":
        return lambda values: left(values) or right(values)
    compute = _ARITHMETIC[tree.operator]
    return lambda values: compute(left(values), right(values))


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "==": same,
    "!=": lambda left, right: not same(left, right),
    "<": before,
    ">": lambda left, right: before(right, left),
    "<=": lambda left, right: same(left, right) or before(left, right),
    ">=": lambda left, right: same(left, right) or before(right, left),
    "in": contains,
    "not in": lambda left, right: not contains(left, right),
}


def _comparison(tree: Comparison) -> Run:
    first = compile_tree(tree.first)
    rest = [(_COMPARE[operator], compile_tree(operand)) for operator, operand in tree.rest]

    def run(values: Mapping[str, Any]) -> bool:
        left = first(values)
        for holds, operand in rest:
            right = operand(values)
            if not holds(left, right):
                return False
            left = right
        return True

    return run


def _choice(tree: Choice) -> Run:
    test, yes, no = compile_tree(tree.test), compile_tree(tree.yes), compile_tree(tree.no)
    return lambda values: yes(values) if test(values) else no(values)


def _apply(tree: Apply) -> Run:
    apply = (TESTS if tree.is_test else FILTERS)[tree.name].apply
    value = compile_tree(tree.value)
    arguments = [compile_tree(argument) for argument in tree.arguments]
    named = [(name, compile_tree(argument)) for name, argument in tree.named]
    lenient = tree.name in ("defined", "undefined", "default", "d")

    def run(values: Mapping[str, Any]) -> Any:
        try:
            subject = value(values)
        except Absent:
            if not lenient:
                raise
            subject = MISSING
        return apply(subject, *[part(values) for part in arguments], **{name: part(values) for name, part in named})

    return run


_COMPILERS: dict[type[Any], Callable[[Any], Run]] = {
    Const: _const,
    Name: _name,
    Attribute: _attribute,
    Item: _item,
    Slice: _slice,
    ListOf: _list_of,
    DictOf: _dict_of,
    Unary: _unary,
    Binary: _binary,
    Comparison: _comparison,
    Choice: _choice,
    Apply: _apply,
}
