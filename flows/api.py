"""Flows from Python: `ragbraid.load("qa.yaml").run(question="...")`."""

from __future__ import annotations

from collections.abc import Coroutine
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragbraid.dsl.plan import Plan
from ragbraid.flows.inputs import InputChecker
from ragbraid.flows.loops import run_to_end
from ragbraid.flows.project import Project, load_project, project_catalogue
from ragbraid.flows.resources import PlanResources, ResourcePool, check_resources, resource_roles, shared_pool
from ragbraid.flows.runner import Listener, RunResult
from ragbraid.flows.secrets import redacted
from ragbraid.registry.catalogue import Catalogue, installed_catalogue
from ragbraid.registry.errors import RagbraidError, SettingsError

if TYPE_CHECKING:
    import prefect


def load(path: str | Path, *, profile: str | None = None, project: str | Path | None = None) -> Flow:
    """Read, check and compile a flow file.

    Args:
        path: the YAML file.
        profile: the profile of the project file to use; else `RAGBRAID_PROFILE`, else the file's own.
        project: the project file to use; else the nearest `ragbraid.toml` beside the flow or above it.

    Raises:
        FlowError: the file has mistakes; holds all of them.
        SettingsError: the project file is wrong.
    """
    from ragbraid.dsl.compile import load_plan

    found = load_project(path, project=project, profile=profile)
    catalogue = project_catalogue(found)
    plan = load_plan(path, catalogue, resource_roles(found, catalogue))
    return Flow(plan, found, catalogue=catalogue)


class Flow:
    """A checked flow, ready to run any number of times, from any thread or event loop.

    Make one with `ragbraid.load`. A flow with one output gives its value, one with named outputs a dict of them.
    """

    def __init__(
        self,
        plan: Plan,
        project: Project | None = None,
        *,
        catalogue: Catalogue | None = None,
        pool: ResourcePool | None = None,
    ) -> None:
        self.plan = plan
        self.project = project or Project(folder=Path(plan.file).resolve().parent)
        self.catalogue = catalogue or installed_catalogue()
        self.resources = PlanResources(plan, self.project, self.catalogue, pool or shared_pool())
        self._inputs = InputChecker(plan.name, plan.inputs)
        self._resources_are_there = False

    def __repr__(self) -> str:
        return f"<Flow {self.name} ({self.plan.file})>"

    @property
    def name(self) -> str:
        """The flow's name, as its file has it."""
        return self.plan.name

    def run(self, **inputs: Any) -> Any:
        """Run the flow in this process and return what it gives. Also works where an event loop is running.

        Raises:
            RunError: an input is wrong (kind `input`), or a step failed; says which and why.
            SettingsError: something that the flow needs is not bound or not set.
        """
        return run_to_end(self.arun(**inputs))

    async def arun(self, **inputs: Any) -> Any:
        """Run the flow on the current event loop and return what it gives. Raises as `run`."""
        return (await self.arun_traced(inputs)).outputs

    def run_traced(self, **inputs: Any) -> RunResult:
        """Run the flow and return what it gives together with the trace of every step. Raises as `run`."""
        return run_to_end(self.arun_traced(inputs))

    async def arun_traced(self, inputs: dict[str, Any], *, listener: Listener | None = None) -> RunResult:
        """Run the flow on the current event loop, telling `listener` what happens. Raises as `run`."""
        from ragbraid.flows.scheduler import run_plan

        values = self.check_inputs(inputs)
        self.check_resources()
        try:
            return await run_plan(self.plan, values, resources=self.resources, listener=listener)
        except RagbraidError as error:
            redacted(error)
            raise

    def explain(self) -> str:
        """Return the table that says for every port of every step where its value comes from."""
        from ragbraid.dsl.edges import explain_ports

        rows = [("STEP", "PORT", "TYPE", "FROM", "VALUE")]
        rows += [(row.step, row.port, row.type, row.origin, row.value) for row in explain_ports(self.plan)]
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)

    @cached_property
    def prefect(self) -> prefect.Flow[..., Coroutine[Any, Any, Any]]:
        """The flow as an async `prefect.Flow` whose parameters are the flow's inputs: await it, serve it, deploy it.

        Raises:
            SettingsError: an input bears a name that Prefect keeps for itself.
        """
        from ragbraid.flows.prefect_engine import build_flow

        return build_flow(self)

    def check_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs converted to their types, with defaults. Opens nothing.

        Raises:
            RunError: kind `input`; one line for every mistake.
        """
        return self._inputs.check(inputs)

    def check_resources(self) -> None:
        """See that everything the flow needs is bound and every secret is there. Opens nothing.

        Raises:
            SettingsError: one line for everything that is not.
        """
        if self._resources_are_there:
            return
        sentences = check_resources(self.plan, self.project, self.catalogue, secrets=True)
        if sentences:
            raise SettingsError("\n".join(sentences))
        self._resources_are_there = True
