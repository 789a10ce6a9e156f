"""The reserved keys of a node: when it runs, how often it is tried, how long, and what happens when it fails."""

from __future__ import annotations

import math
from dataclasses import replace

from pydantic import BaseModel

from ragbraid.dsl.ambient import Neighbours, fill_the_rest
from ragbraid.dsl.bind import bind_written, draft_node
from ragbraid.dsl.conditions import bind_condition, bind_judgement
from ragbraid.dsl.draft import Draft, Fill
from ragbraid.dsl.durations import parse_duration
from ragbraid.dsl.keys import check_keys
from ragbraid.dsl.known import Known
from ragbraid.dsl.plan import AnyStep, Computed, Literally, Policy, Retry
from ragbraid.dsl.report import Report
from ragbraid.dsl.scope import POISON
from ragbraid.dsl.source_nodes import Entry, MappingNode, Node, ScalarNode, SequenceNode
from ragbraid.dsl.syntax import NodeDecl
from ragbraid.dsl.types import assignable, describe, strip, without_none
from ragbraid.dsl.values import Bound, Context, fit
from ragbraid.registry.errors import FailureKind
from ragbraid.registry.node import RESERVED_KEYS
from ragbraid.registry.suggest import did_you_mean

RETRY_KINDS: tuple[FailureKind, ...] = ("rate_limit", "timeout", "invalid_output", "unavailable")
RETRY_KEYS = ("attempts", "delay", "backoff", "on")
MAX_ATTEMPTS = 100

_RETRY_HINT = "write `retry: 3` or `retry: {attempts: 3, delay: 1s, backoff: 2, on: [rate_limit]}`"
_DURATION_HINT = "write a duration such as `30s`, `2m` or `1h`"


def read_policy(draft: Draft, context: Context) -> None:
    """Check the reserved keys of a node, all but its replacement, and store them in its draft."""
    reserved = draft.decl.reserved
    report = context.report
    policy = Policy()
    if "retry" in reserved:
        policy = replace(policy, retry=_read_retry(reserved["retry"].value, report))
    if "timeout" in reserved:
        policy = replace(policy, timeout_seconds=_read_duration(reserved["timeout"].value, "`timeout`", report))
    if "cache" in reserved:
        policy = replace(policy, cache_seconds=_read_cache(draft, reserved["cache"], report))
    if "when" in reserved:
        bound = _read_when(reserved["when"].value, context)
        policy = replace(policy, when=bound.value)
    if "ensure" in reserved:
        ensure = _read_ensure(draft, reserved["ensure"].value, context)
        policy = replace(policy, ensure=ensure)
    draft.policy = policy


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
    elif word == "skip":
        draft.policy = replace(draft.policy, on_error="skip")
    elif word == "empty":
        _read_empty(draft, node, context.report)
    elif word != "fail":
        hint = "write `on_error: fail`, `on_error: skip`, `on_error: empty` or `on_error: {use: ...}`"
        if isinstance(word, str) and known.catalogue.find_node(word) is not None:
            hint = f"write `on_error: {{use: {word}}}`"
        context.report.error("RB201", "`on_error` is `fail`, `skip`, `empty` or a replacement", node.span, hint)


def _read_empty(draft: Draft, node: Node, report: Report) -> None:
    """Let an empty output that says why it is empty stand in for a failed step, where the type has room for that."""
    output = strip(without_none(draft.output))
    if draft.output is POISON:
        return
    if isinstance(output, type) and issubclass(output, BaseModel) and _can_be_empty(output):
        draft.policy = replace(draft.policy, on_error="empty", output=output)
        return
    message = f"`{draft.name}` gives {describe(output)}, which cannot say that it is empty because something failed"
    hint = "write `on_error: skip`, or a replacement; `empty` is for what has `degraded` and `error`, such as a Ranking"
    report.error("RB201", message, node.span, hint)


def _can_be_empty(output: type[BaseModel]) -> bool:
    fields = output.model_fields
    return {"degraded", "error"} <= fields.keys() and not any(field.is_required() for field in fields.values())


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
    if seconds is not None and draft.flow is not None:
        message = f"`cache` has no effect on the flow `{draft.flow.name}`: nodes are cached, not what is around them"
        report.warning("RB903", message, entry.key_span, "write it under the nodes of that flow")
        return None
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
    hint = "write a condition, such as `when: ${ hits | length > 0 }`"
    return bind_condition(node, "`when`", hint, context, "RB211")


def _read_ensure(draft: Draft, node: Node, context: Context) -> Computed | None:
    """Read a post-condition, in which `out` is the node's output."""
    out = without_none(draft.output)  # it is only looked at where there is an output
    return bind_judgement(node, "ensure", out, context, whose="the node", code="RB211", blind_code="RB211")


def _read_replacement(
    draft: Draft, neighbours: Neighbours, node: MappingNode, context: Context, known: Known
) -> AnyStep | None:
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
    substitute = draft_node(decl, draft.slot, known, report)
    contract = substitute.contract
    if contract is None:
        return None
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
    return None if substitute.suspect else substitute.to_step(f"{draft.name}.on_error", known.flows)


def _hand_over(substitute: Draft, fill: Fill, context: Context) -> None:
    if fill.origin == "default":
        return
    for port in substitute.open_data_ports():
        fitted = fit(fill.bound, port.type, context.conversions)
        if fitted is not None and not port.fan_in:
            substitute.fills[port.name] = Fill(fitted, fill.origin, fill.detail, fill.span)
            return
