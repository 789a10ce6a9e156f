"""`graph.seed`, `graph.seed_entities` and `graph.ppr`: from facts and passages to ranked chunks that say why."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from graph_kb_parts import chunk, contribution, entities, fact, facts, fill, filled, ranked, source, triple
from index_parts import AngleEmbedder
from reasoning_parts import failed_ranking

from ragbraid.nodes.graph_rank import ppr, seed, seed_entities
from ragbraid.nodes.knowledge_base import QdrantKnowledgeBase
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.contracts import Ranking
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.graph import EntityLink, EntityLinks, SeedWeights
from ragbraid.registry.graph_names import entity_id
from ragbraid.registry.knowledge import Condition, KnowledgeBase, Where

ALICE, ACME, PARIS, TEA = map(entity_id, ("alice", "acme", "paris", "tea"))
FACTS = ranked("fact", {fact("alice > works for > acme"): 1.0, fact("acme > based in > paris"): 0.8})
PASSAGES = ranked("chunk", {"P1": 1.0, "P2": 0.4, "P3": 0.0})


@pytest.fixture(scope="module")
def kb() -> Iterator[QdrantKnowledgeBase]:
    made = fill(
        [
            chunk("P1", source="a.md", graph=contribution([triple("alice > works for > acme", weight=2)])),
            chunk("P2", source="a.md", graph=contribution([triple("acme > based in > paris", weight=2)])),
            chunk("P3", source="b.md", graph=contribution([triple("bob > drinks > tea", weight=2)])),
            chunk("P4", source="b.md", title="Notes"),
        ]
    )
    yield made
    made.close()


class Closed:
    """A knowledge base that must not be touched."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(f"{name} was asked for")


CLOSED: KnowledgeBase = Closed()  # type: ignore[assignment]


def noted(seeds: SeedWeights, kb: KnowledgeBase, **given: object) -> tuple[Ranking, list[str]]:
    step = StepContext()
    with step_context(step):
        found = ppr(seeds, kb=kb, **given)  # type: ignore[arg-type]
    return found, step.notes


# -- seeds -------------------------------------------------------------------------------------------------------------


def test_seeds_are_those_of_the_example(kb: QdrantKnowledgeBase) -> None:
    seeds = seed(FACTS, PASSAGES, kb=kb)
    assert seeds.weights == pytest.approx({ALICE: 1.0, ACME: 0.45, PARIS: 0.8, "P1": 0.05, "P2": 0.02})
    assert seeds.made_by == {ALICE: "fact", ACME: "fact", PARIS: "fact", "P1": "passage", "P2": "passage"}


def test_only_the_heaviest_phrases_stay(kb: QdrantKnowledgeBase) -> None:
    assert set(seed(FACTS, kb=kb, max_phrases=2).weights) == {ALICE, PARIS}
    assert set(seed(FACTS, PASSAGES, kb=kb, max_phrases=1, passage_weight=0).weights) == {ALICE}


def test_passages_alone_are_no_seeds_and_the_store_is_not_asked() -> None:
    assert seed(Ranking(), PASSAGES, kb=CLOSED) == SeedWeights()


def test_a_fact_that_is_against_the_question_gives_no_seed(kb: QdrantKnowledgeBase) -> None:
    against = ranked("fact", {fact("acme > based in > paris"): -0.2})
    assert seed(against, PASSAGES, kb=kb) == SeedWeights()


def test_seeds_come_from_what_a_reader_may_see(kb: QdrantKnowledgeBase) -> None:
    step = StepContext()
    with step_context(step):
        seeds = seed(FACTS, kb=kb, where=source("b.md"))
    assert seeds == SeedWeights()
    assert step.notes == ["2 facts are not in the graph (any more, or not for this reader) and give no seeds"]


