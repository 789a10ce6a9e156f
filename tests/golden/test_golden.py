"""Flow files and what the checker says of them: a new case is a new file; `--update-golden` writes what is printed."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from golden_parts import golden_catalogue

import ragbraid.dsl.codes
from ragbraid.dsl.codes import CODES
from ragbraid.dsl.compile import check_file, load_plan
from ragbraid.dsl.draw import draw_mermaid, draw_text
from ragbraid.dsl.explain import explain_plan
from ragbraid.dsl.render import render_findings
from ragbraid.registry.catalogue import Catalogue

HERE = Path(__file__).parent


CODE = re.compile(r"\bRB\d{3}\b")


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    return golden_catalogue()


def compare(path: Path, text: str, update: bool) -> None:
    if update:
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("path", sorted((HERE / "bad").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_is_printed_for_a_broken_file(
    path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    monkeypatch.chdir(path.parent)
    checked = check_file(path.name, catalogue)
    assert checked.findings
    printed = render_findings(checked.findings, checked.texts, colour=False).rstrip() + "\n"
    compare(path.with_suffix(".txt"), printed.replace(str(HERE), "."), pytestconfig.getoption("update_golden"))
    code = path.stem.split("_")[0].upper()
    if code.startswith("RB"):
        assert [finding.code for finding in checked.findings] == [code], "one mistake, one finding"
        assert (checked.plan is None) == (checked.findings[0].severity == "error")


@pytest.mark.parametrize("path", sorted((HERE / "ok").glob("*.yaml")), ids=lambda path: path.stem)
def test_where_the_ports_of_a_good_file_get_their_values(
    path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch, pytestconfig: pytest.Config
) -> None:
    monkeypatch.chdir(path.parent)
    checked = check_file(path.name, catalogue)
    assert checked.findings == ()
    assert checked.plan is not None
    explained = explain_plan(checked.plan).replace(str(HERE), ".") + "\n"
    compare(path.with_suffix(".txt"), explained, pytestconfig.getoption("update_golden"))


@pytest.mark.parametrize(("suffix", "draw"), [(".graph", draw_text), (".mmd", draw_mermaid)])
def test_how_blocks_are_drawn(
    suffix: str,
    draw: Callable[..., str],
    catalogue: Catalogue,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
) -> None:
    monkeypatch.chdir(HERE / "ok")
    drawn = draw(load_plan("blocks.yaml", catalogue), types=True)
    compare(HERE / "ok" / f"blocks{suffix}", drawn, pytestconfig.getoption("update_golden"))


def test_every_code_has_a_broken_file() -> None:
    printed = {code for path in (HERE / "bad").glob("*.txt") for code in CODE.findall(path.read_text(encoding="utf-8"))}
    assert printed == set(CODES)


def test_every_code_in_the_compiler_is_registered() -> None:
    room = Path(ragbraid.dsl.codes.__file__).parent
    used = {code for path in room.glob("*.py") for code in CODE.findall(path.read_text(encoding="utf-8"))}
    assert used == set(CODES)


def test_no_broken_file_is_without_its_text() -> None:
    files = {path.stem for path in (HERE / "bad").glob("*.yaml")}
    assert files == {path.stem for path in (HERE / "bad").glob("*.txt")}
