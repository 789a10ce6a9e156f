"""Opening fsspec's file systems: packages, options, timeouts, and headers that stay with their host."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from ragbraid.nodes.remote_urls import PACKAGE_OF_SCHEME, is_http
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.suggest import did_you_mean


def open_system(
    scheme: str,
    *,
    options: Mapping[str, Any],
    headers: Mapping[str, str],
    base_url: str | None,
    timeout_seconds: float,
) -> Any:
    """Open the file system of a scheme; connects to nothing yet.

    Raises:
        SettingsError: its package is not installed, or it does not know one of the options.
    """
    package = PACKAGE_OF_SCHEME[scheme]
    try:
        import fsspec

        cls = fsspec.get_filesystem_class(scheme)
    except ImportError:
        raise SettingsError(
            f"loading from `{scheme}://` needs the package `{package}`, which is not installed",
            hint='install it with `pip install "ragbraid[remote]"`'
            if package in ("aiohttp", "s3fs", "fsspec")
            else f"install it with `pip install {package}`",
        ) from None
    # Instances are not shared with others in this process, and listings are never taken from memory.
    fresh = {"skip_instance_cache": True, "use_listings_cache": False}
    if is_http(scheme):
        return cls(**fresh, client_kwargs=_web_client(headers, base_url, timeout_seconds))
    _check_options(cls, scheme, options)
    if package != "s3fs":
        return cls(**fresh, **options)
    config = {
        "connect_timeout": timeout_seconds,
        "read_timeout": timeout_seconds,
        "retries": {"total_max_attempts": 1},
        **options.get("config_kwargs", {}),
    }
    system = cls(**fresh, **{**options, "config_kwargs": config})
    system.retries = 1  # there is one layer that tries again, and it is ours
    return system


def close_system(system: Any) -> None:
    """Close the connections of a file system."""
    close = getattr(system, "close_session", None)
    session = getattr(system, "_session", None) or getattr(system, "_s3", None)
    if close is not None and session is not None:
        close(system.loop, session)


def origin_of(url: str) -> Any:
    """Return scheme, host and port of a URL."""
    import yarl

    return yarl.URL(url).origin()


def _web_client(headers: Mapping[str, str], base_url: str | None, timeout_seconds: float) -> dict[str, Any]:
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout_seconds, sock_read=timeout_seconds)
    client: dict[str, Any] = {"timeout": timeout, "trust_env": True}
    if headers and base_url is not None:
        theirs = origin_of(base_url)

        async def add_headers(request: Any, handler: Any) -> Any:
            # Redirects pass here too: a secret must not follow them to another host.
            if request.url.origin() == theirs:
                request.headers.update(headers)
            return await handler(request)

        client["middlewares"] = (add_headers,)
    return client


def _check_options(cls: type[Any], scheme: str, options: Mapping[str, Any]) -> None:
    known = [
        name
        for name, parameter in inspect.signature(cls.__init__).parameters.items()
        if name != "self" and parameter.kind is not parameter.VAR_KEYWORD
    ]
    for name in options:
        if name not in known:
            raise SettingsError(
                f"the resource `remote` has an option or credential `{name}` that `{scheme}://` does not know",
                hint=did_you_mean(name, known) or "see the documentation of " + PACKAGE_OF_SCHEME[scheme],
            )
