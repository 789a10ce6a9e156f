"""The models of what blocks and flows with several outputs give: made for one plan, and able to leave the process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from pydantic import BaseModel, ConfigDict, create_model


class Record(BaseModel):
    """Named values with attributes to read them by. A pickled one comes back where its plan is not known."""

    model_config = ConfigDict(arbitrary_types_allowed=True, frozen=True, protected_namespaces=())

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as a name and values: the class itself was made at run time and can be imported nowhere."""
        return _restore, (type(self).__name__, {name: getattr(self, name) for name in type(self).model_fields})


def make_record(name: str, fields: Mapping[str, Any]) -> type[Record]:
    """Return a frozen model, `FindOutput` for `find_output`, with fields of these names and types."""
    title = "".join(part.capitalize() for part in re.split(r"\W|_", name))
    typed: dict[str, Any] = {key: (type_, ...) for key, type_ in fields.items()}
    return create_model(title, __base__=Record, __module__=__name__, **typed)


def _restore(title: str, values: dict[str, Any]) -> Record:
    # What is restored was checked when it was made; only the names of its fields are needed to read it.
    return _untyped(title, tuple(values)).model_construct(**values)


@lru_cache(maxsize=256)
def _untyped(title: str, names: tuple[str, ...]) -> type[Record]:
    typed: dict[str, Any] = dict.fromkeys(names, (Any, ...))
    return create_model(title, __base__=Record, __module__=__name__, **typed)
