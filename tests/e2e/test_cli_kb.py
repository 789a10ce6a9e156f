"""`ragbraid kb`: where it looks, what things are called, and what it asks before it deletes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cli_parts import EXAMPLES, run_here
from click.testing import Result
from graph_parts import open_kb
from index_parts import Corpus, HashEmbedder, WordSparse, make_set

from ragbraid.nodes.index import upsert
from ragbraid.nodes.store_edge import EdgeStore


def fill(folder: Path, name: str = "kb", corpus: Corpus | None = None) -> None:
    base = open_kb(EdgeStore(folder, name), name, EdgeStore(folder, name + ".graph"))
    chunks = make_set(corpus or {"a.md": ["one", "two"]})
    upsert(chunks, kb=base, embedder=HashEmbedder(), sparse=WordSparse())
    base.close()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("RAGBRAID_PROFILE", raising=False)
    return tmp_path


def add_flow(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text((EXAMPLES / name).read_text(encoding="utf-8"), encoding="utf-8")


def rows(*more: str) -> list[tuple[str, str]]:
    listed = json.loads(run_here("kb", "list", "--json", *more).stdout)
    return [(row["name"], row["resource"]) for row in listed]


# -- what things are called --------------------------------------------------------------------------------------------


def test_a_knowledge_base_has_one_name_everywhere(here: Path) -> None:
    (here / "ragbraid.toml").write_text('[resources.notes]\nuse = "qdrant.embedded"\npath = "data"\n')
    fill(here / "data", "notes")
    assert rows() == [("kb", "kb"), ("notes", "notes")]
    shown = json.loads(run_here("kb", "show", "notes", "--json").stdout)
    assert shown["info"]["name"] == "notes"
    assert run_here("kb", "verify", "notes").stdout == "notes: all is well\n"
    assert run_here("kb", "drop", "notes", "--yes").stdout == "dropped `notes` with 1 documents and 2 chunks\n"


def test_a_knowledge_base_with_a_name_of_its_own_is_found_by_that_and_by_its_resource(here: Path) -> None:
    (here / "ragbraid.toml").write_text('[resources.kb]\nuse = "qdrant.embedded"\npath = "data"\nname = "handbook"\n')
    fill(here / "data", "handbook")
    assert rows() == [("handbook", "kb")]
    for name in ("kb", "handbook"):
        assert run_here("kb", "verify", name).stdout == "handbook: all is well\n"
    header, row = run_here("kb", "list").stdout.splitlines()
    assert header.split()[:3] == ["NAME", "RESOURCE", "PROVIDER"]
    assert row.split()[:5] == ["handbook", "kb", "qdrant.embedded", "1", "2"]
    refused = run_here("kb", "show", "handbok")
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "the project binds no resource `handbok`" in refused.stderr
    assert run_here("kb", "drop", "--yes").stdout == "dropped `handbook` with 1 documents and 2 chunks\n"


def test_a_name_that_two_knowledge_bases_have_asks_for_the_resource(here: Path) -> None:
    entry = '[resources.{0}]\nuse = "qdrant.embedded"\npath = "{0}"\nname = "same"\n'
    (here / "ragbraid.toml").write_text(entry.format("one") + entry.format("two"))
    fill(here / "two", "same")
    refused = run_here("kb", "show", "same")
    assert refused.exit_code == 1
    assert "2 knowledge bases are called `same`; name the resource instead: `one` or `two`" in refused.stderr
    assert run_here("kb", "verify", "two").stdout == "same: all is well\n"


# -- where it looks ----------------------------------------------------------------------------------------------------


def test_the_project_file_is_found_from_a_folder_below(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "ragbraid.toml").write_text("")
    fill(here / ".ragbraid/kb")
    (here / "deep/down").mkdir(parents=True)
    monkeypatch.chdir(here / "deep/down")
    assert run_here("kb", "verify").stdout == "kb: all is well\n"


@pytest.mark.parametrize("command", [("list",), ("show",), ("verify", "notes"), ("drop",)])
def test_flows_in_a_folder_below_are_named_with_the_command_to_type(here: Path, command: tuple[str, ...]) -> None:
    for folder in ("a_flows", "my flows"):
        for name in ("dense_only.yaml", "hybrid_qa.yaml", "ingest.yaml"):
            add_flow(here / folder, name)
    (here / "a_flows/compose.yaml").write_text("services: {}\n")
    fill(here / "my flows/.ragbraid/kb")
    result = run_here("kb", *command)
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"error: there is no ragbraid.toml in {here} or above it, and no knowledge base has been filled here; "
        "flows lie in my flows\n"
        f"  hint: to look where they look, type: ragbraid kb {' '.join(command)} --flow 'my flows/ingest.yaml'\n"
    )


def test_the_command_that_is_named_works(here: Path) -> None:
    add_flow(here / "flows", "ingest.yaml")
    fill(here / "flows/.ragbraid/kb")
    assert "--flow flows/ingest.yaml" in run_here("kb", "list").stderr
    assert rows("--flow", "flows/ingest.yaml") == [("kb", "kb")]


def test_flows_in_this_folder_that_have_filled_nothing_are_named_with_the_command_that_does(here: Path) -> None:
    for name in ("dense_only.yaml", "ingest.yaml"):
        add_flow(here, name)
    result = run_here("kb", "list")
    assert result.exit_code == 1
    assert "  hint: to fill one, type: ragbraid ingest ingest.yaml\n" in result.stderr
    fill(here / ".ragbraid/kb")
    assert rows() == [("kb", "kb")]


def test_without_project_and_flows_the_place_that_was_looked_at_is_named(here: Path) -> None:
    result = run_here("kb", "list")
    assert result.exit_code == 0
    assert f"there is no knowledge base `kb` at {here}/.ragbraid/kb/kb" in result.stderr


# -- what it asks ------------------------------------------------------------------------------------------------------

# Runs a command on a terminal of its own, whose keys are this process's standard input.
TERMINAL = """
import os, pty, sys
sys.exit(os.waitstatus_to_exitcode(pty.spawn([sys.executable, "-m", "ragbraid.flows.cli", *sys.argv[1:]])))
"""


@contextmanager
def terminal(*arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", TERMINAL, *arguments]
    environment = {**os.environ, "TERM": "dumb"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
    ) as process:
        yield process


CTRL_C, CTRL_D = b"\x03", b"\x04"


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        return False
    return True


def press(keys: bytes, *arguments: str) -> tuple[int, str, str]:
    """Answer the question of a command; return the exit code, the question, and what came after it."""
    with terminal(*arguments) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        asked = b""
        while not asked.endswith(b"[y/N]: "):
            byte = os.read(process.stdout.fileno(), 1)
            assert byte, asked.decode()
            asked += byte
        process.stdin.write(keys)
        process.stdin.flush()
        while keys == CTRL_C and not has_ended(process):
            # Python notices a signal that came just before it began to wait for a line with the next one only.
            process.stdin.write(keys)
            process.stdin.flush()
        told = process.stdout.read()
        process.stdin.close()
    return process.returncode, asked.decode(), told.decode().replace("\r\n", "\n")


QUESTION = "Delete `kb` with 1 documents and 2 chunks? [y/N]: "


@pytest.mark.parametrize("keys", [b"y\n", b"yes\n", b"what\ny\n"])
def test_drop_asks_and_deletes_when_told_to(here: Path, keys: bytes) -> None:
    fill(here / ".ragbraid/kb")
    code, asked, told = press(keys, "kb", "drop")
    assert (code, asked) == (0, QUESTION)
    assert told.endswith("dropped `kb` with 1 documents and 2 chunks\n")
    assert not (here / ".ragbraid/kb/kb").exists()


@pytest.mark.parametrize(
    ("keys", "code", "said"),
    [
        (b"n\n", 1, "nothing was deleted\n"),
        (b"\n", 1, "nothing was deleted\n"),
        (CTRL_D, 1, "nothing was deleted\n"),
        (CTRL_C, 130, "stopped; nothing was deleted\n"),
    ],
    ids=["no", "enter", "ctrl-d", "ctrl-c"],
)
def test_drop_deletes_nothing_when_it_is_not_told_to(here: Path, keys: bytes, code: int, said: str) -> None:
    fill(here / ".ragbraid/kb")
    ended, asked, told = press(keys, "kb", "drop")
    assert (ended, asked) == (code, QUESTION)
    assert told.endswith(f"\n{said}")
    assert run_here("kb", "verify").stdout == "kb: all is well\n"


def test_drop_asks_before_it_deletes_a_damaged_knowledge_base(here: Path) -> None:
    fill(here / ".ragbraid/kb")
    folder = here / ".ragbraid/kb/kb"
    (folder / "edge_config.json").write_bytes(b"\x00")
    code, asked, _ = press(b"n\n", "kb", "drop")
    assert (code, folder.exists()) == (1, True)
    assert asked == f"`kb` is damaged and cannot be opened. Delete the folder {folder}? [y/N]: "
    assert press(b"y\n", "kb", "drop")[0] == 0
    assert not folder.exists()


def test_drop_refuses_where_there_is_nobody_to_ask(here: Path) -> None:
    fill(here / ".ragbraid/kb")
    command = [sys.executable, "-m", "ragbraid.flows.cli", "kb", "drop"]
    done = subprocess.run(command, input="y\n", capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "there is nobody to ask whether to delete it; say so with --yes" in done.stderr
    result: Result = run_here("kb", "drop", "--yes")
    assert result.exit_code == 0
