"""Several flow files that are offered together: all checked before any is, and told apart by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from ragbraid.dsl.plan import Plan
from ragbraid.registry.errors import Finding, FlowError, SettingsError

T = TypeVar("T")


def load_all(paths: Sequence[Path], load: Callable[[Path], T]) -> list[T]:
    """Return what `load` makes of every file.

    Raises:
        FlowError: files have mistakes; holds those of all files.
        SettingsError: a project file is wrong.
    """
    findings: list[Finding] = []
    texts: dict[str, str] = {}
    loaded: list[T] = []
    for path in paths:
        try:
            loaded.append(load(path))
        except FlowError as error:
            findings += error.findings
            texts |= error.texts
    if findings:
        raise FlowError(tuple(findings), texts)
    return loaded


def refuse_twins(plans: Iterable[Plan]) -> None:
    """Raise SettingsError where two flows have one name, by which they would be told apart."""
    files: dict[str, str] = {}
    for plan in plans:
        if plan.name in files:
            raise SettingsError(
                f"{files[plan.name]} and {plan.file} are both named `{plan.name}`: the second would replace the first",
                hint="give one of them another `name`",
            )
        files[plan.name] = plan.file
