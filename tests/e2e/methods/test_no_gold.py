"""What an evaluation knows of the expected answer never reaches the model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from method_parts import cited, method, says

from ragbraid.flows.evaluate import evaluate_flow
from ragbraid.flows.questions import Question


@pytest.mark.parametrize("name", ["iter_retgen", "ircot", "self_ask", "multi_query", "hyde"])
def test_an_evaluation_never_shows_the_expected_answer_to_the_model(tmp_path: Path, name: str) -> None:
    """PIKE-RAG tells the model to answer yes or no where the expected answer is one of these."""
    script = [
        says("answer", cited("It does", 1)),
        says("next_thought", {"thought": "", "answer": None}),
        says("follow_up", {"kind": "answer", "text": "It does"}),
        says("multi_query", {"queries": ["Does the boat to Norrhaven leave in the morning?"]}),
        says("hyde", {"passage": "The boat leaves in the morning."}),
    ]
    texts: dict[str, list[str]] = {}
    for gold in ("yes", "Xylophonia"):
        with method(tmp_path, name, *script) as flow:
            question = Question(id="q", question="Does the ferry leave in the morning?", answers=(gold,))
            result = asyncio.run(evaluate_flow(flow.flow, [question]))
            texts[gold] = [f"{chat.system}\n{chat.user}" for chat in flow.chats()]
        assert result.results[0].error is None
        assert not any("Xylophonia" in text or "yes or no" in text.lower() for text in texts[gold])
    assert texts["yes"] == texts["Xylophonia"]
    assert texts["yes"]
