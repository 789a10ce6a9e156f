"""Keeps one Prefect server alive for as long as a process that uses it does: `prefect_server.py FOLDER`.

Every user leaves a file named by its process id in FOLDER/users. The address is written to FOLDER/url when the server
answers. When no user is left the server ends, also when the users were killed.
"""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

STARTUP_SECONDS = 240


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def environment(home: Path, url: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    services = "PREFECT_SERVER_SERVICES_"
    return {
        **kept,
        "DO_NOT_TRACK": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": url,
        "PREFECT_UI_API_URL": url,
        "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
        # In batches the server needs a quarter of the processor time for the same rows.
        f"{services}TASK_RUN_RECORDER_READ_BATCH_SIZE": "200",
        f"{services}TASK_RUN_RECORDER_BATCH_SIZE": "200",
        f"{services}TASK_RUN_RECORDER_FLUSH_INTERVAL": "1",
        f"{services}TRIGGERS_READ_BATCH_SIZE": "200",
        f"{services}EVENT_PERSISTER_READ_BATCH_SIZE": "200",
        f"{services}EVENT_PERSISTER_BATCH_SIZE": "200",
    }


def start(home: Path, log: Path) -> tuple["subprocess.Popen[bytes]", str]:
    """Start a server and wait until it answers."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    home.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, env=environment(home, url), stdout=output, stderr=output, start_new_session=True
        )
    deadline = time.monotonic() + STARTUP_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
                if answer.status == 200:
                    return process, url
        except OSError:
            time.sleep(0.2)
    stop(process)
    raise SystemExit(f"the Prefect server did not start; see {log}")


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a server that `start` started."""
    process.terminate()
    try:
        process.wait(timeout=20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def is_used(users: Path) -> bool:
    for user in users.iterdir():
        try:
            os.kill(int(user.name), 0)
        except (OSError, ValueError):
            user.unlink(missing_ok=True)
    return any(users.iterdir())


def main(folder: Path) -> None:
    process, url = start(folder / "home", folder / "server.log")
    try:
        partial = folder / "url.tmp"
        partial.write_text(url)
        partial.replace(folder / "url")
        while process.poll() is None and is_used(folder / "users"):
            time.sleep(0.5)
    finally:
        stop(process)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
