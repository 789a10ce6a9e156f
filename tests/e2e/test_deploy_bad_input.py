"""What `deploy`, `serve` and `run` say where Prefect is not there, not what it should be, or set up wrongly."""

from __future__ import annotations

import asyncio
import datetime
import http.server
import logging
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cli_parts import as_result, run_here, start
from click.testing import Result
from prefect_parts import Project, run_state

from ragbraid.registry.errors import SettingsError

# Prefect's engine asks for the default result storage with a client that it does not close.
pytestmark = [pytest.mark.prefect, pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")]

TAG = """
    inputs: {text: {type: str, default: a}}
    nodes: {a: {use: mine.tag, text: $text}}
    outputs: $a
"""


@pytest.fixture
def project(tmp_path: Path, prefect_api: Any) -> Project:
    return Project(tmp_path)


def refused(result: Result, *parts: str) -> None:
    """The command ended with a sentence and a hint that say this, and with nothing else."""
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    for part in (*parts, "error: ", "hint: "):
        assert part in result.stderr


@contextmanager
def configured(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    monkeypatch.setenv("PREFECT_API_URL", url)
    with temporary_settings(updates={PREFECT_API_URL: url}):
        yield url


@contextmanager
def stand_in(status: int, body: str, certificate: Path | None = None) -> Iterator[str]:
    """Something that answers every request like this, and is no Prefect API."""

    class Answer(http.server.BaseHTTPRequestHandler):
        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST = answer

        def log_message(self, *_: Any) -> None:
            pass

    class Server(http.server.ThreadingHTTPServer):
        def handle_error(self, *_: Any) -> None:
            pass  # a client that does not trust the certificate hangs up

    server = Server(("127.0.0.1", 0), Answer)
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"{'http' if certificate is None else 'https'}://127.0.0.1:{server.server_port}/api"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (200, "<!doctype html><title>A shop</title>", ("is no Prefect API: it answers", "correct PREFECT_API_URL")),
        (404, "<!doctype html><title>A shop</title>", ("is no Prefect API: it answers HTTP 404", "ends in /api")),
        (200, "[1, 2]", ("is no Prefect API: it answers",)),
        (200, '"2.19.0"', ("is of another version than the Prefect that is installed", "server: 2.19.0")),
        (200, '"4.0.0"', ("is of another version than the Prefect that is installed", "server: 4.0.0")),
        (403, "{}", ("refuses the key (HTTP 403)", "PREFECT_API_KEY")),
    ],
)
def test_what_answers_and_is_no_prefect_api_of_this_version_is_a_sentence(
    project: Project, monkeypatch: pytest.MonkeyPatch, status: int, body: str, expected: tuple[str, ...]
) -> None:
    file = project.flow(TAG).plan.file
    with stand_in(status, body) as url, configured(url, monkeypatch):
        commands = [("deploy", file, "--pool", "any", "--json"), ("serve", file), ("run", file, "--engine", "prefect")]
        for command in (*commands, ("undeploy", "any", "--yes")):
            refused(run_here(*command), url, *expected)


