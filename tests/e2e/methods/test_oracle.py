"""IRCoT and PIKE-RAG driven by an oracle: what a second search finds that one cannot, and that the oracle only reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from gold_steps import Hop, gold_hops
from method_parts import method
from oracle import Oracle

from ragbraid.flows.runner import RunResult

PASSAGES: Mapping[str, str] = {
    "mill": "The Tarn Mill was built by Ilse Brandt.",
    "brandt": "Ilse Brandt served her apprenticeship in Veldrup.",
    "roof": "A builder repaired the roof of the mill after the storm.",
    "school": "Where to study the trade of a builder is a question for the guild.",
    "gate": "The Blue Gate was painted by Jorun Aas.",
    "aas": "Jorun Aas settled in Skarnes, beside the Glomma.",
    "customs": "The river flows past the old customs house and the home of its keeper.",
    "plate": "The home of every painter is marked with a blue plate.",
}
"""The second passage of each question shares a word only with the first, and two others share words with the question."""


def step(question: str, resolved: str, passage_id: str) -> dict[str, str]:
    return {"question": question, "resolved": resolved, "passage_id": passage_id}


QUESTIONS: tuple[dict[str, Any], ...] = (
    {
        "question": "Where did the builder of the Tarn Mill study the trade?",
        "gold_passage_ids": ["mill", "brandt"],
        "meta": {
            "decomposition": [
                step("Who built the Tarn Mill?", "Who built the Tarn Mill?", "mill"),
                step("#1 >> apprenticeship", "Ilse Brandt >> apprenticeship", "brandt"),
            ]
        },
    },
    {
        "question": "Which river flows past the home of the painter of the Blue Gate?",
        "gold_passage_ids": ["gate", "aas"],
        "meta": {
            "decomposition": [
                step("The Blue Gate >> painted by", "The Blue Gate >> painted by", "gate"),
                step("beside what did #1 settle", "beside what did Jorun Aas settle", "aas"),
            ]
        },
    },
)
TOP_K = 3


def oracle() -> Oracle:
    passages = {id_: {"title": None, "text": text} for id_, text in PASSAGES.items()}
    return Oracle(passages, {each["question"]: gold_hops(each, passages) for each in QUESTIONS})


def sources(ranking: Any) -> list[str]:
    return [Path(hit.source or "").stem for hit in ranking]


def asked(result: RunResult) -> list[str]:
    """What the loop searched for."""
    return [one.output.text for one in result.trace.steps if one.path.endswith("].ask")]


@pytest.mark.parametrize("question", QUESTIONS, ids=["mill", "gate"])
def test_ircot_finds_the_second_passage_that_one_search_does_not(tmp_path: Path, question: dict[str, Any]) -> None:
    with method(tmp_path, "ircot", oracle(), passages=PASSAGES) as flow:
        result = flow.run(question=question["question"], top_k=TOP_K)
        found = sources(result.outputs["evidence"])
        # As many passages as IRCoT kept, by one search for the question.
        at_once = flow.run(question=question["question"], top_k=len(found)).trace.step("first").output
    first, second = question["gold_passage_ids"]
    assert len(found) < len(PASSAGES)
    assert {first, second} <= set(found)
    assert first in sources(at_once)
    assert second not in sources(at_once)
    assert asked(result)[0] == question["meta"]["decomposition"][1]["resolved"].replace(" >> ", " ")
    assert result.outputs["stopped_by"] == "answered"


@pytest.mark.parametrize("question", QUESTIONS, ids=["mill", "gate"])
def test_pike_rag_chooses_the_gold_passages_in_their_order(tmp_path: Path, question: dict[str, Any]) -> None:
    model = oracle()
    with method(tmp_path, "pike_rag", model, passages=PASSAGES, atoms=model.atoms) as flow:
        result = flow.run(question=question["question"])
    assert sources(result.outputs["evidence"]) == question["gold_passage_ids"]
    assert result.outputs["stopped_by"] == "settled"


def test_an_answer_is_not_used_before_its_passage_was_read(tmp_path: Path) -> None:
    left = {id_: text for id_, text in PASSAGES.items() if id_ != "mill"}
    question = QUESTIONS[0]["question"]
    with method(tmp_path, "ircot", oracle(), passages=left) as flow:
        result = flow.run(question=question, top_k=1)
        assert not any("Ilse Brandt" in chat.user for chat in flow.chats())
        assert len(flow.chats("next_thought")) == 2
    assert asked(result) == ["Who built the Tarn Mill?"]
    assert result.outputs["stopped_by"] == "repeated"


def test_an_oracle_never_says_the_answer(tmp_path: Path) -> None:
    model = oracle()
    with method(tmp_path, "ircot", model, passages=PASSAGES) as flow:
        for each in QUESTIONS:
            flow.run(question=each["question"], top_k=TOP_K)
        said = [reply.text for chat in flow.chats() if (reply := model(chat)) is not None]
        assert len(said) == len(flow.chats()) > len(QUESTIONS)
    assert not [text for text in said if "Veldrup" in text or "Glomma" in text or "Skarnes" in text]


WIKI = {
    "film": {"title": "Red Sails (1951 film)", "text": "Red Sails was directed by Ana Holt."},
    "director": {"title": "Ana Holt (director)", "text": "Ana Holt was born on 3 May 1910."},
    "other": {"title": "Lot Bay", "text": "Lot Bay was directed by T. Marsh."},
    "marsh": {"title": "Thomas Marsh", "text": "Thomas Marsh was born on 4 June 1912."},
}


def of_triples(kind: str, question: str, gold: list[str], *triples: list[str]) -> tuple[Hop, ...]:
    record = {"question": question, "type": kind, "gold_passage_ids": gold, "gold_triples": triples, "meta": {}}
    return gold_hops(record, WIKI)


def test_triples_are_asked_for_by_the_names_that_are_known_then_and_never_by_titles() -> None:
    hops = of_triples(
        "compositional",
        "When was the director of Red Sails born?",
        ["film", "director"],
        ["Red Sails (1951 film)", "director", "Ana Holt"],
        ["Ana Holt (director)", "date of birth", "3 May 1910"],
    )
    assert hops == (
        Hop("film", "Red Sails director"),
        Hop("director", "Ana Holt date of birth", frozenset({0})),
    )


def test_a_triple_under_another_spelling_continues_the_one_that_its_type_says() -> None:
    hops = of_triples(
        "bridge_comparison",
        "Which film has the older director, Red Sails or Lot Bay?",
        ["film", "director", "other", "marsh"],
        ["Red Sails", "director", "Ana Holt"],
        ["Lot Bay", "director", "T. Marsh"],
        ["Ana Holt", "date of birth", "3 May 1910"],
        ["Thomas Marsh", "date of birth", "4 June 1912"],
    )
    assert [hop.passage_id for hop in hops] == ["film", "other", "director", "marsh"]
    assert [sorted(hop.needs) for hop in hops] == [[], [], [0], [1]]
    assert hops[3].text == "T. Marsh date of birth"


@pytest.mark.parametrize(
    ("question", "needs"),
    [
        ("Who directed Red Sails, and when was Ana Holt born?", [[], []]),
        ("When was the director of Red Sails born?", [[], [0]]),
        ("When was the director of a film about ships born?", [[0], [0]]),
    ],
)
def test_a_title_is_asked_for_once_the_question_or_a_gold_passage_names_it(
    question: str, needs: list[list[int]]
) -> None:
    record = {"question": question, "gold_passage_ids": ["film", "director"], "gold_triples": None, "meta": {}}
    hops = gold_hops(record, WIKI)
    assert [hop.text for hop in hops] == ["Red Sails", "Ana Holt"]
    assert [sorted(hop.needs) for hop in hops] == needs


def test_titles_that_are_given_need_nothing() -> None:
    record = {
        "question": "Who was born then?",
        "gold_passage_ids": ["film", "director"],
        "gold_triples": None,
        "meta": {},
    }
    assert [hop.needs for hop in gold_hops(record, WIKI, titles_given=True)] == [frozenset(), frozenset()]
