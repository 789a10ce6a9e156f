"""Flows from Python: `ragbraid.load("qa.yaml").run(question="...")`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine, Generator, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ragbraid.dsl.files import files_noted
from ragbraid.dsl.plan import Plan, Visible
from ragbraid.flows.cache import StepCache
from ragbraid.flows.compiled import compile_plan
from ragbraid.flows.loops import run_to_end
from ragbraid.flows.prefect_runner import is_prefect_configured, run_on_prefect
from ragbraid.flows.project import Project, load_project, project_catalogue
from ragbraid.flows.resources import PlanResources, ResourcePool, check_resources, resource_roles, shared_pool
from ragbraid.flows.runner import Listener, MapRunner, RunEvent, RunResult, StepExecutor
from ragbraid.flows.secrets import redacted
from ragbraid.flows.streaming import Start, stream_run, stream_run_in_thread
from ragbraid.flows.task_runners import choose_task_runner, runner_place, task_runner_problems
from ragbraid.registry.catalogue import Catalogue, installed_catalogue
from ragbraid.registry.context import project_folder
from ragbraid.registry.errors import RagbraidError, SettingsError

if TYPE_CHECKING:
    import prefect

    from ragbraid.flows.remote_maps import RemoteMaps
    from ragbraid.flows.trace import Trace

Engine = Literal["inline", "prefect", "auto"]


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
    with files_noted() as files:
        plan = load_plan(path, catalogue, resource_roles(found, catalogue))
    return Flow(plan, found, catalogue=catalogue, files=files)


def close_resources() -> None:
    """Close what the flows of this process hold open (stores, models), as its end would. What is used again opens again.

    For services that end and notebooks that hand a store over to another process; no flow may be running.

    Raises:
        ServiceError: something could not be closed; the rest has been.
    """
    shared_pool().close()


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
        files: Mapping[Path, bytes] | None = None,
    ) -> None:
        self.plan = plan
        self.project = project or Project(folder=Path(plan.file).resolve().parent)
        self.catalogue = catalogue or installed_catalogue()
        self.files = files
        """What the plan was made of: every file that was read, with its content; None for a plan of other origin."""
        self.resources = PlanResources(plan, self.project, self.catalogue, pool or shared_pool())
        self.cache = StepCache(self.project.folder / ".ragbraid" / "cache")
        self._resources_are_there = False
        self._maps: RemoteMaps | None = None

    def __repr__(self) -> str:
        return f"<Flow {self.name} ({self.plan.file})>"

    def _repr_html_(self) -> str:
        """Return the drawing, which is what a notebook shows of a flow."""
        from ragbraid.dsl.draw_svg import draw_svg

        return draw_svg(self.plan)

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

    def stream(
        self, inputs: Mapping[str, Any] | None = None, /, *, engine: Engine = "inline", **more: Any
    ) -> Generator[RunEvent, None, None]:
        """Run the flow in another thread and yield what happens, as it happens; the last event holds the result.

        See `astream` for the events. Also works where an event loop is running, which it blocks between two events.
        Leaving the iteration early (`break`, `close()`) cancels the run.

        Args:
            inputs: inputs by name; they may also be given as keywords.
            engine: as in `run_traced`.
            more: further inputs.

        Raises:
            RunError: as `run`, in the iteration, after every event that came before.
        """
        return stream_run_in_thread(self._followed(engine, {**(inputs or {}), **more}))

    def astream(
        self, inputs: Mapping[str, Any] | None = None, /, *, engine: Engine = "inline", **more: Any
    ) -> AsyncGenerator[RunEvent, None]:
        """Run the flow on the current event loop and yield what happens, as it happens; the last event is the result.

        `started`, `progress` and `finished` tell of the steps. `text` holds the next piece of what a step writes for
        the user, with the step's path: models are asked for a stream where they can give one, else the text comes in
        one piece. A request that is tried again begins its text anew: `restart` says that what came before is void.

        The `result` event (a `RunResult`) is what counts. The answer in it can differ from the text that was streamed:
        citations are numbered anew, and a draft can turn out to be a refusal.

        The run starts with the first event that is asked for. Leaving the iteration early cancels the run and all that
        it started: at once by `aclose()` (`contextlib.aclosing`) or when the waiting task is cancelled, by a plain
        `break` as soon as nothing refers to the iterator any more. A slow consumer holds nothing up and misses nothing;
        what one step wrote meanwhile comes as one piece.

        Args:
            inputs: inputs by name; they may also be given as keywords.
            engine: as in `run_traced`.
            more: further inputs.

        Raises:
            RunError: as `run`, in the iteration, after every event that came before.
        """
        return stream_run(self._followed(engine, {**(inputs or {}), **more}))

    def _followed(self, engine: Engine, inputs: Mapping[str, Any]) -> Start:
        return lambda listener: self.arun_traced(inputs, engine=engine, listener=listener, follow_text=True)

    def run_traced(
        self,
        inputs: Mapping[str, Any] | None = None,
        /,
        *,
        engine: Engine = "inline",
        listener: Listener | None = None,
        trace: Trace | None = None,
        **more: Any,
    ) -> RunResult:
        """Run the flow and return what it gives together with the trace of every step. Raises as `run`.

        Args:
            inputs: inputs by name; they may also be given as keywords.
            engine: `prefect` runs it as a Prefect flow run, `auto` does so where a Prefect API is configured.
            listener: told what happens, as it happens.
            trace: filled with what the run does; for callers who want it when the run is cancelled too.
            more: further inputs.
        """
        return run_to_end(self.arun_traced({**(inputs or {}), **more}, engine=engine, listener=listener, trace=trace))

    async def arun_traced(
        self,
        inputs: Mapping[str, Any],
        *,
        engine: Engine = "inline",
        listener: Listener | None = None,
        trace: Trace | None = None,
        follow_text: bool = False,
    ) -> RunResult:
        """Run the flow on the current event loop; see `run_traced`.

        With `follow_text` the listener is also told what steps write while they write it; see `astream`.
        """
        if not self._resources_are_there:
            self.check_inputs(inputs)
            self.check_resources()
        if engine == "prefect" or (engine == "auto" and is_prefect_configured()):
            return await run_on_prefect(self, inputs, listener=listener, trace=trace, follow_text=follow_text)
        return await self.execute(inputs, listener=listener, trace=trace, follow_text=follow_text)

    async def execute(
        self,
        inputs: Mapping[str, Any],
        *,
        executor: StepExecutor | None = None,
        listener: Listener | None = None,
        trace: Trace | None = None,
        follow_text: bool = False,
    ) -> RunResult:
        """Walk the plan, every step done by `executor`; for runners. Errors have lost every secret. Raises as `run`."""
        from ragbraid.flows.scheduler import run_plan

        try:
            with project_folder(self.project.folder):
                return await run_plan(
                    self.plan,
                    inputs,
                    resources=self.resources,
                    executor=executor,
                    listener=listener,
                    cache=self.cache,
                    trace=trace,
                    map_runner=self._map_runner(),
                    follow_text=follow_text,
                )
        except RagbraidError as error:
            redacted(error)
            raise

    def with_visible(self, visible: Visible) -> Flow:
        """Return the flow with another answer to what of it is a task run: `steps`, `blocks`, or the `flow` alone."""
        return self._changed(replace(self.plan, deploy=replace(self.plan.deploy, visible=visible)), self.project)

    def with_task_runner(self, task_runner: str) -> Flow:
        """Return the flow with another answer to who runs the items of its maps.

        Args:
            task_runner: `threads`, `dask` or `ray`; with an address `dask=tcp://scheduler:8786`.

        Raises:
            SettingsError: there is no such task runner.
        """
        return self._changed(*choose_task_runner(self.plan, self.project, task_runner))

    def _changed(self, plan: Plan, project: Project) -> Flow:
        return Flow(plan, project, catalogue=self.catalogue, files=self.files)

    def _map_runner(self) -> MapRunner | None:
        place = runner_place(self.plan, self.project)
        if place is None:
            return None
        if self._maps is None or self._maps.place != place:
            from ragbraid.flows.remote_maps import RemoteMaps

            self._maps = RemoteMaps(self, place)
        return self._maps

    def explain(self) -> str:
        """Return the table that says for every port of every step where its value comes from."""
        from ragbraid.dsl.explain import explain_plan

        return explain_plan(self.plan)

    @cached_property
    def prefect(self) -> prefect.Flow[..., Coroutine[Any, Any, Any]]:
        """The flow as an async `prefect.Flow` whose parameters are the flow's inputs: await it, serve it, deploy it.

        Raises:
            SettingsError: an input bears a name that Prefect keeps for itself.
        """
        from ragbraid.flows.prefect_engine import build_flow

        return build_flow(self)

    def check_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs converted to their types, with defaults. Opens nothing.

        Raises:
            RunError: kind `input`; one line for every mistake.
        """
        return compile_plan(self.plan).inputs.check(inputs)

    def check_resources(self) -> None:
        """See that everything the flow needs is bound and every secret is there. Opens nothing.

        Raises:
            SettingsError: one line for everything that is not.
        """
        if self._resources_are_there:
            return
        sentences = check_resources(self.plan, self.project, self.catalogue, secrets=True)
        sentences += task_runner_problems(self.plan, self.project, self.catalogue, here=True)
        if sentences:
            raise SettingsError("\n".join(sentences))
        self._resources_are_there = True
