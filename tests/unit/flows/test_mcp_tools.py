"""A flow as a tool, without the protocol; and what `ragbraid mcp` refuses before it serves."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from cli_parts import run_here
from jsonschema import Draft202012Validator

from ragbraid.flows.api import load
from ragbraid.flows.mcp_tools import failure_text, structured_outputs, tool_schema
from ragbraid.registry.contracts import Answer
from ragbraid.registry.errors import LimitError, RunError, SettingsError

FLOW = """
ragbraid: 1
name: {name}
inputs: {inputs}
nodes: {{a: {{use: mine.same, value: 1}}}}
outputs: $a
"""
NODES = '''
from ragbraid import node


@node("mine.same")
def same(value: int) -> int:
    """Give it back."""
    return value
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_nodes.py").write_text(NODES)
    (tmp_path / "ragbraid.toml").write_text('nodes = ["my_nodes.py"]\n')
    return tmp_path


def write(folder: Path, file: str, *, name: str = "mine", inputs: str = "{text: str}") -> Path:
    path = folder / file
    path.write_text(FLOW.format(name=name, inputs=inputs))
    return path


def test_the_schema_says_what_an_input_takes_and_not_how_a_form_shows_it(folder: Path) -> None:
    inputs = '{title: {type: int, default: 3, ge: 1, about: how many}, position: \'literal["a", "b"]\'}'
    assert tool_schema(load(write(folder, "a.yaml", inputs=inputs)).plan) == {
        "type": "object",
        "properties": {
            "title": {"type": "integer", "default": 3, "minimum": 1, "description": "how many"},
            "position": {"type": "string", "enum": ["a", "b"]},
        },
        "required": ["position"],
        "additionalProperties": False,
    }


def test_the_schema_of_a_contract_can_be_resolved(folder: Path) -> None:
    schema = tool_schema(load(write(folder, "a.yaml", inputs="{found: 'list[Hit]'}")).plan)
    validator = Draft202012Validator(schema)
    assert validator.is_valid({"found": []})
    assert not validator.is_valid({"found": [{"id": 3}]})


def test_outputs_become_an_object() -> None:
    assert structured_outputs({"a": 1, "b": "x"}) == {"a": 1, "b": "x"}
    assert structured_outputs("text") == {"result": "text"}
    assert structured_outputs(["a"]) == {"result": ["a"]}
    assert structured_outputs(None) == {"result": None}
    assert structured_outputs(Answer(text="yes"))["text"] == "yes"


def test_a_failure_says_where_it_happened_and_what_to_do() -> None:
    assert failure_text(RunError("the model is away", step="answer", hint="start it")) == (
        "step `answer`: the model is away\nhint: start it"
    )
    assert failure_text(LimitError("more than 3 calls")) == "more than 3 calls"
    assert failure_text(SettingsError("`llm` is not bound")) == "`llm` is not bound"


def test_files_with_mistakes_are_all_named_and_nothing_is_served(folder: Path) -> None:
    write(folder, "a.yaml", inputs="{text: strr}")
    write(folder, "b.yaml", inputs="{text: intt}")
    result = run_here("mcp", "a.yaml", "b.yaml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "a.yaml" in result.stderr
    assert "b.yaml" in result.stderr


def test_two_flows_of_one_name_are_refused(folder: Path) -> None:
    write(folder, "a.yaml")
    write(folder, "b.yaml")
    result = run_here("mcp", "a.yaml", "b.yaml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "are both named `mine`" in result.stderr


def test_without_the_package_the_command_says_how_to_get_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "a.yaml")
    monkeypatch.setitem(sys.modules, "fastmcp", None)
    monkeypatch.delitem(sys.modules, "ragbraid.flows.mcp_server", raising=False)
    result = run_here("mcp", "a.yaml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert 'pip install "ragbraid[mcp]"' in result.stderr
