"""The reserved keys of a node: when it runs, how often it is tried, how long, and what happens when it fails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

from ragbraid.dsl.ambient import fill_the_rest
from ragbraid.dsl.bind import bind_written, draft_node, find_contract
from ragbraid.dsl.draft import Draft, Fill
from ragbraid.dsl.durations import parse_duration
from ragbraid.dsl.expressions import Expression, parse_value
from ragbraid.dsl.parse import check_keys, parse_node_decl
from ragbraid.dsl.plan import Computed, Literally, Policy, Retry, Step
from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import POISON
from ragbraid.dsl.source_nodes import Entry, MappingNode, Node, ScalarNode, SequenceNode
from ragbraid.dsl.types import assignable, describe, without_none
from ragbraid.dsl.values import Bound, Context, bind_expression, bind_text, fit
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.errors import FailureKind
from ragbraid.registry.suggest import did_you_mean

RETRY_KINDS = ("rate_limit", "timeout", "invalid_output", "unavailable")
RETRY_KEYS = ("attempts", "delay", "backoff", "on")
MAX_ATTEMPTS = 100

_RETRY_HINT = "write `retry: 3` or `retry: {attempts: 3, delay: 1s, backoff: 2, on: [rate_limit]}`"
_DURATION_HINT = "write a duration such as `30s`, `2m` or `1h`"


def read_policy(draft: Draft, drafts: Sequence[Draft], context: Context, catalogue: Catalogue) -> None:
    """Check the reserved keys of a node and store them in its draft."""
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
    if "on_error" in reserved:
        on_error = _read_on_error(draft, drafts, reserved["on_error"], context, catalogue)
        policy = replace(policy, on_error=on_error)
        if isinstance(on_error, Step):
            needs |= on_error.needs
    draft.policy = policy
    draft.policy_needs = frozenset(needs)


def _read_retry(node: Node, report: Report) -> Retry:
    if isinstance(node, ScalarNode):
        if node.value == 1:
            report.warning("RB903", "`retry: 1` has no effect: the first try counts too", node.span, _RETRY_HINT)
        return Retry(attempts=_attempts(node, report))
    if not isinstance(node, MappingNode):
        report.error("RB012", "`retry` is a number of attempts or a mapping", node.span, _RETRY_HINT)
        return Retry()
    check_keys(node, RETRY_KEYS, "`retry`", report)
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
        if value in RETRY_KINDS and value in get_args(FailureKind):
            kinds.add(value)
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
    parsed = parse_value(str(node.value)) if isinstance(node, ScalarNode) else None
    if not isinstance(node, ScalarNode) or not isinstance(parsed, Expression):
        context.report.error("RB211", "`ensure` is a condition over `out`", node.span, hint)
        return None, frozenset()
    out = Any if draft.output is POISON else without_none(draft.output)
    bound = bind_expression(node, parsed, context, extra=[("out", out)])
    if bound.type is not POISON and not assignable(bound.type, bool):
        message = f"`ensure` is true or false, but this is {describe(bound.type)}"
        context.report.error("RB211", message, node.span, hint)
    return (bound.value if isinstance(bound.value, Computed) else None), bound.needs


def _read_on_error(
    draft: Draft, drafts: Sequence[Draft], entry: Entry, context: Context, catalogue: Catalogue
) -> Literal["fail", "skip"] | Step:
    node = entry.value
    if isinstance(node, ScalarNode) and node.value == "skip":
        return "skip"
    if isinstance(node, ScalarNode) and node.value == "fail":
        return "fail"
    if not isinstance(node, MappingNode):
        hint = "write `on_error: fail`, `on_error: skip` or `on_error: {use: ...}`"
        context.report.error("RB201", "`on_error` is `fail`, `skip` or a replacement", node.span, hint)
        return "fail"
    return _read_replacement(draft, drafts, entry, context, catalogue) or "fail"


def _read_replacement(
    draft: Draft, drafts: Sequence[Draft], entry: Entry, context: Context, catalogue: Catalogue
) -> Step | None:
    """Bind the node that stands in for a failed one; the same values reach it where its ports take them."""
    decl = parse_node_decl(Entry(draft.name, entry.key_span, entry.value), context.report)
    contract = None if decl is None else find_contract(decl, catalogue, context.report)
    if decl is None or decl.use is None or contract is None:
        return None
    substitute = draft_node(decl, draft.slot, contract)
    bind_written(substitute, context, ())
    for fill in draft.fills.values():
        _hand_over(substitute, fill, context)
    fill_the_rest(substitute, drafts, context)
    if draft.output is not POISON and not assignable(contract.output, draft.output):
        message = (
            f"`{contract.name}` gives {describe(contract.output)}, but `{draft.name}` gives {describe(draft.output)}"
        )
        context.report.error("RB203", message, decl.use.span, "a replacement has the output type of what it replaces")
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
