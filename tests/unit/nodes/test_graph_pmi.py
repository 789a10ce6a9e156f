import math
from itertools import pairwise

import pytest
from enrich_parts import documents, view

from ragbraid.nodes.graph_pmi import CO_OCCURRENCE, Association, associate, associations
from ragbraid.registry.contracts import ChunkSet
from ragbraid.registry.graph_parts import ChunkGraph, Mention, Triple


@pytest.mark.parametrize(
    ("n", "n_x", "n_y", "n_xy", "pmi", "npmi"),
    [
        (8, 4, 2, 2, 1.0, 0.5),
        (8, 4, 4, 2, 0.0, 0.0),
        (8, 2, 2, 2, 2.0, 1.0),
        (8, 8, 8, 8, 0.0, 1.0),
        (8, 4, 4, 1, -1.0, -1 / 3),
        (8, 4, 4, 0, -math.inf, -1.0),
    ],
)
def test_pmi_and_its_normalised_form_by_hand(n: int, n_x: int, n_y: int, n_xy: int, pmi: float, npmi: float) -> None:
    found = Association(n, n_x, n_y, n_xy)
    assert (found.pmi, found.npmi) == (pytest.approx(pmi), pytest.approx(npmi))


def graph_of(*terms: str) -> ChunkSet:
    """A chunk for each text of terms; those beside each other in it are related by co-occurrence."""
    chunks = []
    for chunk, names in zip(documents(a=tuple(f"{n}" for n in range(len(terms)))).chunks, terms, strict=True):
        words = names.split()
        pairs = [Triple(subject=a, object=b, keywords=(CO_OCCURRENCE,)) for a, b in pairwise(words)]
        mentions = tuple(Mention(name=word) for word in words)
        chunks.append(chunk.model_copy(update={"graph": ChunkGraph(mentions=mentions, triples=tuple(pairs))}))
    return ChunkSet(chunks=tuple(chunks))


A97 = ("x y", "x y", "x z", "x z", "z", "z", "v", "w")


def test_counts_are_read_off_the_graph() -> None:
    graph = view(graph_of(*A97))
    found = {fact.text[:5]: associate(graph, fact) for fact in graph.facts.values()}
    assert found == {"x – y": Association(8, 4, 2, 2), "x – z": Association(8, 4, 4, 2)}


def test_only_what_is_more_than_chance_is_an_association() -> None:
    graph = view(graph_of(*A97))
    (kept,) = associations(graph)
    assert graph.facts[kept].object_name == "y"
    assert associations(graph, min_joint=3) == {}
    assert associations(graph, min_pmi=1.0) == {}
    assert len(associations(graph, min_pmi=-0.1)) == 2


def test_a_reader_sees_only_what_the_visible_chunks_give() -> None:
    graph = view(graph_of(*A97))
    visible = graph.restricted(frozenset(graph.chunk_ids) - {"a:0"})
    assert list(associations(visible).values()) == [Association(7, 3, 4, 2)]  # x and z, now that n and n_x are smaller
    assert Association(7, 3, 1, 1) in associations(visible, min_joint=1).values()


def test_other_relations_are_no_co_occurrences() -> None:
    chunk = documents(a="1").chunks[0]
    related = ChunkGraph(triples=(Triple(subject="x", object="y", keywords=("love",)),))
    assert associations(view(ChunkSet(chunks=(chunk.model_copy(update={"graph": related}),))), min_joint=1) == {}
