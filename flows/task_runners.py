"""Which task runner runs the items of a flow's maps, where it is, and whether the flow can use it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from types import MappingProxyType
from typing import get_args

from ragbraid.dsl.plan import BlockStep, Map, Plan, TaskRunner
from ragbraid.dsl.walk import map_steps, node_steps
from ragbraid.flows.project import Project
from ragbraid.flows.resources import bind_resource, is_bound
from ragbraid.flows.secrets import resolve
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.suggest import did_you_mean

_NAMES: tuple[TaskRunner, ...] = get_args(TaskRunner)
_PACKAGES = {"dask": "prefect_dask", "ray": "prefect_ray"}


@dataclass(frozen=True, slots=True)
class RunnerPlace:
    """A task runner and the address of its cluster; without one, processes are started on this machine."""

    name: TaskRunner
    address: str | None = None


def read_task_runner(text: str) -> RunnerPlace:
    """Read what the command line says: `dask`, or with an address `dask=tcp://scheduler:8786`.

    Raises:
        SettingsError: there is no such task runner.
    """
    wanted, _, address = text.partition("=")
    name = next((known for known in _NAMES if known == wanted), None)
    if name is None:
        listed = ", ".join(_NAMES)
        raise SettingsError(
            f"there is no task runner `{wanted}`; choose one of {listed}", hint=did_you_mean(wanted, _NAMES)
        )
    if address and name not in _PACKAGES:
        raise SettingsError(f"the task runner `{name}` has no address: it is the process of the run itself")
    return RunnerPlace(name, address or None)


def choose_task_runner(plan: Plan, project: Project, wanted: str) -> tuple[Plan, Project]:
    """Return plan and project as if the flow named that task runner, see `read_task_runner`.

    Raises:
        SettingsError: as `read_task_runner`.
    """
    place = read_task_runner(wanted)
    if place.address is not None:
        project = replace(project, task_runners=MappingProxyType({**project.task_runners, place.name: place.address}))
    return replace(plan, deploy=replace(plan.deploy, task_runner=place.name)), project


def runner_place(plan: Plan, project: Project) -> RunnerPlace | None:
    """Return the task runner that a flow's maps need, or None where they run in the run's own process.

    Raises:
        SettingsError: the address refers to a variable that is not set.
    """
    name = plan.deploy.task_runner
    if name == "threads" or next(map_steps(plan.body), None) is None:
        return None
    address = project.task_runners.get(name)
    return RunnerPlace(name, None if address is None else resolve(address))


def task_runner_problems(plan: Plan, project: Project, catalogue: Catalogue, *, here: bool) -> Iterator[str]:
    """Yield a sentence for everything that keeps a flow's maps from its task runner; opens nothing.

    Args:
        plan: the flow.
        project: where its resources are bound.
        catalogue: the providers.
        here: whether it is to run in this process, which then needs the runner's package.
    """
    name = plan.deploy.task_runner
    if name == "threads":
        return
    bound: dict[str, str] = {}
    for step in map_steps(plan.body):
        for resource in _resources_of(step):
            role = plan.roles[resource]
            if resource not in bound and is_bound(resource, role, plan, project):
                try:
                    provider = bind_resource(resource, role, plan, project, catalogue).provider
                except SettingsError:
                    continue  # `check_resources` says what is wrong with it
                bound[resource] = provider.name
                if provider.one_process:
                    instead = "qdrant.server" if role == "kb" else "something that every process can open"
                    yield (
                        f"the items of the map `{step.path}` cannot run in other processes (`task_runner: {name}`): "
                        f"`{resource}` is {provider.name}, which belongs to one process; bind it to {instead}, or "
                        "run with the task runner `threads`"
                    )
    if here and runner_place(plan, project) is not None and find_spec(_PACKAGES[name]) is None:
        yield f"`task_runner: {name}` needs a package that is not installed: pip install 'ragbraid[{name}]'"


def _resources_of(step: BlockStep) -> Iterator[str]:
    assert isinstance(step.block, Map)
    for inner in node_steps(step.block.branch.body):
        yield from (name for _, name in inner.resources)
