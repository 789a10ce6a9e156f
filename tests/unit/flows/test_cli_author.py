"""`check`, `explain`, `graph`, `nodes`, `schema`: what an author sees."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner, Result

from ragbraid.flows.cli import app

GOOD = """
ragbraid: 1
name: reader
about: Reads and cuts.
inputs:
  folder: {type: path, about: where the documents are}
  size: {type: int, default: 400, ge: 10, le: 2000, about: characters of a chunk}
nodes:
  load: {use: load.files, path: $folder}
  chunk: {use: chunk.recursive, size: $size}
flow: load -> chunk
outputs: $chunk
"""


@pytest.fixture
def good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "good.yaml").write_text(GOOD)
    return tmp_path


def ragbraid(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments, prog_name="ragbraid")


def test_a_good_flow_is_said_to_be_good(good: Path) -> None:
    result = ragbraid("check", "good.yaml")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "good.yaml: ok, 2 steps\n", "")


def test_every_file_is_checked_and_one_mistake_makes_the_exit_code_1(good: Path) -> None:
    (good / "bad.yaml").write_text(GOOD.replace("chunk.recursive", "chunk.recursiv"))
    result = ragbraid("check", "bad.yaml", "good.yaml")
    assert result.exit_code == 1
    assert "good.yaml: ok" in result.stdout
    assert "bad.yaml:10:" in result.stderr
    assert "chunk.recursive" in result.stderr


@pytest.mark.parametrize("broken", ["outer.yaml", "inner.yaml"])
def test_a_run_prints_what_a_check_prints_also_of_a_flow_that_is_used(good: Path, broken: str) -> None:
    flows = {
        "inner.yaml": GOOD,
        "outer.yaml": 'ragbraid: 1\nname: outer\nnodes:\n  use_it: {use: ./inner.yaml, folder: "."}\noutputs: $use_it\n',
    }
    for name, text in flows.items():
        (good / name).write_text(text.replace("outputs: $", "outputs: $un") if name == broken else text)
    checked, ran = ragbraid("check", "outer.yaml"), ragbraid("run", "outer.yaml")
    assert checked.exit_code == ran.exit_code == 1
    assert "outputs: $un" in ran.stderr
    assert ran.stderr == checked.stderr


def test_findings_come_as_json_for_scripts(good: Path) -> None:
    (good / "bad.yaml").write_text(GOOD.replace("$size", "$siz"))
    result = ragbraid("check", "bad.yaml", "--json")
    [finding] = json.loads(result.stdout)
    assert (finding["severity"], finding["file"], finding["line"]) == ("error", "bad.yaml", 10)
    assert result.exit_code == 1


def test_a_warning_fails_only_where_it_is_asked_to(good: Path) -> None:
    (good / "warned.yaml").write_text(GOOD.replace("size: $size", "size: 300"))
    lenient, strict = ragbraid("check", "warned.yaml"), ragbraid("check", "--strict", "warned.yaml")
    assert (lenient.exit_code, strict.exit_code) == (0, 1)
    assert "`size`" in lenient.stderr


@pytest.mark.parametrize("command", ["explain", "graph", "run"])
def test_no_command_goes_on_with_a_broken_file(good: Path, command: str) -> None:
    (good / "bad.yaml").write_text(GOOD.replace("$size", "$siz"))
    result = ragbraid(command, "bad.yaml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "bad.yaml:10:" in result.stderr
    assert "did you mean `$size`" in result.stderr or "`size`" in result.stderr


def test_explain_lists_the_inputs_and_where_each_port_gets_its_value(good: Path) -> None:
    lines = ragbraid("explain", "good.yaml").stdout.splitlines()
    assert lines[0] == "reader: Reads and cuts."
    assert any(
        line.split() == ["size", "int", "400", ">=", "10,", "<=", "2000", "characters", "of", "a", "chunk"]
        for line in lines
    )
    assert any(line.split() == ["folder", "str", "required", "where", "the", "documents", "are"] for line in lines)
    assert "gives ChunkSet" in lines
    assert any(line.split() == ["chunk", "documents", "DocumentSet", "arrow", "$load"] for line in lines)


def test_explain_as_json_holds_the_same(good: Path) -> None:
    told = json.loads(ragbraid("explain", "good.yaml", "--json").stdout)
    assert told["name"] == "reader"
    assert told["outputs"] == {"": "ChunkSet"}
    assert told["inputs"][1] == {
        "name": "size", "type": "int", "required": False, "default": 400, "bounds": ">= 10, <= 2000",
        "about": "characters of a chunk",
    }  # fmt: skip
    assert {"step": "chunk", "port": "size", "type": "int", "origin": "written", "value": "$size"} in told["ports"]


def test_a_flow_is_drawn_in_three_ways_and_told_as_data(good: Path) -> None:
    assert "<- load -> documents" in ragbraid("graph", "good.yaml").stdout
    assert ragbraid("graph", "good.yaml", "--format", "mermaid").stdout.startswith("flowchart LR")
    assert ragbraid("graph", "good.yaml", "--format", "svg", "-o", "out.svg").exit_code == 0
    assert ElementTree.parse(good / "out.svg").getroot().tag.endswith("svg")
    told = json.loads(ragbraid("graph", "good.yaml", "--json").stdout)
    assert {"name": "chunk", "node": "chunk.recursive@1"} in told["steps"]
    assert ("load", "chunk", "documents") in {(e["source"], e["target"], e["port"]) for e in told["edges"]}


def test_a_drawing_that_cannot_be_written_is_a_sentence(good: Path) -> None:
    result = ragbraid("graph", "good.yaml", "-o", "no/such/folder.svg")
    assert result.exit_code == 1
    assert (
        result.stderr == "error: the system refuses to read or write `no/such/folder.svg`: No such file or directory\n"
    )


def test_nodes_are_listed_with_what_they_take_and_give(good: Path) -> None:
    lines = ragbraid("nodes").stdout.splitlines()
    assert any(line.startswith("fuse.rrf ") and "Ranking ... -> Ranking" in line for line in lines)


def test_a_node_is_shown_with_its_settings_and_an_example_that_is_indented(good: Path) -> None:
    page = ragbraid("nodes", "rank.top_k").stdout
    assert "rank.top_k (version 1)" in page
    lines = page.splitlines()
    assert any(line.split()[:2] == ["k", "setting"] for line in lines if line.strip())
    example = lines[lines.index("Example (under `nodes:`):") + 2 :]
    assert example
    assert all(line.startswith("  ") for line in example if line)


def test_a_node_as_json_has_its_ports(good: Path) -> None:
    told = json.loads(ragbraid("nodes", "fuse.rrf", "--json").stdout)
    k = next(port for port in told["ports"] if port["name"] == "k")
    assert (told["output"], k["kind"], k["default"], k["bounds"]) == ("Ranking", "setting", 60.0, ">= 1")


def test_an_unknown_node_names_the_nearest_one(good: Path) -> None:
    result = ragbraid("nodes", "fuse.rff")
    assert result.exit_code == 2
    assert "no node is called `fuse.rff`; did you mean `fuse.rrf`?" in result.stderr


def test_the_schema_knows_every_node(good: Path) -> None:
    text = ragbraid("schema").stdout
    assert json.loads(text)["$schema"].startswith("https://json-schema.org/")
    assert "retrieve.hybrid" in text


def test_an_unknown_command_names_the_nearest_one() -> None:
    result = ragbraid("chek", "x.yaml")
    assert result.exit_code == 2
    assert "there is no command `chek`; did you mean `check`?" in result.stderr


def test_the_help_lists_commands_exit_codes_and_completion() -> None:
    text = ragbraid("--help").stdout
    for word in ("check", "explain", "graph", "nodes", "schema", "run", "ingest", "eval", "kb", "doctor", "dev"):
        assert f"\n  {word} " in text
    assert "2 wrong use" in text
    assert "_RAGBRAID_COMPLETE=bash_source ragbraid" in text


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["ch"], ["plain,check"]),
        (["nodes", "fuse.r"], ["plain,fuse.round_robin", "plain,fuse.rrf"]),
        (["check", "goo"], ["file,goo"]),  # the shell's own completion of files takes over
        (["run", "--eng"], ["plain,--engine"]),
        (["run", "--engine", "in"], ["plain,inline"]),
    ],
)
def test_a_shell_completes_commands_options_files_and_nodes(words: list[str], offered: list[str]) -> None:
    environment = {
        "_RAGBRAID_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["ragbraid", *words]),
        "COMP_CWORD": str(len(words)),
    }
    result = CliRunner(env=environment).invoke(app, [], prog_name="ragbraid")
    assert result.stdout.splitlines() == offered
