"""The light side of running under Prefect: whether it is configured, whether it answers, how to call a flow there.

Importing this module does not import prefect, which costs seconds; `ragbraid.flows.prefect_engine` does.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ragbraid.flows.runner import Listener, RunResult

if TYPE_CHECKING:
    from ragbraid.flows.api import Flow
    from ragbraid.flows.trace import Trace

_API_URL = "PREFECT_API_URL"


def is_prefect_configured() -> bool:
    """Whether a Prefect API is named by the environment, the active Prefect profile, prefect.toml or pyproject.toml."""
    return configured_api_url() is not None


def configured_api_url() -> str | None:
    """Return the address of the Prefect API that a run would use, or None. Reads at most three small files."""
    return os.environ.get(_API_URL) or _url_in_project_files() or _url_in_profile() or None


async def run_on_prefect(
    flow: Flow,
    inputs: Mapping[str, Any],
    *,
    listener: Listener | None = None,
    trace: Trace | None = None,
    follow_text: bool = False,
) -> RunResult:
    """Run a flow as a Prefect flow run of this process and return what it gives, with its trace.

    Raises:
        RunError: as `Flow.run`.
        ServiceError: the Prefect API does not answer; says what to do.
    """
    from ragbraid.flows.prefect_engine import run_traced

    return await run_traced(flow, inputs, listener=listener, trace=trace, follow_text=follow_text)


def load_secret_block(name: str) -> str | None:
    """Return the value of a Prefect Secret block, or None where there is none. Blocks; safe beside a running loop.

    Block names have dashes and lower case, so `OPENAI_KEY` is looked for as `openai-key`.

    Raises:
        ServiceError: the Prefect API does not answer.
    """
    from ragbraid.flows.prefect_engine import read_secret_block

    return read_secret_block(name.lower().replace("_", "-"))


def _url_in_project_files() -> str | None:
    prefect = _read_toml(Path("prefect.toml"))
    if url := _dig(prefect, "api", "url"):
        return url
    return _dig(_read_toml(Path("pyproject.toml")), "tool", "prefect", "api", "url")


def _url_in_profile() -> str | None:
    home = Path(os.environ.get("PREFECT_HOME", "~/.prefect")).expanduser()
    path = Path(os.environ.get("PREFECT_PROFILES_PATH", home / "profiles.toml")).expanduser()
    profiles = _read_toml(path)
    active = os.environ.get("PREFECT_PROFILE") or _dig(profiles, "active")
    return _dig(profiles, "profiles", active, _API_URL) if active else None


def _read_toml(path: Path) -> dict[str, Any]:
    # A file that Prefect itself could not read is Prefect's to report; here it names no address.
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _dig(table: Any, *keys: str) -> str | None:
    for key in keys:
        table = table.get(key) if isinstance(table, dict) else None
    return table if isinstance(table, str) and table else None
