from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from golden_parts import GOLDEN, flow_text
from jsonschema import Draft202012Validator

from ragbraid.dsl.schema import flow_schema
from ragbraid.dsl.source import read_source, to_python
from ragbraid.registry.catalogue import Catalogue, installed_catalogue

EXAMPLES = Path(__file__).parents[3] / "examples_flows"


def plain(text: str) -> Any:
    root, findings = read_source(text, "demo.yaml")
    assert root is not None
    assert findings == ()
    return to_python(root)


@pytest.fixture(scope="module")
def validator(catalogue: Catalogue) -> Draft202012Validator:
    return Draft202012Validator(flow_schema(catalogue))


@pytest.fixture(scope="module")
def installed() -> Draft202012Validator:
    return Draft202012Validator(flow_schema(installed_catalogue()))


def test_the_schema_is_one(catalogue: Catalogue) -> None:
    schema = flow_schema(catalogue)
    Draft202012Validator.check_schema(schema)
    assert json.loads(json.dumps(schema)) == schema


def test_the_schema_of_what_is_installed_is_one() -> None:
    Draft202012Validator.check_schema(flow_schema(installed_catalogue()))
    assert installed_catalogue().nodes()


@pytest.mark.parametrize("path", sorted((GOLDEN / "ok").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_good_file_validates(path: Path, validator: Draft202012Validator) -> None:
    assert [error.message for error in validator.iter_errors(plain(path.read_text(encoding="utf-8")))] == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_an_example_flow_validates(path: Path, installed: Draft202012Validator) -> None:
    assert [error.message for error in installed.iter_errors(plain(path.read_text(encoding="utf-8")))] == []


@pytest.mark.parametrize(
    "nodes",
    [
        "rc: {use: retrieve.dense, topk: 5}",
        "rc: {use: retrieve.dense, top_k: 0}",
        "rc: {use: retrieve.dense, top_k: many}",
        "rc: {use: retrieve.dense, retry: 0}",
        "rc: {use: retrieve.dense, retry: {delay: 1s}}",
        "rc: {use: retrieve.dense, retry: {attempts: 2, on: [bad]}}",
        "rc: {use: retrieve.dense, timeout: soon}",
        "rc: {use: retrieve.dense, timeout: 0}",
        "rc: {use: retrieve.dense, cache: maybe}",
        "rc: {use: retrieve.dense, on_error: ignore}",
        "rc: {use: retrieve.dense, on_error: {top_k: 3}}",
        "rc: {use: retrieve.dense, when: [a]}",
        "rc: {use: retrieve.dense, kb: 5}",
        "rc: {use: fuse.rrf@1, variant: other}",
        "rc: {use: fuse.rrf, k: {a: b}}",
        "rc: {top_k: 5}",
        "rc: [retrieve.dense]",
        "rc: retrieve.dens",
        "rc: {use: retrieve.dens}",
        "my-rc: retrieve.dense",
        "rc: {loop: {nodes: {a: retrieve.dense}}}",
        "rc: {loop: {nodes: {a: retrieve.dense}, max_steps: 0}}",
        "rc: {loop: {nodes: {a: retrieve.dens}, max_steps: 3}}",
        "rc: {loop: {nodes: {a: retrieve.dense}, max_steps: 3}, cache: true}",
        "rc: {map: {over: {a: $x, b: $y}, nodes: {a: retrieve.dense}, output: $a}}",
        "rc: {map: {over: {a: $x}, nodes: {a: retrieve.dense}}}",
        "rc: {map: {over: {a: $x}, nodes: {a: retrieve.dense}, output: $a, on_error: ignore}}",
        "rc: {switch: {on: $a, cases: {}}}",
        "rc: {switch: {when: [retrieve.dense]}}",
        "rc: {gate: {try: [retrieve.dense]}}",
        "rc: {gate: {try: retrieve.dense, enough: $out}}",
        "rc: {nodes: {a: retrieve.dense}}",
        "rc: {use: ./other.txt}",
    ],
)
def test_a_node_of_the_wrong_shape_does_not(nodes: str, validator: Draft202012Validator) -> None:
    assert not validator.is_valid(plain(flow_text(nodes)))


@pytest.mark.parametrize(
    ("parts", "rest"),
    [
        ({}, "node: {}"),
        ({"outputs": "[$rc]"}, ""),
        ({"outputs": "{}"}, ""),
        ({"outputs": "rc"}, ""),
        ({"flow": "{a: b}"}, ""),
        ({"inputs": "question: 5"}, ""),
        ({"inputs": "question: {default: 5}"}, ""),
        ({"inputs": "question: {type: str, min: 5}"}, ""),
        ({"inputs": "question: {type: str, choices: a}"}, ""),
        ({"inputs": "question: {type: str, min_length: -1}"}, ""),
        ({}, "limits: {seconds: 0}"),
        ({}, "limits: {llm_calls: 1.5}"),
        ({}, "limits: {second: 1}"),
        ({}, "deploy: {schedule: {timezone: UTC}}"),
        ({}, "deploy: {visible: all}"),
        ({}, "deploy: {concurrency: 0}"),
        ({}, "resources: {kb: {path: ./kb}}"),
        ({}, "resources: {kb: {use: qdrant.embedded, path: ./kb, pth: x}}"),
        ({}, "resources: {kb: {use: qdrant.embedded}}"),
        ({}, "resources: {kb: unknown.provider}"),
    ],
)
def test_a_section_of_the_wrong_shape_does_not(
    parts: dict[str, str], rest: str, validator: Draft202012Validator
) -> None:
    assert not validator.is_valid(plain(flow_text("rc: retrieve.dense", rest=rest, **{"outputs": "$rc", **parts})))


@pytest.mark.parametrize(
    "nodes",
    [
        "rc: {use: retrieve.dense, top_k: $n}",
        'rc: {use: retrieve.dense, top_k: "${ n + 1 }"}',
        "rc: {use: retrieve.dense, query: {text: hello}}",
        "rc: {use: retrieve.dense, query: hello}",
        "rc: {use: fuse.rrf@1, variant: scaled, weights: {a: $w}}",
        "rc: {use: fuse.rrf@2, lists: [$a, $b]}",
        "rc: {use: fuse.rrf, lists: {x: $a}}",
        "rc: {use: retrieve.dense, on_error: {use: retrieve.sparse, top_k: 3}, about: x, timeout: 500ms, cache: 7d}",
    ],
)
def test_what_the_checker_takes_the_schema_takes(nodes: str, validator: Draft202012Validator) -> None:
    text = flow_text(nodes, outputs="$rc")
    assert [error.message for error in validator.iter_errors(plain(text))] == []


def test_a_parameter_is_described_for_the_editor(catalogue: Catalogue) -> None:
    text = json.dumps(flow_schema(catalogue))
    assert "Nearest chunks." in text
    assert '"default": 50' in text
