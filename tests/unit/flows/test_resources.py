import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import pytest
from pydantic import Field

from ragbraid.dsl.plan import Binding, Body, Deploy, Limits, Literally, Plan, Policy, ResourceBinding, Step
from ragbraid.flows.project import Project, ResourceEntry
from ragbraid.flows.resources import PlanResources, ResourcePool, bind_resource, check_resources, resource_roles
from ragbraid.registry.catalogue import Catalogue
from ragbraid.registry.errors import RagbraidError, ServiceError, SettingsError, SourceSpan
from ragbraid.registry.node import contract_of, node
from ragbraid.registry.providers import RESOURCE_ATTRIBUTE, resource
from ragbraid.registry.resources import Embedder, Reranker

HERE = SourceSpan("qa.yaml", 3, 1, 3, 5)


class Scorer:
    opened: ClassVar[list["Scorer"]] = []

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = settings
        self.closed = False
        Scorer.opened.append(self)

    @property
    def identity(self) -> str:
        return f"scorer-{self.settings['model']}"

    def score(self, query: str, texts: Sequence[str]) -> list[float]:
        return [0.0 for _ in texts]

    def close(self) -> None:
        self.closed = True


@resource("test.scorer", secrets=("api_key",))
def scorer(
    *,
    model: str,
    size: Annotated[int, Field(ge=1)] = 8,
    path: Path | None = None,
    api_key: str | None = None,
) -> Reranker:
    """Score for tests."""
    time.sleep(0.01)
    return Scorer({"model": model, "size": size, "path": path, "api_key": api_key})


@resource("test.broken", secrets=("api_key",))
def broken(*, api_key: str) -> Reranker:
    """Never open."""
    raise OSError(f"cannot connect with {api_key}")


@resource("test.unsettled")
def unsettled(*, url: str) -> Reranker:
    """Refuse."""
    raise SettingsError(f"{url} is no address")


@resource("test.embedder")
def embedder() -> Embedder:
    """Be of another role."""
    raise NotImplementedError


@node("test.rerank")
def rerank(text: str, reranker: Reranker) -> str:
    """Use a reranker."""
    return text


@node("test.maybe")
def maybe(text: str, reranker: Reranker | None = None) -> str:
    """Use a reranker where there is one."""
    return text


@pytest.fixture
def catalogue() -> Catalogue:
    Scorer.opened = []
    made = Catalogue()
    for factory in (scorer, broken, unsettled, embedder):
        made.add_resource(getattr(factory, RESOURCE_ATTRIBUTE))
    return made


def make_plan(
    function: Any = rerank, folder: Path = Path(), role: str = "reranker", **bindings: ResourceBinding
) -> Plan:
    contract = contract_of(function)
    name = next(iter(bindings), role)
    step = Step(
        name="s",
        path="s",
        slot=0,
        node=contract,
        bindings=(Binding("text", Literally("x"), "written", "x"),),
        resources=((contract.resources[0].name, name),),
        output=str,
        needs=frozenset(),
        policy=Policy(),
        span=HERE,
    )
    return Plan(
        name="qa",
        file=str(folder / "qa.yaml"),
        about="",
        inputs=(),
        body=Body(inputs=(), steps=(step,)),
        outputs=(),
        output_types={},
        resources=bindings,
        roles={name: role},
        limits=Limits(),
        deploy=Deploy(),
        hash="0",
    )


def declared(provider: str = "test.scorer", **settings: Any) -> ResourceBinding:
    return ResourceBinding("reranker", provider, settings, HERE)


def project(folder: Path, provider: str = "test.scorer", **settings: Any) -> Project:
    entry = ResourceEntry("reranker", provider, settings, "[resources.reranker] in ragbraid.toml")
    return Project(folder=folder, resources=MappingProxyType({"reranker": entry}))


def test_a_resource_is_opened_once_for_any_number_of_threads(tmp_path: Path, catalogue: Catalogue) -> None:
    resources = PlanResources(make_plan(), project(tmp_path, model="a"), catalogue, ResourcePool())
    barrier = threading.Barrier(8)

    def get(_: int) -> Any:
        barrier.wait()
        return resources.get("reranker", "reranker")

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(get, range(8)))
    assert len(Scorer.opened) == 1
    assert all(one is Scorer.opened[0] for one in found)


