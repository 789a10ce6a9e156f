"""The reserved keys of a node: when it runs, how often it is tried, how long, and what happens when it fails."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ragbraid.dsl.ambient import Neighbours, fill_the_rest
from ragbraid.dsl.bind import bind_written, draft_node, find_contract
from ragbraid.dsl.draft import Draft, Fill
from ragbraid.dsl.durations import parse_duration
from ragbraid.dsl.expressions import Expression, ExpressionProblem, Reference, names, parse_value
from ragbraid.dsl.parse import check_keys
from ragbraid.dsl.plan import Computed, Literally, Policy, Retry, Step
from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import POISON
from ragbraid.dsl.source_nodes import Entry, MappingNode, Node, ScalarNode, SequenceNode, subspan
from ragbraid.dsl.syntax import NodeDecl
from ragbraid.dsl.types import assignable, describe, without_none
from ragbraid.dsl.values import Bound, Context, bind_expression, bind_text, fit
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.errors import FailureKind
from ragbraid.registry.node import RESERVED_KEYS
from ragbraid.registry.suggest import did_you_mean

RETRY_KINDS: tuple[FailureKind, ...] = ("rate_limit", "timeout", "invalid_output", "unavailable")
RETRY_KEYS = ("attempts", "delay", "backoff", "on")
MAX_ATTEMPTS = 100

_RETRY_HINT = "write `retry: 3` or `retry: {attempts: 3, delay: 1s, backoff: 2, on: [rate_limit]}`"
_DURATION_HINT = "write a duration such as `30s`, `2m` or `1h`"


@dataclass(frozen=True, slots=True)
class Known:
    """What a node may name beside the names in scope: nodes, and resources with their role where it is known."""

    catalogue: Catalogue
    resources: Mapping[str, str | None]


def read_policy(draft: Draft, context: Context) -> None:
    """Check the reserved keys of a node, all but its replacement, and store them in its draft."""
    reserved = draft.decl.reserved
    report = context.report
    needs: set[int] = set()
    policy = Policy()
    if "retry" in reserved:
        policy = replace(policy, retry=_read_retry(reserved["retry"].value, report))
    if "timeout" in reserved:
        policy = replace(policy, timeout_seconds=_read_duration(reserved["timeout"].value, "`timeout`", report))
    if "cache" in reserved:
        policy = replace(policy, cache_seconds=_read_cache(draft, reserved["cache"], report))
    if "when" in reserved:
        bound = _read_when(reserved["when"].value, context)
        needs |= bound.needs
        policy = replace(policy, when=bound.value)
    if "ensure" in reserved:
        ensure, read = _read_ensure(draft, reserved["ensure"].value, context)
        needs |= read
        policy = replace(policy, ensure=ensure)
    draft.policy = policy
    draft.policy_needs = frozenset(needs)


def read_on_error(draft: Draft, neighbours: Neighbours, context: Context, known: Known) -> None:
    """Check `on_error`; a replacement gets the values of what it replaces, so all ports of that are filled before."""
    entry = draft.decl.reserved.get("on_error")
    if entry is None:
        return
    node = entry.value
    word = node.value if isinstance(node, ScalarNode) else None
    if isinstance(node, MappingNode):
        step = _read_replacement(draft, neighbours, node, context, known)
        if step is not None:
            draft.policy = replace(draft.policy, on_error=step)
            draft.policy_needs |= step.needs
    elif word == "skip":
        draft.policy = replace(draft.policy, on_error="skip")
    elif word != "fail":
        hint = "write `on_error: fail`, `on_error: skip` or `on_error: {use: ...}`"
        if isinstance(word, str) and known.catalogue.find_node(word) is not None:
            hint = f"write `on_error: {{use: {word}}}`"
        context.report.error("RB201", "`on_error` is `fail`, `skip` or a replacement", node.span, hint)


def _read_retry(node: Node, report: Report) -> Retry:
    if isinstance(node, ScalarNode):
        if node.value == 1 and not isinstance(node.value, bool):
            report.warning("RB903", "`retry: 1` has no effect: the first try counts too", node.span, _RETRY_HINT)
        return Retry(attempts=_attempts(node, report))
    if not isinstance(node, MappingNode):
        report.error("RB012", "`retry` is a number of attempts or a mapping", node.span, _RETRY_HINT)
        return Retry()
    node = check_keys(node, RETRY_KEYS, "`retry`", report)
    retry = Retry()
    if (attempts_node := node.get("attempts")) is not None:
        retry = replace(retry, attempts=_attempts(attempts_node, report))
    else:
        report.error("RB011", "`retry` has no `attempts`", node.span, _RETRY_HINT)
    if (delay := node.get("delay")) is not None:
        retry = replace(retry, delay=_read_duration(delay, "`delay`", report) or 0.0)
    if (backoff := node.get("backoff")) is not None:
        retry = replace(retry, backoff=_read_backoff(backoff, report))
    if (on := node.get("on")) is not None:
        retry = replace(retry, on=_read_kinds(on, report))
    return retry


def _attempts(node: Node, report: Report) -> int:
    value = node.value if isinstance(node, ScalarNode) else None
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_ATTEMPTS:
        return value
    message = f"the number of attempts is a whole number from 1 to {MAX_ATTEMPTS}"
    report.error("RB201", message, node.span, _RETRY_HINT)
    return 1


def _read_backoff(node: Node, report: Report) -> float:
    value = node.value if isinstance(node, ScalarNode) else None
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 1:
        return float(value)
    report.error(
        "RB201", "`backoff` is a number of at least 1, by which every delay is longer than the last", node.span
    )
    return 1.0


def _read_kinds(node: Node, report: Report) -> frozenset[FailureKind]:
    items = node.items if isinstance(node, SequenceNode) else (node,)
    kinds: set[FailureKind] = set()
    for item in items:
        value = item.value if isinstance(item, ScalarNode) else None
        kind = next((known for known in RETRY_KINDS if known == value), None)
        if kind is not None:
            kinds.add(kind)
        else:
            hint = did_you_mean(str(value), RETRY_KINDS) or f"kinds are {', '.join(RETRY_KINDS)}"
            report.error("RB201", f"`{value}` is no kind of failure that `retry` knows", item.span, hint)
    return frozenset(kinds)


def _read_duration(node: Node, what: str, report: Report) -> float | None:
    seconds = parse_duration(node.value) if isinstance(node, ScalarNode) else None
    if seconds is None:
        report.error("RB201", f"{what} is a duration greater than zero", node.span, _DURATION_HINT)
    return seconds


def _read_cache(draft: Draft, entry: Entry, report: Report) -> float | None:
    node = entry.value
    if isinstance(node, ScalarNode) and isinstance(node.value, bool):
        seconds = math.inf if node.value else None
    else:
        seconds = parse_duration(node.value) if isinstance(node, ScalarNode) else None
        if seconds is None:
            hint = "write `cache: true`, `cache: false` or a lifetime such as `cache: 1h`"
            report.error("RB201", "`cache` is true, false or a lifetime", node.span, hint)
    if seconds is not None and draft.contract is not None and not draft.contract.cacheable:
        message = f"`cache` has no effect on `{draft.contract.name}`, which has effects of its own and always runs"
        report.warning("RB903", message, entry.key_span, "remove `cache`")
        return None
    return seconds


def _read_when(node: Node, context: Context) -> Bound:
    if isinstance(node, ScalarNode) and isinstance(node.value, bool):
        effect = "always" if node.value else "never"
        context.report.warning("RB903", f"this `when` is constant: the node {effect} runs", node.span)
        return Bound(Literally(node.value), bool)
    return _condition(node, "`when`", context)


def _condition(node: Node, what: str, context: Context) -> Bound:
    hint = f"write a condition, such as {what[:-1]}: ${{ hits | length > 0 }}`"
    if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
        context.report.error("RB211", f"{what} is a condition", node.span, hint)
        return Bound(Literally(value=True), POISON)
    bound = bind_text(node, context)
    if bound.type is not POISON and not assignable(bound.type, bool):
        context.report.error("RB211", f"{what} is true or false, but this is {describe(bound.type)}", node.span, hint)
    return bound


def _read_ensure(draft: Draft, node: Node, context: Context) -> tuple[Computed | None, frozenset[int]]:
    """Read a post-condition, in which `out` is the node's output."""
    hint = "write a condition over `out`, such as `ensure: ${ out | length >= 3 }`"
    report = context.report
    parsed = parse_value(node.value) if isinstance(node, ScalarNode) and isinstance(node.value, str) else None
    if not isinstance(node, ScalarNode) or not isinstance(parsed, Expression | Reference | ExpressionProblem):
        report.error("RB211", "`ensure` is a condition over `out`", node.span, hint)
        return None, frozenset()
    if isinstance(parsed, ExpressionProblem):
        report.error(parsed.code, parsed.message, subspan(node, parsed.start, parsed.end), parsed.hint)
        return None, frozenset()
    if all(use.root != "out" for use in names(parsed)):
        known = [use for use in names(parsed) if context.scope.find(use.root) is not None]
        if len(known) == len(names(parsed)):
            report.error("RB211", "this `ensure` does not look at `out`, the output of the node", node.span, hint)
            return None, frozenset()
    out = Any if draft.output is POISON else without_none(draft.output)
    bound = bind_expression(node, parsed, context, extra=[("out", out)])
    if bound.type is not POISON and not assignable(bound.type, bool):
        report.error("RB211", f"`ensure` is true or false, but this is {describe(bound.type)}", node.span, hint)
    return (bound.value if isinstance(bound.value, Computed) else None), bound.needs


