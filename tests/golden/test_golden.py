"""Flow files and what the checker says of them: a new case is a new file; `--update-golden` writes what is printed."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from ragbraid.dsl.compile import check_file
from ragbraid.dsl.explain import explain_plan
from ragbraid.dsl.render import render_findings
from ragbraid.registry.catalogue import Catalogue

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def catalogue() -> Catalogue:
    spec = spec_from_file_location("golden_nodes", HERE / "golden_nodes.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["golden_nodes"] = module
    spec.loader.exec_module(module)
    made = Catalogue()
    made.add_module(module)
    return made


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
        assert (checked.plan is None) == (not code.startswith("RB9"))


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
