"""KAG's live path as a gate: what settles it, what comes only then, and what a retriever that fails leaves behind."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from graph_method_parts import TRIPLES, ZH_PASSAGES, ZH_TRIPLES, given, graph_method, names, texts
from method_parts import Method, notes, paths

from ragbraid.flows.api import load
from ragbraid.flows.runner import RunResult
from ragbraid.registry.contracts import Ranking
from ragbraid.registry.errors import ServiceError

EXACT = "Who designed the lighthouse of Norrhaven?"
IN_OTHER_WORDS = "Who was the architect of the lighthouse of Norrhaven?"
DESIGNED = "lighthouse of Norrhaven designed by Edda Lindqvist"
GONE = '\n[resources.gone]\nuse = "qdrant.embedded"\npath = "./gone"\n'
HIDDEN = {"none": [{"field": "source", "equals": "lighthouse.md"}]}


def tried(result: RunResult) -> set[str]:
    """The retrievers behind the gate that ran."""
    return {path.split(".")[-1] for path in paths(result) if path.startswith("evidence[2].")}


def evidence(result: RunResult) -> Ranking:
    found: Ranking = result.outputs["evidence"]
    return found


@contextmanager
def broken(folder: Path, *steps: str) -> Iterator[Method]:
    """The flow with retrievers whose knowledge base is gone."""
    with graph_method(folder, "kag_gate", more=GONE) as flow:
        lines = (folder / "kag_gate.yaml").read_text().splitlines()
        written = [
            line.replace("{use:", "{kb: gone, use:") if line.split(":")[0].strip() in steps else line for line in lines
        ]
        assert sum(line not in lines for line in written) == len(steps)
        (folder / "kag_gate.yaml").write_text("\n".join(written) + "\n")
        yield Method(load(folder / "kag_gate.yaml"), flow.server)


def test_facts_that_match_exactly_are_enough_and_nothing_is_searched_for(tmp_path: Path) -> None:
    with graph_method(tmp_path, "kag_gate") as flow:
        result = flow.run(question=EXACT)
        assert not flow.chats()
    assert notes(result, "evidence") == ["try 1 of 2 was enough"]
    assert tried(result) == set()
    assert [(hit.kind, hit.source) for hit in evidence(result)] == [
        ("chunk", "lighthouse.md"),
        ("fact", "lighthouse.md"),
    ]
    assert result.outputs["answer"].citations[0].source == "lighthouse.md"
    assert "Edda Lindqvist" in result.outputs["answer"].text


def test_where_no_fact_matches_fuzzy_facts_a_walk_and_chunks_come_together(tmp_path: Path) -> None:
    with graph_method(tmp_path, "kag_gate") as flow:
        result = flow.run(question=IN_OTHER_WORDS, min_fact_score=-1)
    assert notes(result, "evidence") == ["try 2 of 2 was enough"]
    assert {"fuzzy", "kg_fr", "rc", "merger", "rerank"} <= tried(result)
    assert texts(given(result, "evidence[2].near")) == [DESIGNED]
    assert [hit.text for hit in evidence(result) if hit.kind == "fact"] == [DESIGNED]
    assert names(result)[0] == "lighthouse"
    assert (evidence(result).degraded, evidence(result).error) == (False, None)


def test_behind_the_gate_the_routes_are_those_that_three_route_always_runs(tmp_path: Path) -> None:
    with graph_method(tmp_path, "kag_gate") as flow:
        gate = flow.run(question=IN_OTHER_WORDS, min_fact_score=-1)
        always = load(tmp_path / "three_route.yaml").run_traced(
            {"question": IN_OTHER_WORDS, "min_fact_score": -1}, engine="inline"
        )
    for step in ("fuzzy", "near", "kg_fr", "rc"):
        assert given(gate, f"evidence[2].{step}") == given(always, step)


def test_all_facts_are_read_though_chunks_are_there(tmp_path: Path) -> None:
    """KAG shows facts to the model only where no chunk was found (#574: 5 right facts retrieved, 1 reported)."""
    stated = {**TRIPLES, "lighthouse": [f"lighthouse of Norrhaven > designed by > architect {n}" for n in range(1, 6)]}
    with graph_method(tmp_path, "kag_gate", triples=stated) as flow:
        result = flow.run(question=EXACT)
    assert {hit.metadata["object"] for hit in evidence(result) if hit.kind == "fact"} == {
        f"architect {n}" for n in range(1, 6)
    }
    assert [hit.source for hit in evidence(result) if hit.kind == "chunk"] == ["lighthouse.md"]


def test_a_question_that_names_nothing_of_the_graph_is_answered_from_chunks(tmp_path: Path) -> None:
    with graph_method(tmp_path, "kag_gate") as flow:
        result = flow.run(question="When does the boat leave in the morning?")
    assert {hit.kind for hit in evidence(result)} == {"chunk"}
    assert notes(result, "evidence[2].kg_fr") == ["there are no seeds, so nothing was ranked"]


@pytest.mark.parametrize(("step", "left"), [("rc", "kg_fr"), ("kg_fr", "rc"), ("fuzzy", "rc")])
def test_a_retriever_that_fails_degrades_the_evidence_and_the_others_go_on(
    tmp_path: Path, step: str, left: str
) -> None:
    with broken(tmp_path, step) as flow:
        result = flow.run(question=IN_OTHER_WORDS, min_fact_score=-1)
    assert result.trace.step(f"evidence[2].{step}").outcome == "failed"
    assert result.trace.step(f"evidence[2].{left}").outcome == "ok"
    assert evidence(result).degraded
    assert "no knowledge base" in (evidence(result).error or "")
    assert names(result)[0] == "lighthouse"
    assert "Edda Lindqvist" in result.outputs["answer"].text


def test_exact_facts_that_could_not_be_looked_for_are_not_taken_for_none(tmp_path: Path) -> None:
    """The exact and the fuzzy query of KAG fail together (#404); here the next group is tried and the failure is told."""
    with broken(tmp_path, "as_subject", "as_object") as flow:
        result = flow.run(question=EXACT, min_fact_score=-1)
    assert notes(result, "evidence") == ["try 2 of 2 was enough"]
    assert evidence(result).degraded
    assert "stated: " in (evidence(result).error or "")
    assert "Edda Lindqvist" in result.outputs["answer"].text


def test_where_all_retrievers_fail_the_run_fails_and_does_not_say_that_nothing_is_known(tmp_path: Path) -> None:
    with (
        broken(tmp_path, "fuzzy", "kg_fr", "rc") as flow,
        pytest.raises(ServiceError, match=r"(?s)failed.*no knowledge base"),
    ):
        flow.run(question=IN_OTHER_WORDS)


@pytest.mark.parametrize("question", [EXACT, IN_OTHER_WORDS])
def test_what_a_reader_may_not_see_is_in_no_group(tmp_path: Path, question: str) -> None:
    with graph_method(tmp_path, "kag_gate") as flow:
        result = flow.run(question=question, where=HIDDEN, min_fact_score=-1)
    assert notes(result, "evidence") == ["try 2 of 2 was enough"]
    assert "lighthouse" not in names(result)
    assert DESIGNED not in texts(evidence(result))


def test_a_chinese_question_is_settled_by_a_fact(tmp_path: Path) -> None:
    with graph_method(tmp_path, "kag_gate", passages=ZH_PASSAGES, triples=ZH_TRIPLES) as flow:
        result = flow.run(question="诺港灯塔的设计者是谁？")
    assert (tried(result), texts(evidence(result))[-1]) == (set(), "诺港灯塔 设计者 林德")
    assert "林德" in result.outputs["answer"].text


@pytest.mark.prefect
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.usefixtures("prefect_api")
def test_the_gate_on_prefect_gives_the_same_as_inline_in_both_groups(tmp_path: Path) -> None:
    with broken(tmp_path, "rc") as flow:
        for question in (EXACT, IN_OTHER_WORDS):
            inline = flow.run(question=question)
            on_prefect = flow.run("prefect", question=question)
            assert on_prefect.outputs == inline.outputs
            assert sorted(paths(on_prefect)) == sorted(paths(inline))
