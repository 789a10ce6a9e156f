"""Evaluates the expressions that models write for the maths of a plan. Nothing of Python is executed.

The text is parsed as a Python expression and walked; what is not listed here is refused with a sentence. Text, depth
and every intermediate number are bounded, so that evaluation always ends at once. (KAG runs the programs that a model
writes, without a sandbox.)
"""

from __future__ import annotations

import ast
import operator
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ragbraid.nodes.math_functions import (
    FUNCTIONS,
    OPERATORS,
    TAKE_TEXT,
    Item,
    bounded,
    flat,
    number_of,
    order,
    scalar,
    truth_of,
)
from ragbraid.nodes.math_values import Amount, MathError

MAX_TEXT = 500
MAX_DEPTH = 40


Variables: TypeAlias = Mapping[str, Sequence[Item]]


def evaluate(expression: str, variables: Variables) -> list[Item]:
    """Return the values of an expression: one, or several where it gives a list.

    Known are numbers, `+ - * / // % **`, comparisons, `and or not`, lists, the functions of `FUNCTIONS` and the
    variables. A variable of one value is that value, one of several is a list.

    Args:
        expression: the text.
        variables: what each name stands for.

    Raises:
        MathError: the expression holds anything else, does not compute, or a number becomes too large.
    """
    if len(expression) > MAX_TEXT:
        raise MathError(f"the expression is longer than {MAX_TEXT} characters")
    if unicodedata.normalize("NFKC", expression) != expression:
        raise MathError("the expression holds look-alikes of plain letters, digits or signs")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise MathError(f"`{expression[:80]}` is no expression") from None
    try:
        found = _visit(tree.body, variables, 0)
    except ZeroDivisionError:
        raise MathError("the expression divides by zero") from None
    except OverflowError:
        raise MathError("a number in the expression becomes too large") from None
    return [value if isinstance(value, Item) else Item(value) for value in flat(found)]


def _visit(node: ast.expr, variables: Variables, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise MathError("the expression is nested too deeply")
    visit = _NODES.get(type(node))
    if visit is None:
        raise MathError(f"the expression holds {_described(node)}, which is not allowed")
    return bounded(visit(node, variables, depth + 1))


def _constant(node: ast.Constant, _: Variables, __: int) -> Any:
    if type(node.value) not in (int, float, bool):
        raise MathError(f"the expression holds {_described(node)}, which is not allowed")
    return node.value


def _name(node: ast.Name, variables: Variables, _: int) -> Any:
    values = variables.get(node.id)
    if values is None:
        known = ", ".join(variables) or "none"
        raise MathError(f"`{node.id}` is no variable of this step; its variables are: {known}")
    if not values:
        raise MathError(f"`{node.id}` has no value")
    return list(values) if len(values) > 1 else values[0]


def _list(node: ast.List | ast.Tuple, variables: Variables, depth: int) -> Any:
    return [_visit(each, variables, depth) for each in node.elts]


def _unary(node: ast.UnaryOp, variables: Variables, depth: int) -> Any:
    value = scalar(_visit(node.operand, variables, depth))
    if isinstance(node.op, ast.Not):
        return not truth_of(value)
    if isinstance(node.op, ast.Invert):
        raise MathError("the expression holds `~`, which is not allowed")
    sign = -1 if isinstance(node.op, ast.USub) else 1
    return Amount(sign * value.number, value.unit) if isinstance(value, Amount) else sign * number_of(value)


def _binary(node: ast.BinOp, variables: Variables, depth: int) -> Any:
    sign = _SIGNS.get(type(node.op))
    if sign is None:
        raise MathError(f"the expression holds the operator {type(node.op).__name__}, which is not allowed")
    return OPERATORS[sign](scalar(_visit(node.left, variables, depth)), scalar(_visit(node.right, variables, depth)))


def _compare(node: ast.Compare, variables: Variables, depth: int) -> bool:
    values = [scalar(_visit(each, variables, depth)) for each in (node.left, *node.comparators)]
    results = []
    for left, right, op in zip(values, values[1:], node.ops, strict=False):
        test = _COMPARISONS.get(type(op))
        if test is None:
            raise MathError(f"the expression holds the comparison {type(op).__name__}, which is not allowed")
        results.append(test(order(left, right), 0))
    return all(results)


def _boolean(node: ast.BoolOp, variables: Variables, depth: int) -> bool:
    values = [truth_of(scalar(_visit(each, variables, depth))) for each in node.values]
    return all(values) if isinstance(node.op, ast.And) else any(values)


def _call(node: ast.Call, variables: Variables, depth: int) -> Any:
    function = FUNCTIONS.get(node.func.id) if isinstance(node.func, ast.Name) else None
    if function is None:
        shown = node.func.id if isinstance(node.func, ast.Name) else "an expression"
        raise MathError(f"the expression calls {shown}; the functions are {', '.join(FUNCTIONS)}")
    if node.keywords or any(isinstance(each, ast.Starred) for each in node.args):
        raise MathError("functions take values by position alone")
    texts = node.func.id in TAKE_TEXT if isinstance(node.func, ast.Name) else False
    given = [
        each.value
        if texts and isinstance(each, ast.Constant) and isinstance(each.value, str)
        else _visit(each, variables, depth)
        for each in node.args
    ]
    try:
        return function(*given)
    except TypeError:
        raise MathError(f"`{ast.unparse(node.func)}` takes another number of values, or other ones") from None


_NODES: dict[type[ast.expr], Callable[[Any, Variables, int], Any]] = {
    ast.Constant: _constant,
    ast.Name: _name,
    ast.List: _list,
    ast.Tuple: _list,
    ast.UnaryOp: _unary,
    ast.BinOp: _binary,
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.Call: _call,
}


# -- operators --------------------------------------------------------------------------------------------------------

_SIGNS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def _described(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return "a text" if isinstance(node.value, str | bytes) else f"the constant {node.value!r}"
    return f"`{ast.unparse(node)[:60]}`"
