"""Settings of Prefect and of proxies that cannot be used, as sentences. Does not import prefect, which may be what fails."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator

from pydantic import ValidationError

from ragbraid.registry.errors import SettingsError

_MOST_MISTAKES = 3


def settings_failure(error: Exception) -> SettingsError | None:
    """Return the sentence for an error by which Prefect, or its HTTP client, refuses how it is set up; else None.

    Prefect reads its settings where it is imported and again in a run, so that the error can come from anywhere.
    """
    modules = set(_modules(error))
    if any(name.startswith("prefect.settings") for name in modules) and isinstance(error, ValueError):
        return SettingsError(
            f"Prefect cannot read its settings: {_reason(error)}",
            hint="correct the variables that begin with PREFECT_, prefect.toml, or profiles.toml in ~/.prefect or "
            "PREFECT_HOME",
        )
    if any(name.startswith("httpx") for name in modules) and "proxy" in str(error).lower():
        return SettingsError(
            f"the proxy that the environment names cannot be used: {error}",
            hint="correct HTTP_PROXY, HTTPS_PROXY or ALL_PROXY, or leave the server out of it: NO_PROXY=HOST",
        )
    return None


def _modules(error: Exception) -> Iterator[str]:
    place = error.__traceback__
    while place is not None:
        yield str(place.tb_frame.f_globals.get("__name__", ""))
        place = place.tb_next


def _reason(error: ValueError) -> str:
    if isinstance(error, tomllib.TOMLDecodeError):
        return f"a file is no TOML ({error})"
    if not isinstance(error, ValidationError):
        return str(error)
    # Without the values, among which may be a key.
    found = error.errors(include_url=False, include_input=False, include_context=False)
    mistakes = [f"{'.'.join(map(str, each['loc'])) or 'one of them'}: {each['msg']}" for each in found]
    return "; ".join(mistakes[:_MOST_MISTAKES])