def test_seeds_of_failed_retrieval_are_degraded_and_not_just_empty(kb: QdrantKnowledgeBase) -> None:
    step = StepContext()
    with step_context(step):
        nothing = seed(failed_ranking(), kb=CLOSED)
        some = seed(FACTS, failed_ranking(), kb=kb)
    assert (nothing.weights, nothing.degraded, nothing.error) == ({}, True, "the store did not answer")
    assert (some.degraded, set(some.weights)) == (True, {ALICE, ACME, PARIS})
    assert step.status == "degraded"
    found, notes = noted(nothing, CLOSED)
    assert (len(found), found.degraded, found.error) == (0, True, "the store did not answer")
    assert notes[0] == "walked from incomplete seeds: the store did not answer"


@pytest.mark.parametrize(("given", "passages"), [(PASSAGES, Ranking()), (FACTS, FACTS)])
def test_hits_of_another_kind_are_refused(kb: QdrantKnowledgeBase, given: Ranking, passages: Ranking) -> None:
    with pytest.raises(NodeInputError, match=r"graph\.seed takes hits of kind"):
        seed(given, passages, kb=kb)


def test_linked_and_found_entities_weigh_one_or_their_best_score(kb: QdrantKnowledgeBase) -> None:
    view = kb.graph()
    links = EntityLinks(
        links=tuple(
            EntityLink(mention="Acme", entity=view.entities[id_], score=score, how="fuzzy")
            for id_, score in ((ACME, 0.9), (PARIS, 0.4), (ACME, 0.95))
        )
    )
    found = entities("alice", "acme")
    assert seed_entities(links, found).weights == {ACME: 1, PARIS: 1, ALICE: 1}
    weighted = seed_entities(links, found, by="score")
    assert weighted.weights == {ACME: 0.95, PARIS: 0.4, ALICE: 1.0}
    assert set(weighted.made_by.values()) == {"entity"}
    assert seed_entities(EntityLinks(unlinked=("Nobody",))) == SeedWeights()
    with pytest.raises(NodeInputError, match="takes hits of kind entity"):
        seed_entities(entities=FACTS)


# -- the walk ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("damping", "scores"), [(0.5, (0.085016, 0.070773)), (0.85, (0.115338, 0.108968))])
def test_chunks_have_the_scores_of_the_example(
    kb: QdrantKnowledgeBase, damping: float, scores: tuple[float, float]
) -> None:
    found, notes = noted(seed(FACTS, PASSAGES, kb=kb), kb, damping=damping)
    assert [hit.id for hit in found] == ["P1", "P2"]
    assert [hit.score for hit in found] == pytest.approx(scores, abs=1e-6)
    assert (found.route, found.score_kind, found[0].scores["ppr"].rank) == ("ppr", "graph", 1)
    assert (found[0].text, found[0].source, found[0].document_id) == ("text of P1", "a.md", "doc:a.md")
    assert notes == [f"damping {damping:g}, 5 seeds used; 0 of 5 are connected to nothing"]


def test_every_hit_says_through_which_facts_it_was_reached(kb: QdrantKnowledgeBase) -> None:
    found = ppr(seed(FACTS, kb=kb), kb=kb)
    assert {hit.id: hit.metadata["facts"] for hit in found} == {
        "P1": ["alice works for acme"],
        "P2": ["acme based in paris"],
    }


def test_facts_of_the_heaviest_seeds_come_first_and_names_where_a_chunk_states_nothing() -> None:
    kb = filled(
        {
            "c1": contribution(["x > p > y", "x > p > z", "acme > makes > tea", "acme > makes > ink", "y > p > z"]),
            "c2": contribution([], ["tea", "acme"]),
        }
    )
    found = ppr(SeedWeights(weights={ACME: 1.0, entity_id("x"): 0.5}, made_by={}), kb=kb)
    reasons = {hit.id: hit.metadata["facts"] for hit in found}
    assert reasons["c1"] == ["acme makes tea", "acme makes ink", "x p y"]
    assert reasons["c2"] == ["acme", "tea"]
    kb.close()


def test_without_seeds_nothing_is_ranked_and_the_store_not_asked() -> None:
    found, notes = noted(SeedWeights(), CLOSED)
    assert found == Ranking(route="ppr", score_kind="graph")
    assert notes == ["there are no seeds, so nothing was ranked"]


