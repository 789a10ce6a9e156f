"""KAG's own notation for logical forms, read as it is: lines `Step1: ...` and `Action1: Retrieval(s=..., p=..., o=...)`.

Prose between the steps and code fences are skipped, as KAG's own prompt asks models for both. Names may hold commas,
backticks, `=` and brackets: a name ends only where the notation goes on behind its bracket.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import get_args

from pydantic import ValidationError

from ragbraid.nodes.plan_check import check_steps, make_plan
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.logic import DeduceKind, LogicOp, LogicPlan, LogicStep, Slot
from ragbraid.registry.node import node

_OPS: dict[str, LogicOp] = {
    "retrieval": "retrieve", "retriever": "retrieve", "retrieve": "retrieve", "get_spo": "retrieve",
    "search_s": "retrieve", "math": "math", "deduce": "deduce", "output": "output", "get": "output",
}  # fmt: skip
_STEP = re.compile(r"step\s*(?P<n>\d*)\s*[:：]\s*(?P<text>.*)", re.IGNORECASE)
_ACTION = re.compile(r"(?:action|output)\s*\d*\s*[:：]\s*(?P<text>.*)", re.IGNORECASE)
_CALL = re.compile(r"(?P<name>\w+)\s*[(（](?P<inside>.*)[)）]\s*(?:->\s*`?(?P<out>[^\s`]+)`?)?\s*[;.。]?", re.DOTALL)
_COMMA = r"\s*[,，]\s*"
_NEXT = rf"(?={_COMMA}[spo](?:\.\w+)?\s*[=<>!]|\s*[,，]?\s*$)"
_SLOT = re.compile(
    rf"(?P<key>[spo])\s*=\s*(?P<alias>[^\W\d]\w*)(?:\s*[:：]\s*(?P<types>[^\[,，=]*?))?(?:\s*\[(?P<mention>.*?)\])?{_NEXT}",
    re.DOTALL,
)
_CONSTRAINT = re.compile(
    rf"(?P<key>[spo])\.(?P<name>\w+)\s*(?P<op>!=|<=|>=|=|<|>)\s*(?:`(?P<quoted>.*?)`|(?P<value>.*?)){_NEXT}", re.DOTALL
)
_ARGUMENT = re.compile(r"(?:^|[,，])\s*(?P<key>op|content|target)\s*(?:=\s*|(?=\[))", re.IGNORECASE)
_ITEM = re.compile(
    r"""\s*(?: (?P<q>[`"'])(?P<quoted>.*?)(?P=q)(?=\s*(?:[,，]|$)) | (?P<bare>[^,，]+) )\s*(?:[,，]|$)""",
    re.DOTALL | re.VERBOSE,
)
_QUOTES = "`\"'“”‘’"


class _Unreadable(Exception):
    """Why a line cannot be read."""


@node(
    "plan.parse",
    example="""
    plan: {use: plan.parse, text: "Step1: Who founded Acme?\\nAction1: Retrieval(s=s1:Company[`Acme`],p=p1:founder,o=o1:Person)"}
    """,
)
def parse(text: str) -> LogicPlan:
    """Reads a logical form in KAG's notation of Step and Action lines, and checks it before anything runs.

    Known are `Retrieval` (`Retriever`, `get_spo`, `search_s`), `Math`, `Deduce` and `Output` (`get`), in any case. Where
    no line outputs anything, the result of the last step is the output, with a note.

    Args:
        text: the lines; what is neither a Step nor an Action line is skipped.

    Raises:
        NodeInputError: a line cannot be read, or the plan cannot run; the message names the line or the step.
    """
    steps: list[LogicStep] = []
    question: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        plain = line.strip().strip("*#").strip()
        if found := _STEP.fullmatch(plain):
            if question is not None:
                raise _at(number - 1, "the step has no Action line")
            question = found["text"].strip(" *")
        elif found := _ACTION.fullmatch(plain):
            if question is None:
                raise _at(number, "an Action line stands without a Step line before it")
            try:
                steps.append(_read_action(found["text"].strip(" *"), len(steps) + 1, question))
            except (_Unreadable, ValidationError) as error:
                raise _at(number, _reason(error)) from None
            question = None
    if question is not None:
        raise _at(len(text.splitlines()), "the last step has no Action line")
    return _checked(steps, text)


def _checked(steps: list[LogicStep], text: str) -> LogicPlan:
    notes: list[str] = []
    if steps and steps[-1].op != "output":
        result = _result_of(steps[-1])
        steps.append(LogicStep(n=len(steps) + 1, question=f"Output {result}", op="output", inputs=(result,)))
        notes.append(f"no line outputs anything, so `{result}`, the result of the last step, is the output")
    problems = check_steps(steps)
    if problems:
        raise NodeInputError(f"The logical form cannot run. {' '.join(problems)}", kind="input")
    return make_plan(steps, raw=text, notes=notes)


def _result_of(step: LogicStep) -> str:
    if step.out_alias:
        return step.out_alias
    open_slots = [slot for slot in (step.o, step.s) if slot is not None and slot.mention is None]
    return next(iter(open_slots), step.slots[0]).alias


def _at(line: int, reason: str) -> NodeInputError:
    return NodeInputError(
        f"Line {line} of the logical form cannot be read: {reason}.",
        kind="input",
        hint="a step is two lines, `Step1: question` and `Action1: Retrieval(s=s1:Type[`name`],p=p1:relation,o=o1:Type)`",
    )


def _reason(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"`{str(first.get('input'))[:60]}` is no name of a variable"
    return str(error)


def _read_action(text: str, n: int, question: str) -> LogicStep:
    call = _CALL.fullmatch(text)
    if call is None:
        raise _Unreadable(f"`{text[:80]}` is no call such as Retrieval(...)")
    op = _OPS.get(call["name"].casefold())
    if op is None:
        raise _Unreadable(f"`{call['name']}` is none of Retrieval, Math, Deduce and Output")
    inside, out = call["inside"].strip(), call["out"]
    if op == "retrieve":
        return _read_retrieval(inside, n, question)
    if op == "output":
        return LogicStep(n=n, question=question, op=op, inputs=_read_items(inside))
    given = _read_arguments(inside)
    kind = None
    if op == "deduce":
        kind = _read_kind(given.get("op", ""))
    target = _unquoted(given.get("target", "")) or question
    inputs = _read_items(given.get("content", "").strip().removeprefix("[").removesuffix("]"))
    return LogicStep(n=n, question=question, op=op, inputs=inputs, target=target, deduce_kind=kind, out_alias=out)


def _read_kind(text: str) -> DeduceKind:
    plain = re.sub(r"[\W_]", "", text).casefold()
    for kind in get_args(DeduceKind):
        if plain == kind.replace("_", ""):
            found: DeduceKind = kind
            return found
    raise _Unreadable(f"`op={text[:40]}` is none of judgement, entailment, extract, choice and multiChoice")


def _read_arguments(inside: str) -> dict[str, str]:
    """Split `op=..., content=[...], target=...`; a name of an argument inside quotes or brackets is text."""
    starts = [each for each in _ARGUMENT.finditer(inside) if _is_outside(inside[: each.start()])]
    if not starts or inside[: starts[0].start()].strip():
        raise _Unreadable("its arguments are not of the form content=[...], target=...")
    ends = [*(each.start() for each in starts[1:]), len(inside)]
    return {each["key"].casefold(): inside[each.end() : end].strip() for each, end in zip(starts, ends, strict=True)}


def _is_outside(before: str) -> bool:
    return before.count("`") % 2 == 0 and (before.count("`") > 0 or before.count("[") <= before.count("]"))


def _read_items(inside: str) -> tuple[str, ...]:
    found = [(each["quoted"] if each["quoted"] is not None else each["bare"]) for each in _ITEM.finditer(inside)]
    return tuple(text for text in map(_unquoted, found) if text)


def _read_retrieval(inside: str, n: int, question: str) -> LogicStep:
    slots: dict[str, dict[str, object]] = {}
    constraints: dict[str, dict[str, str]] = {"s": {}, "p": {}, "o": {}}
    rest = inside
    while rest:
        found = _SLOT.match(rest) or _CONSTRAINT.match(rest)
        if found is None:
            raise _Unreadable(f"`{rest[:80]}` is none of s=alias:Type[`name`], p=alias:relation, o=alias:Type")
        key, groups = found["key"], found.groupdict()
        if "name" in groups:
            sign = "" if groups["op"] == "=" else f"{groups['op']} "
            constraints[key][groups["name"]] = sign + _unquoted(groups["quoted"] or groups["value"] or "")
        elif key in slots:
            raise _Unreadable(f"`{key}` is given twice")
        else:
            types = tuple(_unquoted(part) for part in (groups["types"] or "").split("|") if part.strip())
            mention = _unquoted(groups["mention"] or "") or None
            slots[key] = {"alias": groups["alias"], "types": types, "mention": mention}
        rest = re.sub(rf"^{_COMMA}", "", rest[found.end() :]).strip()
    if not slots:
        raise _Unreadable("it retrieves nothing: it has no s, p or o")
    read = {key: Slot.model_validate({**slot, "constraints": constraints[key]}) for key, slot in slots.items()}
    missing: Sequence[str] = [key for key, limits in constraints.items() if limits and key not in read]
    if missing:
        raise _Unreadable(f"`{missing[0]}` has a condition but is not given")
    return LogicStep(n=n, question=question, op="retrieve", s=read.get("s"), p=read.get("p"), o=read.get("o"))


def _unquoted(text: str) -> str:
    plain = text.strip()
    while len(plain) > 1 and plain[0] in _QUOTES and plain[-1] in _QUOTES:
        plain = plain[1:-1].strip()
    return plain.strip("`") if plain.count("`") == 1 else plain
