import fcntl
import gc
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

STARTUP_SECONDS = 260


@dataclass(frozen=True)
class PrefectServer:
    url: str
    home: Path


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """One Prefect server for the whole test session, shared by all workers of pytest-xdist.

    `RAGBRAID_TEST_PREFECT` names a folder whose server several sessions share, one after the other or side by side.
    """
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "prefect"
    if shared := os.environ.get("RAGBRAID_TEST_PREFECT"):
        folder = Path(shared)
    users = folder / "users"
    users.mkdir(parents=True, exist_ok=True)
    user = users / str(os.getpid())
    user.touch()
    supervisor = 0
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "url").exists():
            script = Path(__file__).parents[1] / "parts/prefect_server.py"
            # Of this process's children and yet not tied to it: another worker may need the server for longer.
            supervisor = os.posix_spawn(
                sys.executable, [sys.executable, str(script), str(folder)], os.environ, setsid=True
            )
            deadline = time.monotonic() + STARTUP_SECONDS
            while not (folder / "url").exists():
                if os.waitpid(supervisor, os.WNOHANG)[0] or time.monotonic() > deadline:
                    pytest.fail(f"the Prefect server did not start; see {folder / 'server.log'}")
                time.sleep(0.2)
    yield PrefectServer((folder / "url").read_text(), folder / "home")
    user.unlink()
    if supervisor and not any(users.iterdir()):
        os.waitpid(supervisor, 0)


def end_services_of_other_servers(url: str) -> None:
    """Have the events and logs of this process go to the server of the next test.

    Prefect sends them, for as long as a process lives, where the first one went: with an earlier test's server, or the
    relay before it, they would be lost.
    """
    from prefect.events.worker import EventsWorker

    for service in tuple(EventsWorker._instances.values()):  # those of logs are among them
        client = getattr(service, "_client", None)
        address = getattr(client, "_api_url", None) or getattr(client, "api_url", None)
        if str(address).rstrip("/") != url:
            service._stop(at_exit=True)


@pytest.fixture
def prefect_api(prefect_server: PrefectServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[PrefectServer]:
    """The session's server as the configured API of this test; what Prefect keeps on disk stays in its folder."""
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_HOME,
        PREFECT_LOCAL_STORAGE_PATH,
        PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW,
        temporary_settings,
    )

    end_services_of_other_servers(prefect_server.url)
    monkeypatch.setenv("PREFECT_API_URL", prefect_server.url)
    monkeypatch.setenv("PREFECT_HOME", str(prefect_server.home))
    updates = {
        PREFECT_API_URL: prefect_server.url,
        PREFECT_HOME: str(prefect_server.home),
        PREFECT_LOCAL_STORAGE_PATH: str(prefect_server.home / "storage"),
        PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW: "ignore",
    }
    with temporary_settings(updates=updates):
        yield prefect_server
    gc.collect()  # sockets that Prefect leaves open are reported here, and not in a test that knows nothing of them