def test_seeds_that_the_graph_does_not_have_give_no_ranking_of_everything(kb: QdrantKnowledgeBase) -> None:
    found, notes = noted(SeedWeights(weights={"entity:nobody": 1.0}), kb)
    assert len(found) == 0
    assert notes == ["none of 1 seeds is in the graph, so nothing was ranked"]


def test_a_walk_never_leaves_what_a_reader_may_see(kb: QdrantKnowledgeBase) -> None:
    everything = seed(FACTS, PASSAGES, kb=kb)
    found, notes = noted(everything, kb, where=source("b.md"))
    assert len(found) == 0
    assert notes == ["none of 5 seeds is in the graph, so nothing was ranked"]
    assert [hit.id for hit in ppr(everything, kb=kb, where=source("a.md"))] == ["P1", "P2"]


def test_a_reader_who_may_see_no_entity_at_all_finds_nothing(kb: QdrantKnowledgeBase) -> None:
    notes_only = Where(all=(Condition(field="title", equals="Notes"),))
    assert seed(FACTS, PASSAGES, kb=kb, where=notes_only) == SeedWeights()
    for passages in (True, False):
        assert len(ppr(seed(FACTS, PASSAGES, kb=kb), kb=kb, where=notes_only, passages=passages)) == 0


def test_a_passage_without_entities_keeps_its_weight_unless_nothing_tells_that_it_may_be_seen(
    kb: QdrantKnowledgeBase,
) -> None:
    seeds = SeedWeights(weights={ALICE: 1.0, "P4": 1.0}, made_by={ALICE: "fact", "P4": "passage"})
    found, notes = noted(seeds, kb)
    assert found[0].id == "P4"
    assert (found[0].title, found[0].metadata["facts"]) == ("Notes", [])
    # Half of the walk starts there; what stays at P4 is s = (1 - d + d * s) / 2.
    assert found[0].score == pytest.approx(1 / 3)
    assert notes == ["damping 0.5, 2 seeds used; 1 of 2 are connected to nothing"]
    assert "P4" not in [hit.id for hit in ppr(seeds, kb=kb, where=source("a.md"))]
    assert "P4" not in [hit.id for hit in ppr(seeds, kb=kb, passages=False)]


def test_over_entities_alone_a_chunk_gets_the_sum_of_those_that_it_names(kb: QdrantKnowledgeBase) -> None:
    found = ppr(SeedWeights(weights={ALICE: 1.0}, made_by={ALICE: "entity"}), kb=kb, passages=False)
    assert {hit.id: hit.score for hit in found} == pytest.approx({"P1": 7 / 12 + 1 / 3, "P2": 1 / 3 + 1 / 12})


def test_near_names_lead_to_other_chunks_unless_they_are_left_out() -> None:
    graphs = {"c1": contribution(["acme > makes > tea"]), "c2": contribution(["acme inc > based in > paris @0.1"])}
    kb = filled(graphs, neighbour_min_score=0.9, embedder=AngleEmbedder())
    seeds = SeedWeights(weights={TEA: 1.0}, made_by={TEA: "entity"})
    assert [hit.id for hit in ppr(seeds, kb=kb)] == ["c1", "c2"]
    assert [hit.id for hit in ppr(seeds, kb=kb, synonyms=False)] == ["c1"]
    kb.close()


def test_ties_go_by_id_and_the_list_is_cut() -> None:
    kb = filled({f"c{n}": contribution(["acme > makes > tea"]) for n in (3, 1, 2)})
    found = ppr(SeedWeights(weights={TEA: 1.0}), kb=kb, top_k=2)
    assert [hit.id for hit in found] == ["c1", "c2"]
    assert found[0].score == found[1].score
    kb.close()


def test_an_answer_is_found_over_two_steps_that_the_seeds_do_not_name() -> None:
    kb = filled(
        {
            "founder": contribution(["peter > founded > acme"]),
            "birth": contribution(["peter > born in > rome"]),
            "else": contribution(["mary > born in > oslo"]),
        }
    )
    found = ppr(seed(facts("peter > founded > acme"), kb=kb, max_phrases=1), kb=kb)
    assert [hit.id for hit in found] == ["founder", "birth"]
    assert found[1].metadata["facts"] == ["peter born in rome"]
    kb.close()