def test_an_address_without_its_path_or_its_scheme_is_a_sentence(
    project: Project, prefect_api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ("deploy", project.flow(TAG).plan.file, "--pool", "any")
    with configured(prefect_api.url.removesuffix("/api"), monkeypatch):
        refused(run_here(*command), "is no Prefect API", f"such as {prefect_api.url}")
        refused(run_here("undeploy", "any", "--yes"), "is no Prefect API")
    with configured(prefect_api.url.removeprefix("http://"), monkeypatch):
        refused(run_here(*command), "is no address of a Prefect API", "begins with http:// or https://")
    with configured(prefect_api.url.replace("http://", "https://"), monkeypatch):
        refused(run_here(*command), "does not speak TLS")


def test_a_certificate_that_nobody_vouches_for_is_a_sentence(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    command = ("deploy", project.flow(TAG).plan.file, "--pool", "any")
    with stand_in(200, '"3.9.0"', self_signed(tmp_path / "own.pem")) as url, configured(url, monkeypatch):
        refused(run_here(*command), f"the certificate of the Prefect API at {url} is not trusted", "SSL_CERT_FILE")


def self_signed(path: Path) -> Path:
    """Write a key and a certificate for this machine, signed by nobody else."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    certificate = builder.not_valid_before(now - day).not_valid_after(now + day).sign(key, hashes.SHA256())
    form = serialization.PrivateFormat.PKCS8
    pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    path.write_bytes(pem + certificate.public_bytes(serialization.Encoding.PEM))
    return path


def test_a_proxy_in_between_is_named(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    command = ("deploy", project.flow(TAG).plan.file, "--pool", "any")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with configured("http://prefect.example/api", monkeypatch):
        refused(run_here(*command), "does not answer", "a proxy is set: NO_PROXY=HOST leaves a server out of it")
        monkeypatch.setenv("http_proxy", "nonsense://127.0.0.1:9")
        refused(run_here(*command), "the proxy that the environment names cannot be used", "correct HTTP_PROXY")


def test_settings_that_prefect_cannot_read_are_a_sentence_in_every_command(project: Project, prefect_api: Any) -> None:
    file = project.flow(TAG).plan.file
    home = project.folder / "home"
    home.mkdir()
    (home / "profiles.toml").write_text('active = "x"\n[profiles.x\n')
    quiet = {"PYTHONWARNINGS": "ignore"}
    broken = {**quiet, "PREFECT_HOME": str(home), "PREFECT_API_URL": ""}
    wrong = {**quiet, "PREFECT_API_URL": prefect_api.url, "PREFECT_CLIENT_MAX_RETRIES": "often"}
    expected = [
        (("deploy", file, "--pool", "any"), broken, "Prefect cannot read its settings: a file is no TOML"),
        (("serve", file), {**broken, "PREFECT_API_URL": prefect_api.url}, "a file is no TOML"),
        (("run", file, "--engine", "prefect"), wrong, "max_retries: Input should be a valid integer"),
    ]
    running = [start(*command, folder=project.folder, env=env) for command, env, _ in expected]
    for process, (_, _, sentence) in zip(running, expected, strict=True):
        output, errors = process.communicate(timeout=120)
        refused(as_result(process.returncode, output, errors), sentence, "variables that begin with PREFECT_")


def test_nothing_is_registered_where_an_input_has_a_name_that_prefect_keeps(project: Project) -> None:
    good, bad = project.flow(TAG), project.folder / "bad.yaml"
    bad.write_text(Path(good.plan.file).read_text().replace(good.name, "bad_one").replace("text: {", "wait_for: {"))
    result = run_here("deploy", good.plan.file, bad, "--pool", "any")
    assert result.exit_code == 1
    assert "error[RB504]: Prefect reserves the parameter name `wait_for`" in result.stderr
    assert "bad.yaml:" in result.stderr
    assert planned(good.name) is None


def planned(name: str) -> Any:
    """The deployment of a flow, or None."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    async def find() -> Any:
        async with get_client() as client:
            try:
                return await client.read_deployment_by_name(f"{name}/{name}")
            except ObjectNotFound:
                return None

    return asyncio.run(find())


def test_a_result_that_cannot_be_kept_is_a_sentence_in_the_log_and_the_run_goes_on(
    project: Project, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from prefect.settings import PREFECT_LOCAL_STORAGE_PATH, temporary_settings

    in_the_way = tmp_path / "storage"
    in_the_way.write_text("a file")
    flow = project.flow(TAG)
    logger = logging.getLogger("prefect.task_runs")
    logger.addHandler(caplog.handler)
    try:
        with temporary_settings(updates={PREFECT_LOCAL_STORAGE_PATH: str(in_the_way)}):
            state = run_state(flow, text="hi")
    finally:
        logger.removeHandler(caplog.handler)
    assert state.is_completed()
    [said] = {id(each): each for each in caplog.records if "could not be kept" in each.getMessage()}.values()
    assert said.levelno == logging.WARNING
    assert said.exc_info is None
    assert str(in_the_way) in said.getMessage()
    assert "name another one by PREFECT_LOCAL_STORAGE_PATH" in said.getMessage()


def test_a_schedule_follows_its_own_time_zone_wherever_it_was_deployed(project: Project, prefect_api: Any) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate

    flow = project.flow(TAG + '    deploy: {schedule: {cron: "15 4 * * *", timezone: Europe/Paris}}\n')
    pool = f"pool-of-{flow.name}"

    async def make() -> None:
        async with get_client() as client:
            await client.create_work_pool(WorkPoolCreate(name=pool, type="process"))

    async def times() -> list[datetime.datetime]:
        async with get_client() as client:
            found = await client.read_deployment_by_name(f"{flow.name}/{flow.name}")
            for _ in range(300):
                runs = await client.get_scheduled_flow_runs_for_deployments([found.id])
                if starts := [run.next_scheduled_start_time for run in runs if run.next_scheduled_start_time]:
                    return list(starts)
                await asyncio.sleep(0.2)
            raise AssertionError("the server plans no runs")

    asyncio.run(make())
    env = {"PREFECT_API_URL": prefect_api.url, "PREFECT_HOME": str(prefect_api.home), "TZ": "Asia/Kolkata"}
    process = start("deploy", flow.plan.file, "--pool", pool, folder=project.folder, env=env)
    output, errors = process.communicate(timeout=120)
    assert "runs at 15 4 * * * (Europe/Paris)" in output, errors
    paris = {time.astimezone(ZoneInfo("Europe/Paris")).strftime("%H:%M") for time in asyncio.run(times())}
    assert paris == {"04:15"}


def test_a_run_that_serving_cannot_begin_ends_with_the_reason(project: Project) -> None:
    from prefect.client.orchestration import get_client

    from ragbraid.flows.deployments import Target, load_specs
    from ragbraid.flows.prefect_deploy import deploy
    from ragbraid.flows.prefect_serve import Server

    flow = project.flow(TAG)

    class Unable:
        name, plan = flow.name, flow.plan

        @property
        def prefect(self) -> Any:
            raise SettingsError("the flow cannot be made here")

    async def work() -> Any:
        [(_, spec)] = load_specs([Path(flow.plan.file)], Target(served=True))
        [step] = await deploy([spec])
        stop = asyncio.Event()
        unable: Any = Unable()
        serving = asyncio.create_task(Server({step.deployment_id: unable}, limit=1, poll_seconds=0.25).run(stop))  # type: ignore[dict-item]
        async with get_client() as client:
            run = await client.create_flow_run_from_deployment(step.deployment_id)  # type: ignore[arg-type]
            for _ in range(300):
                run = await client.read_flow_run(run.id)
                if run.state is not None and run.state.is_final():
                    break
                await asyncio.sleep(0.1)
        stop.set()
        await serving
        return run.state

    state = asyncio.run(work())
    assert (state.name, state.message) == ("Failed", "the flow cannot be made here")