def _read_replacement(
    draft: Draft, neighbours: Neighbours, node: MappingNode, context: Context, known: Known
) -> Step | None:
    """Bind the node that stands in for a failed one; the same values reach it where its ports take them."""
    report = context.report
    use = node.get("use")
    if not isinstance(use, ScalarNode) or not isinstance(use.value, str):
        hint = "write `on_error: {use: family.node, ...}`"
        report.error("RB011", f"the replacement of `{draft.name}` has no `use`", node.span, hint)
        return None
    for entry in node.entries:
        if entry.key in RESERVED_KEYS - {"use", "about"}:
            hint = f"write it under `{draft.name}`: a replacement runs once, and its failure is the step's"
            report.error("RB010", f"`{entry.key}` is not a key of a replacement", entry.key_span, hint)
    parameters = tuple(entry for entry in node.entries if entry.key not in RESERVED_KEYS)
    decl = NodeDecl(draft.decl.name, use, parameters, {}, "", draft.span)
    contract = find_contract(decl, known.catalogue, report)
    if contract is None:
        return None
    substitute = draft_node(decl, draft.slot, contract)
    substitute.replacement = True
    bind_written(substitute, context, known.resources)
    for fill in draft.fills.values():
        _hand_over(substitute, fill, context)
    substitute.suspect = substitute.suspect or draft.suspect
    fill_the_rest(substitute, neighbours, context)
    if draft.output is not POISON and not assignable(contract.output, draft.output):
        message = (
            f"`{contract.name}` gives {describe(contract.output)}, but `{draft.name}` gives {describe(draft.output)}"
        )
        report.error("RB203", message, use.span, "a replacement has the output type of what it replaces")
        return None
    return None if substitute.suspect else substitute.to_step(f"{draft.name}.on_error")


def _hand_over(substitute: Draft, fill: Fill, context: Context) -> None:
    if fill.origin == "default":
        return
    for port in substitute.open_data_ports():
        fitted = fit(fill.bound, port.type, context.conversions)
        if fitted is not None and not port.fan_in:
            substitute.fills[port.name] = Fill(fitted, fill.origin, fill.detail, fill.span)
            return