def test_equal_settings_share_a_resource_between_flows_and_other_settings_do_not(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    pool = ResourcePool()

    def get(**settings: Any) -> Any:
        return PlanResources(make_plan(), project(tmp_path, **settings), catalogue, pool).get("reranker", "reranker")

    assert get(model="a", size=2) is get(size=2, model="a")
    assert get(model="a", size=3) is not get(model="a", size=2)


def test_the_flow_wins_over_the_project(tmp_path: Path, catalogue: Catalogue) -> None:
    plan = make_plan(folder=tmp_path, reranker=declared(model="flow"))
    found = PlanResources(plan, project(tmp_path, model="project"), catalogue, ResourcePool()).get(
        "reranker", "reranker"
    )
    assert found.settings["model"] == "flow"


def test_a_relative_path_starts_from_where_it_is_written(tmp_path: Path, catalogue: Catalogue) -> None:
    flows = tmp_path / "flows"
    flows.mkdir()
    pool = ResourcePool()
    of_project = PlanResources(make_plan(), project(tmp_path, model="a", path="x"), catalogue, pool)
    of_flow = PlanResources(
        make_plan(folder=flows, reranker=declared(model="a", path="x")), Project(folder=tmp_path), catalogue, pool
    )
    assert of_project.get("reranker", "reranker").settings["path"] == tmp_path / "x"
    assert of_flow.get("reranker", "reranker").settings["path"] == flows / "x"


def test_secrets_are_resolved_when_a_resource_is_opened_and_not_before(
    tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RB_TEST_KEY", raising=False)
    plan, bound_to = make_plan(), project(tmp_path, model="a", api_key="${env.RB_TEST_KEY}")
    assert check_resources(plan, bound_to, catalogue) == []
    assert check_resources(plan, bound_to, catalogue, secrets=True) == [
        "[resources.reranker] in ragbraid.toml: the environment variable RB_TEST_KEY is not set"
    ]
    resources = PlanResources(plan, bound_to, catalogue, ResourcePool())
    with pytest.raises(SettingsError, match="the environment variable RB_TEST_KEY is not set"):
        resources.get("reranker", "reranker")
    monkeypatch.setenv("RB_TEST_KEY", "sk-8472-abc")
    assert resources.get("reranker", "reranker").settings["api_key"] == "sk-8472-abc"


def test_a_secret_that_stands_literally_in_the_file_does_not_reach_a_message(
    tmp_path: Path, catalogue: Catalogue
) -> None:
    bound_to = project(tmp_path, "test.broken", api_key="sk-literal-5678")
    with pytest.raises(ServiceError, match=r"OSError: cannot connect with \*\*\*"):
        PlanResources(make_plan(), bound_to, catalogue, ResourcePool()).get("reranker", "reranker")


def test_a_provider_that_fails_gives_one_sentence_without_its_secret(
    tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RB_TEST_KEY", "sk-99-very-secret")
    resources = PlanResources(
        make_plan(), project(tmp_path, "test.broken", api_key="${env.RB_TEST_KEY}"), catalogue, ResourcePool()
    )
    with pytest.raises(ServiceError) as caught:
        resources.get("reranker", "reranker")
    assert str(caught.value) == (
        "[resources.reranker] in ragbraid.toml: `test.broken` cannot be opened: "
        "OSError: cannot connect with ${env.RB_TEST_KEY}"
    )
    assert caught.value.__cause__ is None


def test_a_providers_own_sentence_passes_through_and_is_not_remembered(tmp_path: Path, catalogue: Catalogue) -> None:
    pool = ResourcePool()
    resources = PlanResources(make_plan(), project(tmp_path, "test.unsettled", url="x"), catalogue, pool)
    for _ in range(2):
        with pytest.raises(SettingsError, match="x is no address"):
            resources.get("reranker", "reranker")


@pytest.mark.parametrize(
    ("provider", "settings", "message", "hint"),
    [
        ("test.scorre", {}, "there is no resource provider `test.scorre`; for the role reranker: ", "`test.scorer`"),
        ("test.embedder", {}, "`test.embedder` serves the role embedder, but `reranker` is used as reranker", None),
        ("test.scorer", {"model": "a", "sise": 2}, "`test.scorer` has no setting `sise`; it has `model`", "`size`"),
        ("test.scorer", {}, "`test.scorer` needs the setting `model`", None),
        ("test.scorer", {"model": "a", "size": 0}, "setting `size`: Input should be greater than or equal to 1", None),
        ("test.scorer", {"model": ["a"]}, "setting `model`: Input should be a valid string", None),
    ],
)
def test_a_wrong_binding_is_a_sentence_before_anything_opens(
    tmp_path: Path, catalogue: Catalogue, provider: str, settings: dict[str, Any], message: str, hint: str | None
) -> None:
    bound_to = project(tmp_path, provider, **settings)
    with pytest.raises(SettingsError) as caught:
        bind_resource("reranker", "reranker", make_plan(), bound_to, catalogue)
    assert str(caught.value).startswith("[resources.reranker] in ragbraid.toml: ")
    assert message in str(caught.value)
    assert (hint or "") in (caught.value.hint or "")
    assert len(check_resources(make_plan(), bound_to, catalogue)) == 1
    assert Scorer.opened == []


def test_a_refused_setting_is_never_shown(
    tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RB_TEST_SIZE", "sk-not-a-number")
    resources = PlanResources(
        make_plan(), project(tmp_path, model="a", size="${env.RB_TEST_SIZE}"), catalogue, ResourcePool()
    )
    with pytest.raises(SettingsError, match="setting `size`: Input should be a valid integer") as caught:
        resources.get("reranker", "reranker")
    assert "sk-not" not in str(caught.value)


def test_a_role_without_a_default_says_what_to_bind(tmp_path: Path, catalogue: Catalogue) -> None:
    (sentence,) = check_resources(make_plan(), Project(folder=tmp_path), catalogue)
    assert sentence.startswith("the flow `qa` needs the resource `reranker` (reranker), and nothing is bound to it")
    assert "write `[resources.reranker]`" in sentence


def test_a_step_that_can_do_without_asks_for_no_binding(tmp_path: Path, catalogue: Catalogue) -> None:
    plan, unbound = make_plan(maybe), Project(folder=tmp_path)
    assert check_resources(plan, unbound, catalogue) == []
    assert PlanResources(plan, unbound, catalogue, ResourcePool()).get("reranker", "reranker") is None
    bound = PlanResources(plan, project(tmp_path, model="a"), catalogue, ResourcePool())
    assert isinstance(bound.get("reranker", "reranker"), Scorer)


def test_the_compiler_learns_the_names_that_the_project_binds(tmp_path: Path, catalogue: Catalogue) -> None:
    assert resource_roles(project(tmp_path, model="a"), catalogue) == {"reranker": "reranker"}
    assert resource_roles(project(tmp_path, "test.nothing"), catalogue) == {}


def test_closing_closes_everything_that_was_opened_and_opens_anew_after(tmp_path: Path, catalogue: Catalogue) -> None:
    pool = ResourcePool()
    resources = PlanResources(make_plan(), project(tmp_path, model="a"), catalogue, pool)
    first = resources.get("reranker", "reranker")
    pool.close()
    assert first.closed
    assert resources.get("reranker", "reranker") is not first


def test_one_that_cannot_be_closed_is_told_and_the_others_are_closed(tmp_path: Path, catalogue: Catalogue) -> None:
    pool = ResourcePool()

    def get(model: str) -> Any:
        return PlanResources(make_plan(), project(tmp_path, model=model), catalogue, pool).get("reranker", "reranker")

    first, second = get("a"), get("b")

    def fail() -> None:
        raise OSError("disk is gone")

    first.close = fail
    with pytest.raises(RagbraidError, match="resources could not be closed: Scorer: disk is gone"):
        pool.close()
    assert second.closed


def test_a_fingerprint_names_provider_and_identity_and_no_secret(
    tmp_path: Path, catalogue: Catalogue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RB_TEST_KEY", "sk-8472-abc")
    resources = PlanResources(
        make_plan(), project(tmp_path, model="a", api_key="${env.RB_TEST_KEY}"), catalogue, ResourcePool()
    )
    assert resources.fingerprint("reranker", "reranker") == "test.scorer:scorer-a"


@pytest.mark.parametrize("role", ["kb", "embedder", "token_embedder", "sparse"])
def test_every_other_role_has_an_embedded_default(tmp_path: Path, role: str) -> None:
    from ragbraid.registry.catalogue import installed_catalogue

    bound = bind_resource(role, role, make_plan(), Project(folder=tmp_path), installed_catalogue())
    assert bound.provider.role == role
    assert bound.folder == tmp_path
