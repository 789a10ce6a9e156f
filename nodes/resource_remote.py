"""The `remote.*` resource providers: how `load.files` reaches files by URL."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, PositiveFloat, PositiveInt

from ragbraid.nodes.remote_cache import RemoteCache
from ragbraid.nodes.remote_files import FsspecFiles
from ragbraid.nodes.remote_urls import is_http, scheme_of
from ragbraid.registry.errors import NodeInputError, SettingsError
from ragbraid.registry.providers import resource
from ragbraid.registry.resources import RemoteFiles

_CREDENTIALS = frozenset(
    {"key", "secret", "token", "password", "username", "account_key", "sas_token", "connection_string", "client_secret"}
)
"""Names that fsspec's file systems have for what nobody may see."""


@resource("remote.fsspec", secrets=("credentials", "headers"))
def remote_files(
    credentials: dict[str, str] | None = None,
    options: dict[str, Any] | None = None,
    headers: dict[str, str] | None = None,
    base_url: str | None = None,
    timeout_seconds: PositiveFloat = 60.0,
    attempts: PositiveInt = 3,
    connections: Annotated[int, Field(ge=1, le=64)] = 8,
    cache_path: Path | None = None,
) -> RemoteFiles:
    """Files of S3 and what speaks its protocol, of web servers, Google Cloud Storage and Azure, through fsspec.

    Where nothing is bound, `load.files` reaches the same with the defaults.

    Args:
        credentials: what fsspec opens the storage with and nobody may see, by its names; for S3 `key`, `secret` and
            `token`. Left out, those that the environment holds.
        options: what else fsspec opens it with; for S3 `endpoint_url` and `anon`.
        headers: what every request to the host of `base_url` carries, such as `Authorization`; redirects to other
            hosts do not.
        base_url: the web server that `headers` are for, such as `https://docs.example.org`.
        timeout_seconds: how long a connection may be silent.
        attempts: how often something is tried that may succeed a second time.
        connections: how many files are read at once.
        cache_path: folder that keeps what was downloaded, so that files whose ETag, or date and size, are as before
            are not downloaded again; it becomes as large as they are. Left out, every run downloads all.

    Raises:
        SettingsError: `headers` and `base_url` do not come together, or a credential stands among the options.
    """
    for name in sorted(_CREDENTIALS & set(options or ())):
        raise SettingsError(f"remote.fsspec: `{name}` belongs under `credentials`, so that nobody sees it")
    if bool(headers) != (base_url is not None):
        raise SettingsError("remote.fsspec: `headers` and `base_url` come together, so that they reach no other host")
    if base_url is not None:
        _check_web(base_url)
    return FsspecFiles(
        options={**(options or {}), **(credentials or {})},
        headers=headers,
        base_url=base_url,
        timeout_seconds=timeout_seconds,
        attempts=attempts,
        connections=connections,
        cache=None if cache_path is None else RemoteCache(cache_path),
    )


def _check_web(base_url: str) -> None:
    try:
        well_formed = is_http(scheme_of(base_url))
    except NodeInputError:
        well_formed = False
    if not well_formed:
        raise SettingsError("remote.fsspec: `base_url` must be an address such as https://docs.example.org")
