"""Results of steps that outlive a run, as files of two JSON lines (head and value), checked when they are read back.

The key of a result is the SHA-256 over everything that decides it: the node's name and version, the value of every
port with its type, and the fingerprints of the resources. No file is ever unpickled.
"""

from __future__ import annotations

import dataclasses
import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import date
from datetime import time as time_of_day
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticSerializationError

from ragbraid.registry.errors import SettingsError
from ragbraid.registry.node import REQUIRED, NodeContract

_FORMAT = 1


class NoStableFormError(ValueError):
    """A value cannot be part of a cache key, or cannot be stored so that it reads back as the same value."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stored:
    """A result that was found."""

    value: Any


def result_key(node: NodeContract, inputs: Mapping[str, Any], fingerprints: Sequence[tuple[str, str]]) -> str:
    """Return the key of what a node gives for these inputs.

    Args:
        node: the node; its name and version are part of the key.
        inputs: the checked values of its ports; a port that is not among them counts with its default.
        fingerprints: resource parameter and fingerprint of each resource; a fingerprint never holds a secret.

    Raises:
        NoStableFormError: the key cannot be made; says because of which port.
    """
    ports = []
    for port in node.ports:
        value = inputs.get(port.name, port.default)
        if value is REQUIRED:
            continue
        try:
            ports.append([port.name, canonical(value)])
        except NoStableFormError as error:
            raise NoStableFormError(f"`{port.name}` holds {error}") from None
    whole = [_FORMAT, node.name, node.version, ports, sorted(fingerprints)]
    return sha256(json.dumps(whole).encode("ascii")).hexdigest()


def canonical(value: Any) -> Any:
    """Return JSON that is equal for equal values of equal type, and for no others.

    A path to a file stands for its size and time of change too. The order of mappings counts.

    Raises:
        NoStableFormError: the value, or one inside it, is of a type that has no such form (a connection, a secret).
    """
    if value is None or isinstance(value, bool) or type(value) in (str, int, float):
        return value
    if isinstance(value, Enum):
        return ["enum", _class_name(value), value.name]
    if isinstance(value, BaseModel):
        fields = [[name, canonical(getattr(value, name))] for name in type(value).model_fields]
        return ["model", _class_name(value), fields, canonical(value.model_extra)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        pairs = [[item.name, canonical(getattr(value, item.name))] for item in dataclasses.fields(value)]
        return ["dataclass", _class_name(value), pairs]
    if isinstance(value, Mapping):
        return ["mapping", [[canonical(key), canonical(item)] for key, item in value.items()]]
    if isinstance(value, list | tuple):
        return ["tuple" if isinstance(value, tuple) else "list", [canonical(item) for item in value]]
    if isinstance(value, set | frozenset):
        return ["set", sorted(json.dumps(canonical(item)) for item in value)]
    return _canonical_leaf(value)


class StepCache:
    """Results of steps under one directory. Safe for any number of threads and processes.

    Args:
        directory: where the files are; made when the first result is stored.
    """

    def __init__(self, directory: Path | str) -> None:
        self.directory = Path(directory)

    def load(self, key: str, node: NodeContract, lifetime_seconds: float) -> Stored | None:
        """Return the result stored under a key, or None: there is none, it is too old, or its file is damaged."""
        try:
            head, _, body = self._path(key).read_text(encoding="utf-8").partition("\n")
            entry = json.loads(head)
            if entry["format"] != _FORMAT or entry["key"] != key or time.time() - entry["stored_at"] > lifetime_seconds:
                return None
            return Stored(node.output_adapter.validate_json(body))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def store(self, key: str, node: NodeContract, value: Any) -> None:
        """Keep a result.

        Raises:
            NoStableFormError: the value would not read back as it is; nothing is stored.
            SettingsError: the directory cannot be written to.
        """
        text = _to_json(node, value)
        head = json.dumps({"format": _FORMAT, "key": key, "node": node.reference, "stored_at": time.time()})
        target = self._path(key)
        partial = target.with_name(f"{key}.{os.getpid()}.{uuid.uuid4().hex}.tmp")
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            partial.write_text(f"{head}\n{text}\n", encoding="utf-8")
            partial.replace(target)  # readers see the whole file or none; of several writers the last one stays
        except OSError as error:
            with suppress(OSError):
                partial.unlink(missing_ok=True)
            raise SettingsError(
                f"the result of `{node.name}` cannot be kept under {self.directory}: {error.strerror or error}",
                hint="give the cache a directory that can be written to, or take `cache` out of the flow",
            ) from error

    def _path(self, key: str) -> Path:
        return self.directory / key[:2] / f"{key}.jsonl"


def _to_json(node: NodeContract, value: Any) -> str:
    adapter = node.output_adapter
    try:
        text = adapter.dump_json(value, round_trip=True, warnings="error").decode("utf-8")
        again = adapter.validate_json(text)
    except (PydanticSerializationError, ValidationError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0]
        raise NoStableFormError(f"the output of `{node.name}` has no JSON form ({reason})") from error
    if not _same(again, value):
        raise NoStableFormError(f"the output of `{node.name}` would not read back from JSON as it is")
    return text


def _canonical_leaf(value: Any) -> Any:
    if isinstance(value, bytes):
        return ["bytes", sha256(value).hexdigest()]
    if isinstance(value, date | time_of_day):
        return [type(value).__name__, value.isoformat()]
    if isinstance(value, Path):
        return ["path", str(value), _file_state(value)]
    raise NoStableFormError(f"a {type(value).__name__}, which has no stable form")


def _file_state(path: Path) -> list[int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return [state.st_size, state.st_mtime_ns]


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _same(one: Any, other: Any) -> bool:
    try:
        return bool(canonical(one) == canonical(other))
    except NoStableFormError:
        return False
