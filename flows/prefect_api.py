"""The Prefect API as a user meets it: where it is, and one sentence for each way in which it does not do its work.

Imports prefect: import it inside functions.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import lru_cache
from urllib.request import getproxies, proxy_bypass

import httpx
from packaging.version import InvalidVersion
from prefect.client.orchestration import PrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError
from prefect.settings import get_current_settings, load_profiles

from ragbraid.flows.prefect_runner import configured_api_url
from ragbraid.flows.prefect_settings import settings_failure
from ragbraid.flows.secrets import redact
from ragbraid.registry.errors import ServiceError, SettingsError

_PATIENCE_SECONDS = 3.0
"""How long the server may take to say which UI it has."""

_UNREACHED = "Failed to reach API"
_OTHER_VERSION = "Found incompatible versions"

API_FAILURES = (httpx.TransportError, PrefectHTTPStatusError)
"""What Prefect's client raises when the API is gone or out of order."""


@asynccontextmanager
async def api_client() -> AsyncIterator[PrefectClient]:
    """Open a client of the configured API; what goes wrong with the API inside the block is raised as a sentence.

    Raises:
        SettingsError: no API is configured, or Prefect or a proxy is set up wrongly.
        ServiceError: it does not answer, refuses the key, is of another version, or refuses a request.
    """
    try:
        if configured_api_url() is None:
            load_profiles()  # a file that cannot be read names no address, and is what is wrong
            raise SettingsError(
                "no Prefect API is configured, so there is no server to turn to",
                hint="start a server with `prefect server start`, and set PREFECT_API_URL=http://127.0.0.1:4200/api",
            )
        async with get_client() as client:
            # An address that leads elsewhere would look like a server on which nothing is found.
            await _ask_for_version(client)
            yield client
    except Exception as error:
        if failure := settings_failure(error):
            raise failure from None
        if not is_api_failure(error):
            raise
        raise api_failure(error, dispensable=False) from None


async def _ask_for_version(client: PrefectClient) -> None:
    try:
        await client.raise_for_api_version_mismatch_once()
    except (ValueError, TypeError):  # what it answers is JSON, and no version
        raise _no_api(api_url(), "with something else than a version") from None


def is_api_failure(error: Exception) -> bool:
    """Whether Prefect's client raised this because of the API and not because of us."""
    # What goes wrong where it asks for the version, it turns into a bare RuntimeError with one of these texts.
    return isinstance(error, (*API_FAILURES, InvalidVersion)) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in (_UNREACHED, _OTHER_VERSION))
    )


def api_failure(error: Exception, *, dispensable: bool = True) -> ServiceError:
    """Return the sentence for a failure of the API, with what to do about it.

    Args:
        error: what Prefect's client raised.
        dispensable: whether what was asked for can be had without Prefect too.
    """
    url = api_url()
    if _OTHER_VERSION in str(error):
        versions = str(error).partition(_OTHER_VERSION)[2].strip(" :").partition(". ")[0]
        return ServiceError(
            f"the Prefect API at {url} is of another version than the Prefect that is installed here ({versions})",
            kind="failed",
            hint="install the same major version at both ends",
        )
    is_first_word = _UNREACHED in str(error)
    if isinstance(error.__cause__, Exception) and (is_first_word or isinstance(error.__cause__, API_FAILURES)):
        error = error.__cause__
    if isinstance(error, httpx.TransportError):
        return _silence(url, error, dispensable)
    if not isinstance(error, PrefectHTTPStatusError):
        return _no_api(url, "with something else than a version")
    status = error.response.status_code
    if status == 404 and is_first_word:
        return _no_api(url, "HTTP 404")
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


def _silence(url: str, error: httpx.TransportError, dispensable: bool) -> ServiceError:
    said = str(error)
    if isinstance(error, httpx.UnsupportedProtocol):
        return ServiceError(
            f"`{url}` is no address of a Prefect API",
            kind="failed",
            hint="PREFECT_API_URL begins with http:// or https://",
        )
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return ServiceError(
            f"the certificate of the Prefect API at {url} is not trusted ({said.rpartition('] ')[2]})",
            kind="failed",
            hint="set PREFECT_API_SSL_CERT_FILE to the certificate of its authority; "
            "PREFECT_API_TLS_INSECURE_SKIP_VERIFY=true trusts anybody",
        )
    if "[SSL" in said:
        return ServiceError(
            f"the Prefect API at {url} does not speak TLS",
            kind="failed",
            hint="PREFECT_API_URL may have to begin with http://",
        )
    proxy = " (a proxy is set: NO_PROXY=HOST leaves a server out of it)" if _is_proxied(url) else ""
    return ServiceError(
        f"the Prefect API at {url} does not answer ({type(error).__name__})",
        hint=f"start it with `prefect server start`, correct PREFECT_API_URL{proxy}"
        + (", or run without it: `--engine inline`" if dispensable else " or wait until it is back"),
    )


def _no_api(url: str, what: str) -> ServiceError:
    example = "http://127.0.0.1:4200/api" if url.rstrip("/").endswith("/api") else f"{url.rstrip('/')}/api"
    return ServiceError(
        f"at {url} is no Prefect API: it answers {what}",
        kind="failed",
        hint=f"correct PREFECT_API_URL, which ends in /api for a server, such as {example}",
    )


def _is_proxied(url: str) -> bool:
    address = httpx.URL(url)
    proxies = getproxies()
    return (address.scheme in proxies or "all" in proxies) and not proxy_bypass(address.host)


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
