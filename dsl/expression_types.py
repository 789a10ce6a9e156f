"""What type an expression has, found from its tree alone.

Constants are literals, so `${ "fast" if quick else "slow" }` fits a port of type `literal["fast", "slow"]`. What may
be none is an error wherever none would make the expression fail; `x is not none`, `x` as a condition and `default`
are understood. A mistake makes its part of the tree `any`, so that it is reported once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from ragbraid.dsl.expression_functions import FILTERS, Function
from ragbraid.dsl.expression_rules import (
    arithmetic,
    exactly,
    is_basic,
    is_list,
    is_number,
    is_single,
    joined,
    may_be_equal,
    may_be_ordered,
    may_contain,
    nearest_choice,
    optional_like,
    part_of,
    shown,
    takes,
    widened,
)
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
from ragbraid.dsl.types import (
    assignable,
    describe,
    field_names,
    field_type,
    is_optional,
    item_type,
    members,
    strip,
    without_none,
)
from ragbraid.registry.suggest import did_you_mean

Path = tuple[str | int, ...]
Facts = frozenset[Path]
"""What is known not to be none in a part of an expression."""

_NO_FACTS: Facts = frozenset()
_ABOUT_NONE = frozenset({"none", "defined", "undefined"})
_NO_NONE_HINT = "give it a value with `| default(...)`, or test it with `A if x is not none else B`"


def infer_tree(tree: Tree, scope: Mapping[str, Any]) -> tuple[Any, tuple[ExpressionProblem, ...]]:
    """Return the type of an expression and what is wrong with it, in the order of the text."""
    inference = _Inference(scope)
    found = inference.type_of(tree, _NO_FACTS)
    return found, tuple(sorted(inference.problems, key=lambda problem: (problem.start, problem.end)))


def path_of(tree: Tree) -> Path | None:
    """Return root, fields and positions of a plain chain such as `plan.steps[0]`, or None."""
    if isinstance(tree, Name):
        return (tree.name,)
    if isinstance(tree, Attribute):
        owner = path_of(tree.owner)
        return None if owner is None else (*owner, tree.name)
    if isinstance(tree, Item) and isinstance(tree.index, Const) and isinstance(tree.index.value, str | int):
        owner = path_of(tree.owner)
        return None if owner is None or isinstance(tree.index.value, bool) else (*owner, tree.index.value)
    return None


def check_text(tp: Any, tree: Tree) -> ExpressionProblem | None:
    """Return why a value of a type cannot be put into a text, or None."""
    if is_optional(tp):
        message = "this may be none, which cannot be put into a text"
        return ExpressionProblem("RB205", message, tree.start, tree.end, 'give it a value with `| default("")`')
    for member in members(tp):
        if not is_single(member):
            hint = "name a field of it, or use a filter such as `join` or `tojson`"
            message = f"{describe(tp)} cannot be put into a text"
            return ExpressionProblem("RB205", message, tree.start, tree.end, hint)
    return None


class _Inference:
    def __init__(self, scope: Mapping[str, Any]) -> None:
        self.scope = scope
        self.problems: list[ExpressionProblem] = []

    def complain(self, code: str, message: str, tree: Tree, hint: str | None = None) -> Any:
        self.problems.append(ExpressionProblem(code, message, tree.start, tree.end, hint))
        return Any

    def type_of(self, tree: Tree, facts: Facts) -> Any:
        found = _RULES[type(tree)](self, tree, facts)
        path = path_of(tree) if facts else None
        return without_none(found) if path in facts else found

    def present(self, tree: Tree, facts: Facts) -> Any:
        """Return the type of a part that must not be none; a problem when it may be."""
        found = self.type_of(tree, facts)
        if not is_optional(found):
            return found
        if strip(found) is type(None):
            return self.complain("RB205", "this is none", tree)
        self.complain("RB205", f"this may be none: its type is {describe(found)}", tree, _NO_NONE_HINT)
        return Any

    # -- names and what is inside them ---------------------------------------------------------------------------

    def const(self, tree: Const, facts: Facts) -> Any:
        if tree.value is None or isinstance(tree.value, float):
            return type(tree.value)
        return Literal[tree.value]

    def name(self, tree: Name, facts: Facts) -> Any:
        if tree.name in self.scope:
            return self.scope[tree.name]
        known = ", ".join(f"`{name}`" for name in list(self.scope)[:12])
        hint = did_you_mean(tree.name, self.scope) or (f"in scope are {known}" if known else None)
        return self.complain("RB402", f"nothing here is called `{tree.name}`", tree, hint)

    def attribute(self, tree: Attribute, facts: Facts) -> Any:
        owner = self.present(tree.owner, facts)
        return self.field(owner, tree.name, tree.at, tree.end)

    def field(self, owner: Any, name: str, start: int, end: int) -> Any:
        found = field_type(owner, name)
        if found is not None:
            return found
        known = field_names(without_none(owner))
        listed = ", ".join(f"`{other}`" for other in known[:12])
        hint = did_you_mean(name, known) or (f"it has {listed}" if known else None)
        self.problems.append(ExpressionProblem("RB104", f"{shown(owner)} has no field `{name}`", start, end, hint))
        return Any

    def item(self, tree: Item, facts: Facts) -> Any:
        owner = self.present(tree.owner, facts)
        index = tree.index
        if isinstance(index, Const) and isinstance(index.value, str):
            return self.field(owner, index.value, index.start, index.end)
        position = self.present(index, facts)
        found = item_type(owner)
        if found is None:
            return self.complain("RB205", f"{shown(owner)} has no items", tree.owner)
        is_mapping = field_type(owner, "x") is not None
        if not is_mapping and not assignable(position, int):
            return self.complain("RB205", f"a position is a whole number, not {shown(position)}", index)
        return found

    def slice(self, tree: Slice, facts: Facts) -> Any:
        owner = self.present(tree.owner, facts)
        for bound in tree.bounds:
            if bound is not None and not assignable(found := self.type_of(bound, facts), int | None):
                self.complain("RB205", f"a position is a whole number, not {shown(found)}", bound)
        part = part_of(owner)
        return self.complain("RB205", f"{shown(owner)} has no items", tree.owner) if part is None else part

    def list_of(self, tree: ListOf, facts: Facts) -> Any:
        items = [self.type_of(item, facts) for item in tree.items]
        return list[joined(items) if items else Any]  # type: ignore[misc]

    def dict_of(self, tree: DictOf, facts: Facts) -> Any:
        for key, _ in tree.pairs:
            self.present(key, facts)
        values = [self.type_of(value, facts) for _, value in tree.pairs]
        return dict[str, joined(values) if values else Any]  # type: ignore[misc]

    # -- operators -----------------------------------------------------------------------------------------------

    def unary(self, tree: Unary, facts: Facts) -> Any:
        if tree.operator == "not":
            self.type_of(tree.operand, facts)
            return bool
        operand = self.present(tree.operand, facts)
        if isinstance(tree.operand, Const) and type(tree.operand.value) is int:
            return Literal[-tree.operand.value if tree.operator == "-" else tree.operand.value]
        if is_number(operand):
            return widened(operand)
        return self.complain("RB205", f"`{tree.operator}` needs a number, not {shown(operand)}", tree.operand)

    def binary(self, tree: Binary, facts: Facts) -> Any:
        if tree.operator in ("and", "or"):
            return self.logic(tree, facts)
        left, right = self.present(tree.left, facts), self.present(tree.right, facts)
        if tree.operator == "~":
            for tp, part in ((left, tree.left), (right, tree.right)):
                problem = check_text(tp, part)
                self.problems += [problem] if problem else []
            return str
        found = arithmetic(tree.operator, left, right)
        if found is not None:
            return found
        hint = None
        if tree.operator == "+" and (is_list(left) or is_list(right)):
            hint = "put a single item into brackets: `[item]`; make a list of a ranking with `| list`"
        elif tree.operator == "+" and (is_basic(left, str) or is_basic(right, str)):
            hint = "join texts with `~`, which turns numbers into text"
        message = f"`{tree.operator}` does not go together with {shown(left)} and {shown(right)}"
        return self.complain("RB205", message, tree, hint)

    def logic(self, tree: Binary, facts: Facts) -> Any:
        left = self.type_of(tree.left, facts)
        is_and = tree.operator == "and"
        right = self.type_of(tree.right, facts | _facts(tree.left, is_and))
        if not is_and:
            left = without_none(left)
        return joined([left, right])

    def choice(self, tree: Choice, facts: Facts) -> Any:
        self.type_of(tree.test, facts)
        yes = self.type_of(tree.yes, facts | _facts(tree.test, True))
        no = self.type_of(tree.no, facts | _facts(tree.test, False))
        return joined([yes, no])

    def comparison(self, tree: Comparison, facts: Facts) -> Any:
        left_tree = tree.first
        left = self.type_of(left_tree, facts)
        for operator, right_tree in tree.rest:
            right = self.type_of(right_tree, facts)
            self.compare(operator, (left_tree, left), (right_tree, right))
            left_tree, left = right_tree, right
        return bool

    def compare(self, operator: str, left: tuple[Tree, Any], right: tuple[Tree, Any]) -> None:
        whole = Comparison(left[0], ((operator, right[0]),), left[0].start, right[0].end)
        if operator in ("==", "!="):
            if not may_be_equal(left[1], right[1]):
                always = "never" if operator == "==" else "always"
                message = f"{exactly(left[1])} {always} {'equals' if operator == '==' else 'differs from'} {exactly(right[1])}"
                self.complain("RB205", message, whole, nearest_choice(left[1], right[1]))
            return
        for tree, tp in (left, right) if "in" not in operator else (right,):
            if is_optional(tp):
                self.complain("RB205", f"this may be none: its type is {describe(tp)}", tree, _NO_NONE_HINT)
                return
        fits = may_contain(right[1], left[1]) if "in" in operator else may_be_ordered(left[1], right[1])
        if not fits:
            what = "cannot be in" if "in" in operator else "cannot be compared with"
            self.complain("RB205", f"{shown(left[1])} {what} {shown(right[1])}", whole)

    # -- filters and tests ---------------------------------------------------------------------------------------

    def apply(self, tree: Apply, facts: Facts) -> Any:
        arguments = [self.type_of(argument, facts) for argument in tree.arguments]
        arguments += [self.type_of(argument, facts) for _, argument in tree.named]
        if tree.is_test:
            self.type_of(tree.value, facts)
            return bool
        function = FILTERS[tree.name]
        lenient = function.takes == "any"
        value = self.type_of(tree.value, facts) if lenient else self.present(tree.value, facts)
        if not takes(function, value):
            wanted = {"sized": "a list or a text", "list": "a list", "text": "a text", "number": "a number"}
            message = f"`{tree.name}` needs {wanted.get(function.takes, 'a value')}, not {shown(value)}"
            return self.complain("RB205", message, tree.value)
        self.check_attribute(tree, value)
        return self.result(tree, function, value, arguments)

    def result(self, tree: Apply, function: Function, value: Any, arguments: list[Any]) -> Any:
        items = item_type(value) or Any
        if not isinstance(function.gives, str):
            if tree.name == "join":
                self.check_join(tree, items)
            return function.gives
        if function.gives == "list":
            return list[items]  # type: ignore[valid-type]
        if function.gives == "reverse":
            part = part_of(value)
            return list[items] if part is None else part  # type: ignore[valid-type]
        if function.gives == "item":
            return items
        if function.gives == "default":
            return joined([without_none(value), arguments[0] if arguments else str])
        if function.gives == "sum":
            summed = self.attribute_type(tree, items)
            return widened(summed) if is_number(summed) else Any
        return self.mapped(tree, items) if function.gives == "map" else widened(value)

    def mapped(self, tree: Apply, items: Any) -> Any:
        named = dict(tree.named)
        if "attribute" in named:
            found = self.attribute_type(tree, items)
            default = named.get("default")
            if default is not None:
                found = joined([without_none(found), self.type_of(default, _NO_FACTS)])
            return list[found]  # type: ignore[valid-type]
        name = tree.arguments[0].value if tree.arguments and isinstance(tree.arguments[0], Const) else ""
        function = FILTERS.get(str(name))
        if function is None:
            return self.complain("RB403", "`map` needs `attribute=` or the name of a filter", tree)
        inner = self.result(Apply(False, str(name), tree.value, (), (), *_place(tree)), function, items, [])
        return list[inner]  # type: ignore[valid-type]

    def check_attribute(self, tree: Apply, value: Any) -> None:
        place = _attribute_argument(tree)
        if place is None or not isinstance(place.value, str):
            return
        current = item_type(value) or Any
        at = place.start + 1
        for part in place.value.split("."):
            if part.isdecimal():
                current = item_type(current) or Any
            else:
                current = self.field(without_none(current), part, at, at + len(part))
            at += len(part) + 1

    def attribute_type(self, tree: Apply, items: Any) -> Any:
        place = _attribute_argument(tree)
        current = items
        for part in str(place.value).split(".") if place is not None else ():
            inner = without_none(current)
            found = item_type(inner) if part.isdecimal() else field_type(inner, part)
            current = Any if found is None else optional_like(found, current)
        return current

    def check_join(self, tree: Apply, items: Any) -> None:
        problem = check_text(self.attribute_type(tree, items), tree)
        if problem is not None:
            hint = 'name a field: `| map(attribute="text") | join(", ")`'
            message = f"`join` cannot put {describe(items)} into a text"
            self.problems.append(ExpressionProblem("RB205", message, tree.at, tree.at_end, hint))


_RULES: dict[type[Any], Callable[[_Inference, Any, Facts], Any]] = {
    Const: _Inference.const,
    Name: _Inference.name,
    Attribute: _Inference.attribute,
    Item: _Inference.item,
    Slice: _Inference.slice,
    ListOf: _Inference.list_of,
    DictOf: _Inference.dict_of,
    Unary: _Inference.unary,
    Binary: _Inference.binary,
    Comparison: _Inference.comparison,
    Choice: _Inference.choice,
    Apply: _Inference.apply,
}


def _facts(tree: Tree, holds: bool) -> Facts:
    """Return what is not none where a condition holds (or does not hold)."""
    path = path_of(tree)
    if path is not None:
        return frozenset({path}) if holds else _NO_FACTS
    if isinstance(tree, Unary) and tree.operator == "not":
        return _facts(tree.operand, not holds)
    if isinstance(tree, Binary) and tree.operator == ("and" if holds else "or"):
        return _facts(tree.left, holds) | _facts(tree.right, holds)
    if isinstance(tree, Comparison) and len(tree.rest) == 1:
        operator, right = tree.rest[0]
        compared = path_of(tree.first)
        against_none = isinstance(right, Const) and right.value is None
        if compared is not None and against_none and operator == ("!=" if holds else "=="):
            return frozenset({compared})
    if isinstance(tree, Apply) and tree.is_test:
        tested = path_of(tree.value)
        says_so = not holds if tree.name == "none" else holds and tree.name not in _ABOUT_NONE
        return frozenset({tested}) if tested is not None and says_so else _NO_FACTS
    return _NO_FACTS


def _attribute_argument(tree: Apply) -> Const | None:
    """Return the dotted path that a filter such as `map` or `selectattr` is told to read in every item."""
    found = dict(tree.named).get("attribute")
    if found is None and tree.name in ("selectattr", "rejectattr") and tree.arguments:
        found = tree.arguments[0]
    return found if isinstance(found, Const) else None


def _place(tree: Apply) -> tuple[int, int, int, int]:
    return tree.start, tree.at, tree.at_end, tree.end
