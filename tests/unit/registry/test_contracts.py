from __future__ import annotations

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ragbraid.registry.contracts import CONTRACTS, Chunk, Hit, Ranking, RouteScore, Span
from ragbraid.registry.conversions import CONVERSIONS, hit_to_chunk
from ragbraid.registry.suggest import nearest


def hit(id_: str, score: float, rank: int = 1, **scores: int) -> Hit:
    routes = {name: RouteScore(rank=place, score=1.0, kind="rank") for name, place in scores.items()}
    return Hit(id=id_, text=id_, score=score, rank=rank, score_kind="cosine", scores=routes)


def test_a_ranking_sorts_numbers_and_removes_duplicates() -> None:
    ranking = Ranking.from_hits([hit("b", 0.5), hit("a", 0.9), hit("b", 0.7)], route="dense", score_kind="cosine")
    assert [(h.id, h.rank, h.score) for h in ranking] == [("a", 1, 0.9), ("b", 2, 0.7)]
    assert ranking[1].scores["dense"] == RouteScore(rank=2, score=0.7, kind="cosine")
    assert len(ranking) == 2


def test_equal_scores_go_by_best_route_then_by_appearance() -> None:
    ranking = Ranking.from_hits(
        [hit("late", 1.0, x=3), hit("best", 1.0, x=1), hit("also", 1.0, x=3)], route="f", score_kind="rrf"
    )
    assert [h.id for h in ranking] == ["best", "late", "also"]


@pytest.mark.parametrize(
    ("hits", "sentence"),
    [
        ((hit("a", 1.0, 2),), "has rank 2 at position 1"),
        ((hit("a", 0.1, 1), hit("b", 0.2, 2)), "scores more than the one before"),
        ((hit("a", 1.0, 1), hit("a", 0.5, 2)), "occurs twice"),
    ],
)
def test_a_ranking_that_breaks_its_rules_cannot_be_made(hits: tuple[Hit, ...], sentence: str) -> None:
    with pytest.raises(ValidationError, match=sentence):
        Ranking(hits=hits)


@given(st.lists(st.tuples(st.text(min_size=1, max_size=3), st.floats(-5, 5))))
def test_any_hits_make_a_valid_ranking(pairs: list[tuple[str, float]]) -> None:
    ranking = Ranking.from_hits([hit(id_, score) for id_, score in pairs], route="r", score_kind="model")
    assert Ranking.model_validate(ranking.model_dump()) == ranking
    assert {h.id for h in ranking} == {id_ for id_, _ in pairs}


def test_contracts_are_frozen_and_refuse_unknown_fields() -> None:
    span = Span(start=1, end=2)
    with pytest.raises(ValidationError):
        span.start = 5  # type: ignore[misc]
    with pytest.raises(ValidationError):
        Span.model_validate({"start": 0, "end": 1, "ends": 2})
    with pytest.raises(ValidationError, match="ends before it starts"):
        Span(start=3, end=2)


def test_a_route_score_is_a_value_and_is_checked_when_it_comes_from_outside() -> None:
    fields = {"rank": 2, "score": 0.5, "kind": "rrf"}
    score = RouteScore(rank=2, score=0.5, kind="rrf")
    found = hit("a", 1.0).model_copy(update={"scores": {"dense": score}})
    assert found.model_dump()["scores"] == {"dense": fields}
    assert Hit.model_validate_json(found.model_dump_json()) == found
    assert {score: "x"}[RouteScore(rank=2, score=0.5, kind="rrf")] == "x"
    assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found
    with pytest.raises(AttributeError, match="cannot assign to field 'rank'"):
        score.rank = 1  # type: ignore[misc]
    for wrong in ({"rank": 0}, {"score": float("nan")}, {"kind": "guess"}, {"more": 1}):
        with pytest.raises(ValidationError):
            RouteScore(**(fields | wrong))  # type: ignore[arg-type]
        with pytest.raises(ValidationError):
            Hit.model_validate(found.model_dump() | {"scores": {"dense": fields | wrong}})


def test_every_contract_has_a_docstring_and_its_own_name() -> None:
    for name, cls in CONTRACTS.items():
        assert cls.__name__ == name
        assert cls.__doc__


def test_conversions_are_named_documented_and_unique() -> None:
    pairs = [(str(c.source), str(c.target)) for c in CONVERSIONS]
    assert len(set(pairs)) == len(pairs)
    assert all(c.about and c.name == c.apply.__name__ for c in CONVERSIONS)


def test_a_hit_that_is_no_chunk_still_becomes_one() -> None:
    chunk = hit_to_chunk(Hit(id="e1", kind="entity", text="Bergen", score=1.0, rank=1, score_kind="graph"))
    assert chunk == Chunk(id="e1", document_id="e1", source="", index=0, text="Bergen")


def test_the_nearest_name_is_near_enough_to_help() -> None:
    assert nearest("retrieve.dens", ["retrieve.dense", "retrieve.sparse"]) == "retrieve.dense"
    assert nearest("kg_fr", ["kg_cs", "rc"]) is None
    assert nearest("Question", ["question"]) == "question"
    assert nearest("x", []) is None


def test_a_ranking_reads_as_its_hits_and_as_a_dict_of_its_fields() -> None:
    # Prefect looks into models by `dict(model)`.
    hit = Hit(id="a", text="x", score=1, rank=1, score_kind="rrf")
    ranking = Ranking(hits=(hit,), route="fused", score_kind="rrf")
    assert list(ranking) == [hit]
    assert ranking[0] == hit
    assert dict(ranking) == {name: getattr(ranking, name) for name in Ranking.model_fields}
