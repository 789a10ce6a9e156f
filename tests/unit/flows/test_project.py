from pathlib import Path

import pytest

from ragbraid.flows.project import Project, find_project_file, load_project, project_catalogue
from ragbraid.registry.errors import ContractError, SettingsError

NODES = '''
from ragbraid import node


@node("mine.shout")
def shout(text: str) -> str:
    """Say it louder."""
    return text.upper()
'''


@pytest.fixture(autouse=True)
def _no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAGBRAID_PROFILE", raising=False)


def write(folder: Path, text: str) -> Path:
    file = folder / "ragbraid.toml"
    file.write_text(text, encoding="utf-8")
    return file


def mistake(folder: Path, text: str, **options: str) -> SettingsError:
    write(folder, text)
    with pytest.raises(SettingsError) as caught:
        load_project(folder, **options)
    return caught.value


def test_the_project_file_is_found_above_the_flow_file(tmp_path: Path) -> None:
    file = write(tmp_path, "")
    (tmp_path / "a" / "b").mkdir(parents=True)
    assert find_project_file(tmp_path / "a" / "b") == file
    project = load_project(tmp_path / "a" / "b" / "qa.yaml")
    assert (project.file, project.folder) == (file, tmp_path)


def test_without_a_project_file_the_flow_files_folder_is_the_project(tmp_path: Path) -> None:
    assert load_project(tmp_path / "qa.yaml") == Project(folder=tmp_path)


def test_a_given_project_file_or_folder_wins_over_the_nearest(tmp_path: Path) -> None:
    write(tmp_path, "")
    other = tmp_path / "other"
    other.mkdir()
    file = write(other, "")
    assert load_project(tmp_path, project=other).file == file
    assert load_project(tmp_path, project=file).file == file


def test_a_given_project_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there is no project file"):
        load_project(tmp_path, project=tmp_path / "nowhere.toml")


PROFILES = """
profile = "laptop"

[resources.kb]
use = "qdrant.embedded"
path = "data/kb"

[resources.llm]
use = "openai.chat"
model = "small"

[profiles.laptop]

[profiles.production.resources.kb]
use = "qdrant.server"
url = "${env.QDRANT_URL}"

[profiles.production.resources.llm]
model = "large"
"""


def test_the_files_own_profile_is_the_default(tmp_path: Path) -> None:
    write(tmp_path, PROFILES)
    project = load_project(tmp_path)
    assert project.profile == "laptop"
    assert project.profiles == ("laptop", "production")
    kb = project.resources["kb"]
    assert (kb.provider, dict(kb.settings)) == ("qdrant.embedded", {"path": "data/kb"})


def test_a_profile_replaces_what_it_names_and_changes_single_settings_of_the_rest(tmp_path: Path) -> None:
    write(tmp_path, PROFILES)
    project = load_project(tmp_path, profile="production")
    kb, llm = project.resources["kb"], project.resources["llm"]
    assert (kb.provider, dict(kb.settings)) == ("qdrant.server", {"url": "${env.QDRANT_URL}"})
    assert (llm.provider, dict(llm.settings)) == ("openai.chat", {"model": "large"})
    assert kb.origin == f"[profiles.production.resources.kb] in {tmp_path / 'ragbraid.toml'}"


def test_the_environment_chooses_the_profile_and_an_argument_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, PROFILES)
    monkeypatch.setenv("RAGBRAID_PROFILE", "production")
    assert load_project(tmp_path).profile == "production"
    assert load_project(tmp_path, profile="laptop").profile == "laptop"


def test_a_missing_profile_lists_those_that_exist(tmp_path: Path) -> None:
    error = mistake(tmp_path, PROFILES, profile="prodcution")
    assert f"{tmp_path / 'ragbraid.toml'} has no profile `prodcution`; it has `laptop`, `production`" in str(error)
    assert error.hint == "did you mean `production`?"


def test_a_profile_without_a_project_file_says_where_to_write_it(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"there is no profile `x`: no ragbraid\.toml in"):
        load_project(tmp_path, profile="x")


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("recources = {}", "unknown key `recources`", "did you mean `resources`?"),
        ("[profiles.a]\nresource = 1", "unknown key `profiles.a.resource`", "did you mean `resources`?"),
        ("nodes = 'x.py'", "`nodes` must be a list of files", None),
        ("nodes = ['x.py']", "which does not exist", None),
        ("resources = 3", "`resources` must be a table, written as [resources]", None),
        ("[resources]\nkb = 'x'", "`resources.kb` must be a table, written as [resources.kb]", None),
        ("[resources.kb]\npath = 'x'", "[resources.kb] does not say what stands behind `kb`", 'write `use = "qdrant'),
        ("[resources.kb]\nuse = 3", "`use` of [resources.kb] must be a text", None),
        ("[profiles.a.resources.kb]\npath = 'x'", "[profiles.a.resources.kb] does not say", 'write `use = "qdrant'),
        ("profile = 3", "`profile` must be a text", None),
        ("profile = 'x'", "has no profile `x`; it has none", None),
        ("a = = 1", "is not TOML", None),
    ],
)
def test_a_mistake_is_a_sentence_with_the_files_name(tmp_path: Path, text: str, message: str, hint: str | None) -> None:
    error = mistake(tmp_path, text)
    assert str(tmp_path / "ragbraid.toml") in str(error)
    assert message in str(error)
    assert (error.hint or "").startswith(hint or "")


def test_a_file_that_is_not_utf8_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "ragbraid.toml").write_bytes(b"# \xff\xfe")
    with pytest.raises(SettingsError, match="is not UTF-8 text"):
        load_project(tmp_path)


def test_local_nodes_are_found_beside_the_installed_ones(tmp_path: Path) -> None:
    (tmp_path / "my_nodes.py").write_text(NODES)
    write(tmp_path, 'nodes = ["my_nodes.py"]')
    catalogue = project_catalogue(load_project(tmp_path))
    mine = catalogue.find_node("mine.shout")
    assert mine is not None
    assert mine.function("hey") == "HEY"
    assert catalogue.find_node("fuse.rrf") is not None


def test_local_nodes_stay_in_their_project(tmp_path: Path) -> None:
    (tmp_path / "my_nodes.py").write_text(NODES)
    write(tmp_path, 'nodes = ["my_nodes.py"]')
    project_catalogue(load_project(tmp_path))
    other = tmp_path / "other"
    other.mkdir()
    write(other, "")
    assert project_catalogue(load_project(other)).find_node("mine.shout") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def f(:\n", r"my_nodes\.py:1 cannot be loaded: SyntaxError"),
        ("\n\nimport no_such_module_of_anybody\n", r"my_nodes\.py:3 cannot be loaded: ModuleNotFoundError"),
        ("x = 1\nraise ValueError('boom')\n", r"my_nodes\.py:2 cannot be loaded: ValueError: boom"),
    ],
)
def test_a_local_module_that_cannot_be_loaded_says_where(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "my_nodes.py").write_text(text)
    write(tmp_path, 'nodes = ["my_nodes.py"]')
    with pytest.raises(SettingsError, match=message):
        project_catalogue(load_project(tmp_path))


def test_a_wrongly_declared_local_node_is_its_authors_error(tmp_path: Path) -> None:
    (tmp_path / "my_nodes.py").write_text(NODES.replace('"""Say it louder."""', "..."))
    write(tmp_path, 'nodes = ["my_nodes.py"]')
    with pytest.raises(ContractError, match="a node needs a docstring"):
        project_catalogue(load_project(tmp_path))
