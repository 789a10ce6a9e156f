"""The shape of the repository: rooms, links, packaging, sizes, the tree of exceptions."""

from __future__ import annotations

import ast
import importlib
import os
import pickle
import pkgutil
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ragbraid
from ragbraid.registry import errors
from ragbraid.registry.contracts import CONTRACTS
from ragbraid.registry.errors import Finding, FlowError, RagbraidError, SourceSpan
from ragbraid.registry.graph import GRAPH_CONTRACTS
from ragbraid.registry.knowledge import KNOWLEDGE_CONTRACTS
from ragbraid.registry.logic import LOGIC_CONTRACTS
from ragbraid.registry.reasoning import REASONING_CONTRACTS
from ragbraid.registry.reports import REPORT_CONTRACTS

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("registry", "dsl", "nodes", "flows")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50


def source_files() -> Iterator[Path]:
    for room in ROOMS:
        yield from sorted((ROOT / room).glob("*.py"))


def test_rooms_are_flat_and_every_one_is_linked_and_packaged() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert set(packages) == {"ragbraid", "ragbraid.examples_flows", *(f"ragbraid.{room}" for room in ROOMS)}
    for room in ROOMS:
        assert os.readlink(ROOT / "ragbraid" / room) == f"../{room}"
        assert not [path for path in (ROOT / room).rglob("*.py") if path.parent != ROOT / room], "rooms stay flat"


def test_every_public_name_of_the_package_can_be_imported() -> None:
    for name in ragbraid.__all__:
        assert getattr(ragbraid, name) is not None
    assert sorted(ragbraid.__all__) == sorted(ragbraid._HOME)


def test_every_contract_can_be_imported_from_the_package() -> None:
    contracts = {
        **CONTRACTS, **GRAPH_CONTRACTS, **KNOWLEDGE_CONTRACTS, **LOGIC_CONTRACTS, **REASONING_CONTRACTS,
        **REPORT_CONTRACTS,
    }  # fmt: skip
    assert {name: getattr(ragbraid, name) for name in contracts} == contracts
    assert set(contracts) <= set(ragbraid.__all__)


@pytest.mark.parametrize("path", list(source_files()), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_FILE_LINES
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            body = function.body[1:] if ast.get_docstring(function) else function.body
            length = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
            assert length <= MAX_FUNCTION_LINES, function.name


def test_the_language_and_the_runners_raise_only_errors_of_the_tree() -> None:
    bare = re.compile(r"raise (ValueError|Exception|RuntimeError)\(")
    guilty = [f"{path.parent.name}/{path.name}" for path in source_files() if bare.search(path.read_text("utf-8"))]
    # Validators of pydantic models must raise ValueError.
    assert [name for name in guilty if name.startswith(("dsl/", "flows/"))] == []


def subclasses(cls: type[Any], depth: int = 0) -> Iterator[tuple[int, str]]:
    yield depth, cls.__name__
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from subclasses(child, depth + 1)


def test_the_drawn_tree_of_exceptions_is_the_real_one() -> None:
    drawn = [
        (line.index(match[0]) // 4, match[0])
        for line in (errors.__doc__ or "").splitlines()
        if (match := re.search(r"\b[A-Z]\w+Error\b", line)) and line.startswith("    ")
    ]
    top = drawn[0][0]
    assert [(depth - top, name) for depth, name in drawn] == list(subclasses(RagbraidError))


OPTIONAL = ("ray", "prefect_ray")
"""Packages that the tests do without, and that modules of ours import at their head."""


def every_error_class() -> list[type[RagbraidError]]:
    for module in pkgutil.iter_modules([str(ROOT / room) for room in ROOMS]):
        for room in ROOMS:
            if (ROOT / room / f"{module.name}.py").exists():
                try:
                    importlib.import_module(f"ragbraid.{room}.{module.name}")
                except ModuleNotFoundError as error:
                    assert error.name in OPTIONAL, error  # noqa: PT017 - what is left out must be meant to be
    found: list[type[RagbraidError]] = []
    waiting: list[type[RagbraidError]] = [RagbraidError]
    while waiting:
        cls = waiting.pop()
        found.append(cls)
        waiting.extend(cls.__subclasses__())
    return found


def test_every_exception_survives_pickling() -> None:
    span = SourceSpan("qa.yaml", 1, 2, 3, 4)
    for cls in every_error_class():
        error: RagbraidError
        error = FlowError((Finding("RB001", "broken", span),)) if cls is FlowError else cls("what happened")
        error.__dict__["step"] = "rerank"
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is cls
        assert copy.args == error.args
        assert copy.__dict__ == error.__dict__
