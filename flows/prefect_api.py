"""The Prefect API as a user meets it: where it is, and one sentence for each way in which it does not do its work.

Imports prefect: import it inside functions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache

import httpx
from prefect.client.orchestration import PrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import get_current_settings

from ragbraid.flows.prefect_runner import configured_api_url
from ragbraid.flows.secrets import redact
from ragbraid.registry.errors import ServiceError, SettingsError

_PATIENCE_SECONDS = 3.0
"""How long the server may take to say which UI it has."""

API_FAILURES = (httpx.TransportError, PrefectHTTPStatusError)
"""What Prefect's client raises when the API is gone or out of order."""


@asynccontextmanager
async def api_client() -> AsyncIterator[PrefectClient]:
    """Open a client of the configured API; what goes wrong with the API inside the block is raised as a sentence.

    Raises:
        SettingsError: no API is configured.
        ServiceError: it does not answer, refuses the key, is of another version, or refuses a request.
    """
    if configured_api_url() is None:
        raise SettingsError(
            "no Prefect API is configured, so there is no server to turn to",
            hint="start a server with `prefect server start`, and set PREFECT_API_URL=http://127.0.0.1:4200/api",
        )
    try:
        async with get_client() as client:
            yield client
    except Exception as error:
        if isinstance(error, RuntimeError) and "incompatible versions" in str(error):
            raise ServiceError(f"the Prefect API at {api_url()} is of another version: {error}") from None
        if not is_api_failure(error):
            raise
        raise api_failure(error, dispensable=False) from None


def is_api_failure(error: Exception) -> bool:
    """Whether Prefect's client raised this because of the API and not because of us."""
    # It turns the first refused connection into a bare RuntimeError with this text.
    return isinstance(error, API_FAILURES) or (isinstance(error, RuntimeError) and "Failed to reach API" in str(error))


def api_failure(error: Exception, *, dispensable: bool = True) -> ServiceError:
    """Return the sentence for a failure of the API, with what to do about it.

    Args:
        error: what Prefect's client raised.
        dispensable: whether what was asked for can be had without Prefect too.
    """
    url = api_url()
    if isinstance(error.__cause__, API_FAILURES):
        error = error.__cause__
    if not isinstance(error, PrefectHTTPStatusError):
        return ServiceError(
            f"the Prefect API at {url} does not answer ({type(error).__name__})",
            hint="start it with `prefect server start`, correct PREFECT_API_URL"
            + (", or run without it: `--engine inline`" if dispensable else " or wait until it is back"),
        )
    status = error.response.status_code
    if status in (401, 403):
        return ServiceError(
            f"the Prefect API at {url} refuses the key (HTTP {status})",
            kind="auth",
            hint="set PREFECT_API_KEY or PREFECT_API_AUTH_STRING",
        )
    if status in (409, 422):
        return ServiceError(
            f"the Prefect API at {url} refuses what it was sent (HTTP {status}): {_detail(error.response)}",
            kind="failed",
        )
    return ServiceError(
        f"the Prefect API at {url} answers, but only with HTTP {status}",
        hint="it may be overloaded: try again, raise PREFECT_CLIENT_MAX_RETRIES, or look at the server's log",
    )


def api_url() -> str:
    """Return the address of the API without a user's name and password."""
    url = get_current_settings().api.url
    return httpx.URL(url).copy_with(username="", password="").__str__() if url else "(a server of this process)"


def ui_address(path: str) -> str | None:
    """Return the address of a page of Prefect's UI, or None where there is no UI."""
    base = get_current_settings().ui_url
    return f"{_default_ui(base)}/{path}" if base else None


@lru_cache(maxsize=8)
def _default_ui(base: str) -> str:
    """Return where the UI that the server offers first begins: a server has an older one and a newer one.

    A server that does not say so, such as Prefect Cloud, has one.
    """
    base = base.rstrip("/")
    try:
        told = httpx.get(f"{base}/ui-settings", timeout=_PATIENCE_SECONDS).json()
        older, newer = told["v1_base_url"].rstrip("/"), told["v2_base_url"]
        return base + newer.removeprefix(older) if told["default_ui"] == "v2" else base
    except (httpx.HTTPError, ValueError, TypeError, KeyError, AttributeError):
        return base


def _detail(response: httpx.Response) -> str:
    try:
        detail = response.json().get("detail", response.text)
    except (ValueError, AttributeError):
        detail = response.text
    return redact(str(detail))[:500]
