"""KAG's three routes as a flow: what each brings, how they are fused, and that facts are always read; without a model."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from graph_method_parts import TRIPLES, ZH_PASSAGES, ZH_TRIPLES, given, graph_method, names, project, texts, write_texts
from method_parts import PASSAGES, Method, notes, paths

from ragbraid.flows.api import load
from ragbraid.flows.runner import RunResult
from ragbraid.registry.errors import ServiceError, SettingsError

HIDDEN = {"none": [{"field": "source", "equals": "lighthouse.md"}]}
QUESTION = "Who designed the lighthouse of Norrhaven?"
DESIGNED = "lighthouse of Norrhaven designed by Edda Lindqvist"


def sources(result: RunResult, path: str) -> list[str]:
    return [Path(hit.source or "").stem for hit in given(result, path)]


def test_each_route_brings_what_it_is_for_and_no_model_is_asked(tmp_path: Path) -> None:
    with graph_method(tmp_path, "three_route") as flow:
        result = flow.run(question=QUESTION, min_fact_score=-1)
        assert not flow.chats()
    assert given(result, "names") == ("lighthouse of Norrhaven",)
    assert given(result, "relations") == ("designed by",)
    assert (texts(given(result, "stated")), sources(result, "kg_cs")) == ([DESIGNED], ["lighthouse"])
    assert texts(given(result, "near")) == [DESIGNED]
    assert sources(result, "kg_fr")[:2] == ["lighthouse", "lindqvist"]
    assert set(sources(result, "rc")) == set(PASSAGES)
    assert result.outputs["answer"].citations[0].source == "lighthouse.md"
    assert "Edda Lindqvist" in result.outputs["answer"].text


def test_the_merger_adds_a_vote_of_each_route_by_rank_with_60(tmp_path: Path) -> None:
    with graph_method(tmp_path, "three_route") as flow:
        result = flow.run(question=QUESTION)
    ranks: dict[str, list[int]] = {}
    for route in ("kg_cs", "kg_fr", "rc"):
        for hit in given(result, route):
            ranks.setdefault(hit.id, []).append(hit.rank)
    merged = given(result, "merger")
    assert len(merged) == len(ranks)
    for hit in merged:
        assert hit.score == pytest.approx(sum(1 / (60 + rank) for rank in ranks[hit.id]))
    assert {"kg_cs", "kg_fr", "rc"} <= merged[0].scores.keys()


def test_facts_are_read_though_chunks_were_found_and_each_says_where_it_stands(tmp_path: Path) -> None:
    """KAG shows facts to the model only where no chunk was found (#574: 5 right facts retrieved, 1 reported)."""
    stated = {**TRIPLES, "lighthouse": [f"lighthouse of Norrhaven > designed by > architect {n}" for n in range(1, 6)]}
    with graph_method(tmp_path, "three_route", triples=stated) as flow:
        result = flow.run(question=QUESTION, top_k=2)
    read = given(result, "evidence")
    assert [hit.kind for hit in read] == ["chunk"] * 2 + ["fact"] * 5
    assert {hit.metadata["object"] for hit in read if hit.kind == "fact"} == {f"architect {n}" for n in range(1, 6)}
    assert {hit.source for hit in read if hit.kind == "fact"} == {"lighthouse.md"}
    (first,) = (hit for hit in read if hit.source == "lighthouse.md" and hit.kind == "chunk")
    assert all(hit.metadata["chunk_ids"] == [first.id] for hit in read if hit.kind == "fact")
    assert result.outputs["evidence"] == read


@pytest.mark.prefect
@pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")
@pytest.mark.usefixtures("prefect_api")
def test_three_routes_on_prefect_give_the_same_as_inline(tmp_path: Path) -> None:
    with graph_method(tmp_path, "three_route") as flow:
        inline = flow.run(question=QUESTION)
        on_prefect = flow.run("prefect", question=QUESTION)
    assert on_prefect.outputs == inline.outputs
    assert sorted(paths(on_prefect)) == sorted(paths(inline))


def test_a_question_that_names_nothing_of_the_graph_is_answered_from_chunks_alone(tmp_path: Path) -> None:
    with graph_method(tmp_path, "three_route") as flow:
        result = flow.run(question="When does the boat leave in the morning?")
    assert [result.trace.step(step).outcome for step in ("names", "topics", "kg_cs", "fuzzy", "kg_fr", "rc")] == [
        *["empty"] * 5,
        "ok",
    ]
    assert {hit.kind for hit in result.outputs["evidence"]} == {"chunk"}
    assert notes(result, "kg_fr") == ["there are no seeds, so nothing was ranked"]


def test_a_relation_in_other_words_is_left_to_the_fuzzy_route(tmp_path: Path) -> None:
    with graph_method(tmp_path, "three_route") as flow:
        result = flow.run(question="Who was the architect of the lighthouse of Norrhaven?", min_fact_score=-1)
    assert (sources(result, "kg_cs"), given(result, "relations")) == ([], ())
    assert texts(given(result, "near")) == [DESIGNED]
    assert sources(result, "kg_fr")[0] == "lighthouse"


def test_an_exact_fact_is_found_from_either_end(tmp_path: Path) -> None:
    with graph_method(tmp_path, "three_route") as flow:
        result = flow.run(question="What was designed by Edda Lindqvist, and where was she born?")
    assert texts(given(result, "stated")) == ["Edda Lindqvist born in Tarnby", DESIGNED]
    assert sources(result, "kg_cs") == ["lindqvist", "lighthouse"]


def test_a_threshold_is_a_cosine_and_the_best_rejected_fact_is_named(tmp_path: Path) -> None:
    with graph_method(tmp_path, "three_route") as flow:
        result = flow.run(question="Who was the architect of the lighthouse of Norrhaven?", min_fact_score=1.0)
    assert texts(given(result, "near")) == []
    (note,) = notes(result, "fuzzy")
    assert re.search(r"`min_score` 1; the best .* had 0\.\d{3}", note)


def test_a_chinese_question_takes_all_three_routes(tmp_path: Path) -> None:
    with graph_method(tmp_path, "three_route", passages=ZH_PASSAGES, triples=ZH_TRIPLES) as flow:
        result = flow.run(question="诺港灯塔的设计者是谁？", min_fact_score=-1)
    assert (given(result, "names"), given(result, "relations")) == (("诺港灯塔",), ("设计者",))
    assert (sources(result, "kg_cs"), sources(result, "kg_fr")[0]) == (["灯塔"], "灯塔")
    assert texts(given(result, "near")) == ["诺港灯塔 设计者 林德"]
    assert "林德" in result.outputs["answer"].text
    assert names(result)[0] == "灯塔"


def test_a_value_is_a_fact_like_any_other(tmp_path: Path) -> None:
    """KAG's pattern of subject, attribute and value does not find values (#692)."""
    triples = {**TRIPLES, "tarnby": ["Tarnby > number of inhabitants > 412"]}
    with graph_method(tmp_path, "three_route", triples=triples) as flow:
        result = flow.run(question="What is the number of inhabitants of Tarnby?")
    assert texts(given(result, "stated")) == ["Tarnby number of inhabitants 412"]
    assert sources(result, "kg_cs") == ["tarnby"]


def test_a_question_in_another_language_than_the_relations_is_left_to_meaning(tmp_path: Path) -> None:
    """KAG compares English names of relations with Chinese questions and finds nothing (#37)."""
    with graph_method(tmp_path, "three_route") as flow:
        result = flow.run(question="Edda Lindqvist在哪里出生？", min_fact_score=-1)
    assert (given(result, "names"), given(result, "relations")) == (("Edda Lindqvist",), ())
    assert set(texts(given(result, "near"))) == {DESIGNED, "Edda Lindqvist born in Tarnby"}
    assert {"lindqvist", "lighthouse"} <= set(sources(result, "kg_fr"))


def test_what_a_reader_may_not_see_gives_no_name_no_fact_and_no_passage(tmp_path: Path) -> None:
    with graph_method(tmp_path, "three_route") as flow:
        result = flow.run(question=f"{QUESTION} Is it Edda Lindqvist?", where=HIDDEN, min_fact_score=-1)
    assert (given(result, "names"), given(result, "relations")) == (("Norrhaven", "Edda Lindqvist"), ())
    assert set(texts(given(result, "near"))) == {"Edda Lindqvist born in Tarnby", "ferry goes to Norrhaven"}
    assert "lighthouse" not in names(result)
    assert not any("designed" in hit.text for hit in result.outputs["evidence"])


def test_a_knowledge_base_without_a_graph_is_refused_with_a_sentence_that_says_what_to_do(tmp_path: Path) -> None:
    with project(tmp_path) as server:
        write_texts(tmp_path / "docs", PASSAGES)
        load(tmp_path / "ingest.yaml").run(folder=str(tmp_path / "docs"))
        with pytest.raises(SettingsError, match="holds no knowledge graph"):
            Method(load(tmp_path / "three_route.yaml"), server).run(question=QUESTION)


def test_a_search_that_failed_does_not_pass_for_one_that_found_nothing(tmp_path: Path) -> None:
    with graph_method(tmp_path, "three_route"):
        pass
    gone = '\n[resources.embedder]\nuse = "openai.embedder"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "tiny"\n'
    (tmp_path / "ragbraid.toml").write_text(f"{gone}dimension = 64\nmax_attempts = 1\n")
    with pytest.raises(ServiceError):
        load(tmp_path / "three_route.yaml").run(question=QUESTION)
