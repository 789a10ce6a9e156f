"""The `limits` and `deploy` sections."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Any, get_args
from zoneinfo import available_timezones

from cronsim import CronSim, CronSimError

from ragbraid.dsl.durations import parse_duration
from ragbraid.dsl.keys import check_keys, quote_hint
from ragbraid.dsl.plan import Body, Deploy, InputSpec, Limits, Schedule, TaskRunner, Visible
from ragbraid.dsl.report import Report
from ragbraid.dsl.source_nodes import MappingNode, Node, ScalarNode, SequenceNode
from ragbraid.dsl.walk import map_steps
from ragbraid.registry.suggest import did_you_mean

LIMIT_KEYS = ("seconds", "llm_calls", "tokens")
DEPLOY_KEYS = ("schedule", "work_pool", "concurrency", "visible", "tags", "task_runner")
VISIBLE: tuple[Visible, ...] = get_args(Visible)
TASK_RUNNERS: tuple[TaskRunner, ...] = get_args(TaskRunner)


def read_limits(node: MappingNode | None, report: Report) -> Limits:
    """Check `limits`: seconds may be a duration, the counts are whole numbers of at least 1."""
    limits = Limits()
    if node is None:
        return limits
    node = check_keys(node, LIMIT_KEYS, "`limits`", report)
    if (seconds := node.get("seconds")) is not None:
        value = parse_duration(seconds.value) if isinstance(seconds, ScalarNode) else None
        if value is None:
            report.error("RB201", "`seconds` is a number greater than zero", seconds.span)
        limits = replace(limits, seconds=value)
    if (calls := node.get("llm_calls")) is not None:
        limits = replace(limits, llm_calls=_count(calls, "llm_calls", report))
    if (tokens := node.get("tokens")) is not None:
        limits = replace(limits, tokens=_count(tokens, "tokens", report))
    return limits


def read_deploy(node: MappingNode | None, inputs: Iterable[InputSpec | None], report: Report) -> Deploy:
    """Check `deploy`; a schedule needs a default for every input (RB503)."""
    deploy = Deploy()
    if node is None:
        return deploy
    node = check_keys(node, DEPLOY_KEYS, "`deploy`", report)
    if (schedule := node.get("schedule")) is not None:
        deploy = replace(deploy, schedule=_read_schedule(schedule, report))
        _check_defaults(node, inputs, report)
    if (pool := node.get("work_pool")) is not None:
        deploy = replace(deploy, work_pool=_word(pool, "`work_pool`", report))
    if (concurrency := node.get("concurrency")) is not None:
        deploy = replace(deploy, concurrency=_count(concurrency, "concurrency", report))
    if (visible := node.get("visible")) is not None:
        deploy = replace(deploy, visible=_choice(visible, "visible", VISIBLE, report))
    if (tags := node.get("tags")) is not None:
        deploy = replace(deploy, tags=_tags(tags, report))
    if (runner := node.get("task_runner")) is not None:
        deploy = replace(deploy, task_runner=_choice(runner, "task_runner", TASK_RUNNERS, report))
    return deploy


def report_idle_task_runner(node: MappingNode | None, deploy: Deploy, body: Body, report: Report) -> None:
    """RB903 for a task runner in a flow that has nothing for it to do."""
    entry = None if node is None else node.entry("task_runner")
    if entry is not None and deploy.task_runner != "threads" and next(map_steps(body), None) is None:
        hint = "it runs the items of a `map` in other processes; everything else runs in the flow's own"
        report.warning("RB903", "`task_runner` has no effect: the flow has no `map`", entry.key_span, hint)


def _read_schedule(node: Node, report: Report) -> Schedule | None:
    hint = 'write `schedule: {cron: "0 3 * * *", timezone: Europe/Paris}`'
    if not isinstance(node, MappingNode):
        if isinstance(node, ScalarNode) and is_cron(node.text):
            hint = f'write `schedule: {{cron: "{node.text}"}}`'
        report.error("RB012", "`schedule` is a mapping with `cron` and `timezone`", node.span, hint)
        return None
    node = check_keys(node, ("cron", "timezone"), "`schedule`", report)
    cron_node = node.get("cron")
    if cron_node is None:
        report.error("RB011", "`schedule` has no `cron`", node.span, hint)
        return None
    cron = _word(cron_node, "`cron`", report)
    if cron is not None and not is_cron(cron):
        hint = "five fields: minute, hour, day of the month, month, day of the week, such as `0 3 * * *`"
        report.error("RB501", f"`{cron}` is no cron expression", cron_node.span, hint)
    timezone = "UTC"
    if (zone := node.get("timezone")) is not None:
        timezone = _word(zone, "`timezone`", report) or "UTC"
        if timezone not in (zones := available_timezones()):
            hint = did_you_mean(timezone, zones) or "write a name such as `Europe/Paris` or `Asia/Shanghai`"
            report.error("RB502", f"`{timezone}` is no time zone", zone.span, hint)
    return Schedule(cron or "", timezone)


def is_cron(text: str) -> bool:
    """Whether a text is a cron expression of five fields."""
    try:
        CronSim(text, datetime(2024, 1, 1))
    except CronSimError:
        return False
    return len(text.split()) == 5


def _check_defaults(deploy: MappingNode, inputs: Iterable[InputSpec | None], report: Report) -> None:
    missing = [spec.name for spec in inputs if spec is not None and spec.required]
    entry = deploy.entry("schedule")
    if missing and entry is not None:
        names = ", ".join(f"`{name}`" for name in missing)
        hint = "give every input a default: nobody is there to fill them in"
        report.error("RB503", f"a scheduled run has no value for {names}", entry.key_span, hint)


def _count(node: Node, key: str, report: Report) -> int | None:
    value = node.value if isinstance(node, ScalarNode) else None
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    report.error("RB201", f"`{key}` is a whole number of at least 1", node.span)
    return None


def _choice(node: Node, key: str, choices: tuple[str, ...], report: Report) -> Any:
    listed = f"choose one of {', '.join(choices)}"
    if not isinstance(node, ScalarNode):
        report.error("RB012", f"`{key}` is a text", node.span, listed)
        return choices[0]
    value = _word(node, f"`{key}`", report)
    if value is not None and value not in choices:
        hint = did_you_mean(value, choices) or listed
        report.error("RB201", f"`{key}` cannot be `{value}`", node.span, hint)
        return choices[0]
    return value or choices[0]


def _word(node: Node, key: str, report: Report) -> str | None:
    if isinstance(node, ScalarNode) and isinstance(node.value, str) and node.value.strip():
        return node.value.strip()
    report.error("RB012", f"{key} is a text", node.span, quote_hint(node))
    return None


def _tags(node: Node, report: Report) -> tuple[str, ...]:
    items = node.items if isinstance(node, SequenceNode) else (node,)
    return tuple(word for item in items if (word := _word(item, "a tag", report)) is not None)
