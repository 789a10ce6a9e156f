"""What `ragbraid deploy` and `ragbraid serve` register for a flow, and how that differs from what is registered.

Nothing here imports prefect; `ragbraid.flows.prefect_deploy` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

from ragbraid.dsl.deploy import is_cron
from ragbraid.dsl.plan import Schedule, Visible
from ragbraid.flows.api import Flow
from ragbraid.flows.bundle import Bundle, load_with_bundle
from ragbraid.flows.deployed import VERSION_LENGTH
from ragbraid.flows.flow_files import load_all, refuse_twins
from ragbraid.flows.form_schema import form_schema
from ragbraid.flows.inputs import refuse_reserved_inputs
from ragbraid.flows.resources import check_resources
from ragbraid.flows.task_runners import task_runner_problems
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.suggest import did_you_mean


@dataclass(frozen=True, slots=True)
class Target:
    """What the command line says about all flows that it deploys; None leaves it to the flow's `deploy` section."""

    work_pool: str | None = None
    schedule: Schedule | None = None
    tags: tuple[str, ...] = ()
    visible: Visible | None = None
    task_runner: str | None = None
    served: bool = False
    """Whether `ragbraid serve` runs them itself, whatever pool their files name."""


@dataclass(frozen=True, slots=True)
class DeploymentSpec:
    """A flow as it is registered. The deployment bears the flow's name: `hybrid_qa/hybrid_qa`."""

    name: str
    version: str
    description: str
    tags: tuple[str, ...]
    schedule: Schedule | None
    concurrency: int | None
    work_pool: str | None
    inputs: Mapping[str, Any]
    """The schema of the run form."""
    bundle: Bundle

    @property
    def full_name(self) -> str:
        """The name by which Prefect's own commands find it."""
        return f"{self.name}/{self.name}"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference; an empty `before` or `after` is something that was not there or will not be."""

    what: str
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        if not self.before or not self.after:
            return f"{self.what}: {'+' if self.after else '-'} {self.after or self.before}"
        return f"{self.what}: {self.before} -> {self.after}"


def load_specs(
    paths: Sequence[Path], target: Target, *, profile: str | None = None, project: Path | None = None
) -> list[tuple[Flow, DeploymentSpec]]:
    """Check flow files and return what to register for them, all or nothing.

    Raises:
        FlowError: files have mistakes; holds those of all files.
        SettingsError: two flows have one name, a schedule meets an input without a default, something is not bound, a
            secret would travel, or a flow has no pool to run in.
    """
    loaded = load_all(paths, partial(load_with_bundle, profile=profile, project=project))
    refuse_twins([flow.plan for flow, _ in loaded])
    if target.visible is not None:
        chosen = target.visible
        loaded = [(flow.with_visible(chosen), replace(bundle, visible=chosen)) for flow, bundle in loaded]
    if target.task_runner is not None:
        runner = target.task_runner
        loaded = [(flow.with_task_runner(runner), replace(bundle, task_runner=runner)) for flow, bundle in loaded]
    return [(flow, _make_spec(flow, bundle, target)) for flow, bundle in loaded]


def read_schedule(cron: str | None, timezone: str | None) -> Schedule | None:
    """Return the schedule that the command line asks for, or None where it names none.

    Raises:
        SettingsError: the expression or the time zone is none.
    """
    if cron is None:
        if timezone is not None:
            raise SettingsError("a time zone needs a schedule", hint='write `--cron "0 3 * * *"` beside `--timezone`')
        return None
    if not is_cron(cron):
        raise SettingsError(
            f"`{cron}` is no cron expression",
            hint="five fields: minute, hour, day of the month, month, day of the week, such as `0 3 * * *`",
        )
    if timezone is not None and timezone not in (zones := available_timezones()):
        hint = did_you_mean(timezone, zones) or "write a name such as `Europe/Paris` or `Asia/Shanghai`"
        raise SettingsError(f"`{timezone}` is no time zone", hint=hint)
    return Schedule(cron, timezone or "UTC")


def changes_between(before: DeploymentSpec, after: DeploymentSpec) -> list[Change]:
    """Return what registering `after` changes where `before` is registered."""
    changes = [
        Change(what.replace("_", " "), _shown(getattr(before, what)), _shown(getattr(after, what)))
        for what in ("version", "description", "tags", "schedule", "concurrency", "work_pool")
        if getattr(before, what) != getattr(after, what)
    ]
    changes += _mapping_changes("input", _properties(before.inputs), _properties(after.inputs))
    old, new = before.bundle, after.bundle
    changes += _mapping_changes("file", old.files, new.files)
    changes += _mapping_changes("resource", old.resources, new.resources)
    changes += _mapping_changes("local module", old.modules, new.modules)
    changes += _mapping_changes("task runner", old.task_runners, new.task_runners)
    changes += [
        Change(part, _shown(getattr(old, part)), _shown(getattr(new, part)))
        for part in ("folder", "flow", "profile", "visible", "task_runner", "ragbraid")
        if getattr(old, part) != getattr(new, part)
    ]
    return changes


def notes_on(spec: DeploymentSpec) -> list[str]:
    """Return sentences about what a worker must have that does not travel."""
    folder = Path(spec.bundle.folder)
    return [
        f"{module} does not travel: a worker needs it as {folder / module}, or as a package with an entry point in "
        "`ragbraid.nodes`"
        for module in spec.bundle.modules
    ]


def _make_spec(flow: Flow, bundle: Bundle, target: Target) -> DeploymentSpec:
    plan = flow.plan
    refuse_reserved_inputs(plan)
    sentences = check_resources(plan, flow.project, flow.catalogue, secrets=target.served)
    sentences += task_runner_problems(plan, flow.project, flow.catalogue, here=target.served)
    if sentences:
        raise SettingsError("\n".join(sentences))
    schedule = target.schedule or plan.deploy.schedule
    if schedule is not None and (missing := [spec.name for spec in plan.inputs if spec.required]):
        names = ", ".join(f"`{name}`" for name in missing)
        raise SettingsError(
            f"`{plan.name}` cannot run on a schedule: a scheduled run has no value for {names}",
            hint="give every input a default: nobody is there to fill them in",
        )
    pool = None if target.served else target.work_pool or plan.deploy.work_pool
    if pool is None and not target.served:
        raise SettingsError(
            f"`{plan.name}` has no work pool to run in",
            hint="give `--pool NAME`, or write `deploy: {work_pool: NAME}` into the flow; `ragbraid serve` needs none",
        )
    return DeploymentSpec(
        name=plan.name,
        version=plan.hash[:VERSION_LENGTH],
        description=plan.about,
        tags=tuple(dict.fromkeys((*plan.deploy.tags, *target.tags))),
        schedule=schedule,
        concurrency=plan.deploy.concurrency,
        work_pool=pool,
        inputs=form_schema(plan.inputs),
        bundle=bundle,
    )


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = schema.get("properties", {})
    return found


def _mapping_changes(what: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> list[Change]:
    changes = [Change(what, name, "") for name in before if name not in after]
    changes += [Change(what, "", name) for name in after if name not in before]
    changes += [
        Change(f"{what} {name}", "as deployed", "changed")
        for name in after
        if name in before and before[name] != after[name]
    ]
    return changes


def _shown(value: Any) -> str:
    if isinstance(value, Schedule):
        return f"{value.cron} ({value.timezone})"
    if isinstance(value, tuple):
        return ", ".join(value)
    return "" if value is None else str(value)
