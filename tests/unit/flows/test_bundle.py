import shutil
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from ragbraid.flows.bundle import FOLDER_VARIABLE, Bundle, differences_here, load_with_bundle, open_bundle
from ragbraid.registry.errors import SettingsError

QA = """
ragbraid: 1
name: qa
inputs: {question: str}
nodes:
  answer: {use: mine.greet, name: $question, greeting: ./hello.jinja}
  again: {use: ./inner.yaml, name: $answer}
outputs: $again
"""
INNER = """
ragbraid: 1
name: inner
inputs: {name: str}
nodes:
  greet: {use: mine.greet, name: $name}
outputs: $greet
"""
SEARCH = """
ragbraid: 1
name: search
inputs: {question: str, folder: path = docs}
nodes:
  find: {use: retrieve.dense, query: $question}
outputs: {found: $find, folder: $folder}
"""
NODES = '''
from typing import Annotated

from ragbraid import node
from ragbraid.registry.node import PromptFile


@node("mine.greet")
def greet(name: str, *, greeting: Annotated[str, PromptFile(("name",))] = "Good day") -> str:
    """Greet somebody."""
    return greeting.strip() + " " + name
'''


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    for name, text in {
        "qa.yaml": QA,
        "inner.yaml": INNER,
        "search.yaml": SEARCH,
        "hello.jinja": "Hello",
        "my_nodes.py": NODES,
        "ragbraid.toml": 'nodes = ["my_nodes.py"]\n',
    }.items():
        (folder / name).write_text(text)
    return folder


def sent(folder: Path, name: str) -> Bundle:
    """What arrives of a flow where it runs."""
    return Bundle.unpack(load_with_bundle(folder / name)[1].pack())


def test_a_flow_runs_as_it_was_though_its_files_have_changed_since(folder: Path) -> None:
    flow, _ = load_with_bundle(folder / "qa.yaml")
    bundle = sent(folder, "qa.yaml")
    assert sorted(bundle.files) == ["hello.jinja", "inner.yaml", "qa.yaml"]
    for name in ("qa.yaml", "inner.yaml", "hello.jinja"):
        (folder / name).write_text("changed")
    opened = open_bundle(bundle)
    assert opened.plan.hash == bundle.version == flow.plan.hash
    assert opened.run(question="world") == "Good day Hello world"


def test_a_flow_that_is_registered_under_a_name_travels_too(folder: Path) -> None:
    (folder / "ragbraid.toml").write_text('nodes = ["my_nodes.py"]\nflows = {welcome = "inner.yaml"}\n')
    (folder / "qa.yaml").write_text(QA.replace("./inner.yaml", "welcome"))
    bundle = sent(folder, "qa.yaml")
    (folder / "inner.yaml").unlink()
    assert open_bundle(bundle).run(question="world") == "Good day Hello world"


def test_nothing_but_what_was_sent_is_read_from_the_disk(folder: Path) -> None:
    bundle = sent(folder, "qa.yaml")
    left_out = replace(bundle, files={name: text for name, text in bundle.files.items() if name != "hello.jinja"})
    with pytest.raises(Exception, match="did not travel with the deployment"):
        open_bundle(left_out)


def test_what_the_project_binds_travels_with_references_and_without_what_is_not_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "ragbraid.toml").write_text("""
[resources.embedder]
use = "openai.embedder"
base_url = "http://example.org/v1"
model = "m"
api_key = "${env.RB_TEST_KEY}"

[resources.llm]
use = "openai.chat"
base_url = "http://example.org/v1"
model = "unused"

[profiles.production.resources.embedder]
model = "large"
""")
    monkeypatch.setenv("RB_TEST_KEY", "a-secret-that-stays-here")
    monkeypatch.setenv("RAGBRAID_PROFILE", "production")
    bundle = sent(folder, "search.yaml")
    assert bundle.profile == "production"
    assert list(bundle.resources) == ["embedder"]
    assert bundle.resources["embedder"]["settings"]["model"] == "large"
    assert bundle.resources["embedder"]["settings"]["api_key"] == "${env.RB_TEST_KEY}"
    monkeypatch.delenv("RAGBRAID_PROFILE")
    assert open_bundle(bundle).project.resources["embedder"].settings["model"] == "large"


@pytest.mark.parametrize(
    ("setting", "named"),
    [('api_key = "sk-literal"', "api_key"), ('base_url = "https://me:word@example.org/v1"', "base_url")],
)
def test_a_secret_that_stands_in_the_project_file_is_refused_and_not_told(
    folder: Path, setting: str, named: str
) -> None:
    lines = {"base_url": 'base_url = "http://example.org/v1"', "api_key": "", named: setting}
    binding = '[resources.embedder]\nuse = "openai.embedder"\nmodel = "m"\n' + "\n".join(lines.values())
    (folder / "ragbraid.toml").write_text(binding)
    with pytest.raises(SettingsError, match=f"the secret in `{named}` would be stored on the Prefect server") as caught:
        load_with_bundle(folder / "search.yaml")
    assert "sk-literal" not in str(caught.value)
    assert "word" not in str(caught.value)


def test_a_local_module_does_not_travel_and_its_absence_is_a_sentence(folder: Path) -> None:
    bundle = sent(folder, "qa.yaml")
    assert list(bundle.modules) == ["my_nodes.py"]
    (folder / "my_nodes.py").unlink()
    with pytest.raises(SettingsError, match=r"needs the nodes of my_nodes\.py, which did not travel with it"):
        open_bundle(bundle)


def test_what_differs_from_where_the_flow_was_deployed_is_told(folder: Path) -> None:
    bundle = sent(folder, "qa.yaml")
    assert differences_here(bundle) == []
    (folder / "my_nodes.py").write_text(NODES + "\n# changed\n")
    module, package = differences_here(replace(bundle, ragbraid="0.0.1"))
    assert module.startswith(f"{folder / 'my_nodes.py'} is not as it was when the flow was deployed")
    assert package.startswith("the flow was deployed by ragbraid 0.0.1 and runs on ragbraid ")


def test_a_module_that_the_flow_does_not_use_is_not_asked_for(folder: Path) -> None:
    bundle = sent(folder, "search.yaml")
    (folder / "my_nodes.py").unlink()
    assert open_bundle(bundle).name == "search"


def test_relative_paths_start_from_the_folder_that_the_machine_names(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = sent(folder, "search.yaml")
    assert open_bundle(bundle).plan.inputs[1].default == str(folder / "docs")
    shutil.rmtree(folder)
    with pytest.raises(
        SettingsError, match=r"was deployed from .*, which is not here, and `path` .* lies in it"
    ) as caught:
        open_bundle(bundle)
    assert FOLDER_VARIABLE in (caught.value.hint or "")
    other = tmp_path / "elsewhere"
    other.mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(other))
    opened = open_bundle(bundle)
    assert opened.project.folder == other
    assert opened.plan.inputs[1].default == str(other / "docs")


def test_what_is_too_large_to_travel_is_refused_with_its_size(folder: Path) -> None:
    bundle = sent(folder, "qa.yaml")
    huge = Random(0).randbytes(100_000).hex()
    with pytest.raises(SettingsError, match=r"qa\.yaml and the files that it uses are too large to travel"):
        replace(bundle, files={**bundle.files, "hello.jinja": huge}).pack()


@pytest.mark.parametrize("packed", ["", "nonsense!", "AAAA"])
def test_what_is_no_bundle_is_a_sentence(packed: str) -> None:
    with pytest.raises(SettingsError, match="what came with the deployment is no flow"):
        Bundle.unpack(packed)
