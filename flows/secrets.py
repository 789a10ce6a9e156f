"""Secrets by reference: `${env.NAME}` and `${secret.NAME}` in a resource's settings, resolved when it is opened.

Every value that was resolved is remembered in this process, and only so that `redact` can take it out of any text that
leaves it: error messages, traces, logs.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from ragbraid.registry.errors import RunError, SettingsError

E = TypeVar("E", bound=BaseException)

SECRETS_DIR = "RAGBRAID_SECRETS_DIR"
"""Environment variable: a folder with one file per secret, as container platforms mount them."""

HIDDEN = "***"

_REFERENCE = re.compile(r"(\$?)\$\{([^{}]*)\}")
_NAMED = re.compile(r"(env|secret)\.([A-Za-z_][A-Za-z0-9_-]*)")
_SHORTEST_ENV_VALUE = 6
"""An environment value below this length (`true`, `en`, `8080`) is a setting, not a secret; hiding it would hide words."""


class _Redactor:
    """The texts to take out of messages, and what stands in their place."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._replacements: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None

    def add(self, value: str, shown: str) -> None:
        forms = {value, quote(value, safe=""), json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]}
        with self._lock:
            if all(form in self._replacements for form in forms):
                return
            self._replacements.update({form: shown for form in forms if form not in self._replacements})
            longest_first = sorted(self._replacements, key=len, reverse=True)
            self._pattern = re.compile("|".join(re.escape(form) for form in longest_first))

    def redact(self, text: str) -> str:
        pattern = self._pattern
        return text if pattern is None else pattern.sub(lambda found: self._replacements[found[0]], text)


_redactor = _Redactor()


def redact(text: str) -> str:
    """Return the text with every secret that this process has resolved replaced by its reference."""
    return _redactor.redact(text)


def redacted(error: E) -> E:
    """Return the error itself, every resolved secret taken out of its texts and out of those that led to it."""
    link: BaseException | None = error
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        link.args = tuple(redact(arg) if isinstance(arg, str) else arg for arg in link.args)
        if isinstance(link, RunError | SettingsError) and link.hint:
            link.hint = redact(link.hint)
        link = link.__cause__ or link.__context__
    return error


def hide(value: Any, shown: str = HIDDEN) -> None:
    """Have `redact` replace a text, or every text in a list or mapping, from now on."""
    for text in _texts(value):
        if text:
            _redactor.add(text, shown)


def has_reference(value: Any) -> bool:
    """Whether a setting holds `${...}` anywhere in it, so that its value is not known before it is resolved."""
    return any(True for text in _texts(value) for found in _REFERENCE.finditer(text) if not found[1])


def missing_references(value: Any) -> list[str]:
    """Return a sentence for every reference in a setting that cannot be resolved here; opens nothing."""
    sentences = []
    for text in _texts(value):
        for found in _REFERENCE.finditer(text):
            try:
                _look_up(found)
            except SettingsError as error:
                sentences.append(str(error))
    return sentences


def resolve(value: Any) -> Any:
    """Return a setting with every `${env.NAME}` and `${secret.NAME}` in it replaced; `$${` is a literal `${`.

    Raises:
        SettingsError: a variable or secret is missing, or a reference is malformed. Names it, never a value.
    """
    if isinstance(value, str):
        return _REFERENCE.sub(_look_up, value)
    if isinstance(value, Mapping):
        return {key: resolve(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(item) for item in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _look_up(found: re.Match[str]) -> str:
    if found[1]:
        return found[0][1:]
    named = _NAMED.fullmatch(found[2].strip())
    if named is None:
        raise SettingsError(
            f"`{found[0]}` is no reference: settings of resources know `${{env.NAME}}` and `${{secret.NAME}}`",
            hint="write `$${` for a literal `${`",
        )
    kind, name = named.groups()
    if kind == "env":
        value = _environment(name)
        if len(value) >= _SHORTEST_ENV_VALUE:
            hide(value, f"${{env.{name}}}")
    else:
        value = _secret(name)
        hide(value, f"${{secret.{name}}}")
    return value


def _environment(name: str) -> str:
    value = os.environ.get(name)
    if value is None:
        raise SettingsError(
            f"the environment variable {name} is not set", hint=f"set it: `export {name}=...`, then run again"
        )
    return value


def _secret(name: str) -> str:
    folder = os.environ.get(SECRETS_DIR)
    if folder:
        try:
            return (Path(folder) / name).read_text(encoding="utf-8").rstrip("\r\n")
        except (FileNotFoundError, NotADirectoryError):
            pass  # the Prefect block below may hold it
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
            raise SettingsError(f"the secret {name} in {folder} cannot be read: {reason}") from None
    value = _prefect_secret(name)
    if value is not None:
        return value
    where = f"a file {name} in {folder}" if folder else f"a file {name} in a folder named by {SECRETS_DIR}"
    raise SettingsError(
        f"the secret {name} is not known here", hint=f"put it into {where}, or into a Prefect Secret block"
    )


def _prefect_secret(name: str) -> str | None:
    from ragbraid.flows.prefect_runner import is_prefect_configured, load_secret_block

    return load_secret_block(name) if is_prefect_configured() else None
