"""The worker of Prefect work pools of the type `ragbraid`: it runs flows in its own process, where models stay open.

Prefect finds the type by the entry point in `prefect.collections`, so its own commands know it too. Imports prefect:
import it inside functions.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from os import getpid
from socket import gethostname
from typing import TYPE_CHECKING, Any, Literal

import anyio
from anyio.from_thread import start_blocking_portal
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectAlreadyExists, ObjectNotFound
from prefect.logging.loggers import flow_run_logger
from prefect.settings import PREFECT_WORKER_QUERY_SECONDS, get_current_settings, temporary_settings
from prefect.workers.process import ProcessJobConfiguration, ProcessVariables, ProcessWorker
from pydantic import Field

from ragbraid.flows.deployed import PULL_STEP, flow_or_failing, packed_bundle
from ragbraid.flows.loops import in_main_thread
from ragbraid.flows.prefect_api import api_client, api_failure, is_api_failure
from ragbraid.flows.prefect_runs import PATIENCE_SECONDS, FlowRuns, Job, engine_job, sentence_of_state
from ragbraid.registry.errors import SettingsError

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun, WorkPool
    from prefect.client.schemas.responses import DeploymentResponse, WorkerFlowRunResponse

TYPE = "ragbraid"
"""The type of work pool that these workers serve."""

LIMIT = 8
"""How many runs a worker carries out at once where nobody says another number."""

POLL_SECONDS = 0.5
"""The pause between two looks for what is due, where PREFECT_WORKER_QUERY_SECONDS is not set."""

HEARTBEAT_SECONDS = 10
"""The pause between two signs of life, where PREFECT_WORKER_HEARTBEAT_SECONDS is not set."""

Isolation = Literal["none", "process"]


class RagbraidJobConfiguration(ProcessJobConfiguration):
    """How one run is carried out: what the pool says, changed by the job variables of its deployment and its own."""

    isolation: Isolation = "none"


class RagbraidVariables(ProcessVariables):
    """The form of a pool of this type in the UI, and what the job variables of a deployment may say."""

    isolation: Isolation = Field(
        default="none",
        description=(
            "none: the run shares the worker's process, with models and stores that are open already. "
            "process: the run gets a process of its own, which opens everything anew and can harm nothing else."
        ),
    )


class RagbraidWorker(ProcessWorker):
    """Takes the runs of a work pool as they come due and runs them in this process, or in one of their own."""

    type = TYPE
    job_configuration = RagbraidJobConfiguration
    job_configuration_variables = RagbraidVariables  # type: ignore[assignment]  # declared `type[...] | None` there

    _display_name = "ragbraid"
    _description = "Run flows of ragbraid in the worker's own process, where models and stores stay open between runs."
    _documentation_url = ""
    _logo_url = ""

    def __init__(
        self,
        work_pool_name: str,
        *args: Any,
        isolation: Isolation | None = None,
        tell: Callable[[str], None] | None = None,
        **kwargs: Any,
    ) -> None:
        """Make a worker; takes what every Prefect worker takes, and beside that:

        Args:
            work_pool_name: the pool.
            isolation: how all runs are isolated, whatever the pool and the deployments say; None leaves it to them.
            tell: called with one sentence when a run begins or ends, and while the API is away; else these are logged.
        """
        kwargs["name"] = kwargs.get("name") or f"{TYPE} on {gethostname()} ({getpid()})"
        kwargs["limit"] = kwargs.get("limit") or LIMIT
        super().__init__(work_pool_name, *args, **kwargs)
        self._isolation = isolation
        self._tell = tell or self._logger.info
        self._pause = POLL_SECONDS
        self._run_once = False
        self._compiling = asyncio.Lock()
        self._runs = FlowRuns(f"the worker `{self.name}`", poll_seconds=POLL_SECONDS, tell=self._tell)

    async def start(
        self, run_once: bool = False, with_healthcheck: bool = False, printer: Callable[..., None] = print
    ) -> None:
        """Serve the pool until the caller is cancelled; then end what is under way and mark it as cancelled.

        Args:
            run_once: look once for what is due, and return when that has ended.
            with_healthcheck: answer on PREFECT_WORKER_WEBSERVER_PORT whether the worker still looks for runs.
            printer: told when the worker has started and when it has stopped.
        """
        self._run_once = run_once
        with _quick_polling():
            await _away_from_main_thread(partial(super().start, run_once, with_healthcheck, printer))

    async def teardown(self, *exc_info: Any) -> None:
        """End what is under way, then leave the pool."""
        with anyio.CancelScope(shield=True):
            if self._run_once and not any(exc_info):
                await self._runs.finish()
            await self._runs.end_all()
        await super().teardown(*exc_info)

    async def sync_with_backend(self) -> None:
        """Read the pool and give a sign of life; an API that is away is left for the next time."""
        try:
            await super().sync_with_backend()
        except Exception as error:
            if not is_api_failure(error):
                raise
            self._tell(f"{api_failure(error)}; the worker gives its next sign of life later")

    async def get_and_submit_flow_runs(self) -> list[FlowRun]:
        """Take what is due and end what was cancelled; an API that is away is waited for."""
        try:
            begun = await super().get_and_submit_flow_runs()
            await self._runs.end_what_was_cancelled(self.client)
        except Exception as error:
            if not is_api_failure(error):
                raise
            self._pause = min(self._pause * 2, PATIENCE_SECONDS)
            self._tell(f"{api_failure(error)}; trying again in {self._pause:g} s")
            await anyio.sleep(self._pause)
            return []
        self._pause = POLL_SECONDS
        return begun

    async def _submit_scheduled_flow_runs(self, flow_run_response: list[WorkerFlowRunResponse]) -> list[FlowRun]:
        """Begin what is due. The method of the base class would end the worker where the API is lost meanwhile."""
        due = [found.flow_run for found in flow_run_response if found.flow_run.id not in self._runs]
        free = max((self._limit or LIMIT) - len(self._runs), 0)
        for run in due[:free]:
            self._runs.begin(self.client, run, partial(self._find_job, run))
        return due[:free]

    async def _find_job(self, run: FlowRun) -> Job:
        deployment = None if run.deployment_id is None else await self._read_deployment(run)
        configuration = await RagbraidJobConfiguration.resolve_for_flow_run(
            run,
            client=self.client,
            work_pool=self.work_pool,
            worker_name=self.name,
            worker_id=self.backend_id,
            deployment=deployment,
        )
        name = run.name if deployment is None else deployment.name
        if (self._isolation or configuration.isolation) == "process":
            return f"{name}: run {run.name}", partial(self._run_in_process, configuration)
        packed = None if deployment is None else packed_bundle(deployment.pull_steps)
        if deployment is None or packed is None:
            raise SettingsError(
                f"`{name}` was not deployed by ragbraid, and the work pool `{self._work_pool_name}` runs flows of "
                "ragbraid inside its workers; set the job variable `isolation` to `process`, or deploy it to a pool of "
                "the type `process`"
            )
        self._warn_of_unused(run, deployment)
        inputs = deployment.pull_steps[0][PULL_STEP].get("inputs", []) if deployment.pull_steps else []
        async with self._compiling:  # compiled once, however many runs of it are due
            flow = await asyncio.to_thread(flow_or_failing, packed, inputs)
        return engine_job(name, flow, flow.inputs, run)

    async def _read_deployment(self, run: FlowRun) -> DeploymentResponse:
        assert run.deployment_id is not None
        try:
            return await self.client.read_deployment(run.deployment_id)
        except ObjectNotFound:
            raise SettingsError("the deployment of this run was removed before it began") from None

    def _warn_of_unused(self, run: FlowRun, deployment: DeploymentResponse) -> None:
        given = {**(deployment.job_variables or {}), **(run.job_variables or {})}
        if unused := sorted({"env", "command", "working_dir"} & {name.partition(".")[0] for name in given}):
            flow_run_logger(run).warning(
                "the job variable `%s` is not used: this run shares the process of its worker (isolation: none)",
                "`, `".join(unused),
            )

    async def _run_in_process(self, configuration: RagbraidJobConfiguration, run: FlowRun) -> str:
        await self.run(run, configuration)
        return sentence_of_state((await self.client.read_flow_run(run.id)).state)


def heartbeat_seconds() -> int:
    """Return the pause between two signs of life of a worker."""
    settings = get_current_settings().worker
    return int(settings.heartbeat_seconds) if "heartbeat_seconds" in settings.model_fields_set else HEARTBEAT_SECONDS


async def prepare_pool(name: str, *, create: bool) -> None:
    """See that there is a work pool of our type.

    Args:
        name: the pool.
        create: make it where it does not exist.

    Raises:
        SettingsError: there is no such pool, or it is of another type.
        ServiceError: as `api_client`.
    """
    async with api_client() as client:
        try:
            pool = await client.read_work_pool(name)
        except ObjectNotFound:
            if not create:
                raise SettingsError(
                    f"there is no work pool `{name}`",
                    hint=f"create it: `prefect work-pool create {name} --type {TYPE}`, or give --create-pool",
                ) from None
            template = RagbraidWorker.get_default_base_job_template()
            with contextlib.suppress(ObjectAlreadyExists):  # another worker was faster
                await client.create_work_pool(WorkPoolCreate(name=name, type=TYPE, base_job_template=template))
            pool = await client.read_work_pool(name)
    _refuse_other_types(pool)


async def run_worker(worker: RagbraidWorker, stop: asyncio.Event, *, with_healthcheck: bool = False) -> None:
    """Run a worker until `stop` is set."""
    working = asyncio.create_task(worker.start(with_healthcheck=with_healthcheck, printer=lambda *_: None))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if working.done():
        return await working
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working


def _refuse_other_types(pool: WorkPool) -> None:
    if pool.type != TYPE:
        raise SettingsError(
            f"the work pool `{pool.name}` is of the type `{pool.type}`, whose workers start as "
            f"`prefect worker start --pool {pool.name}`",
            hint=f"for `ragbraid worker`, make one of the type `{TYPE}`: `prefect work-pool create NAME --type {TYPE}`",
        )


@contextlib.contextmanager
def _quick_polling() -> Iterator[None]:
    """Have Prefect's loop look for runs often; its own pause of 10 s suits workers that start containers."""
    if "query_seconds" in get_current_settings().worker.model_fields_set:
        yield
        return
    with temporary_settings(updates={PREFECT_WORKER_QUERY_SECONDS: POLL_SECONDS}):
        yield


async def _away_from_main_thread(work: Callable[[], Any]) -> None:
    """Await work on a loop of another thread where this one is the main thread.

    Prefect's engine takes over SIGTERM wherever it runs in the main thread, and would raise it into whatever step
    happens to be running, instead of ending the worker.
    """
    if not in_main_thread():
        await work()
        return
    with start_blocking_portal() as portal:
        await asyncio.wrap_future(portal.start_task_soon(work))
