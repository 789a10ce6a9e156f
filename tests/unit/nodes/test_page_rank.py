"""The walk behind `graph.ppr`: the values of the methods document and of networkx, on any graph."""

from __future__ import annotations

import random
from collections.abc import Iterable

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ragbraid.nodes.page_rank import edges_of, page_rank
from ragbraid.registry.graph import Entity, Neighbour, make_entity, make_fact
from ragbraid.registry.graph_names import entity_id, fact_id
from ragbraid.registry.graph_parts import EntityPart, FactPart
from ragbraid.registry.graph_view import GraphView

Stated = tuple[str, str, str, float]
"""Chunk, subject, object, weight."""


def make_view(
    stated: Iterable[Stated], *, named: Iterable[tuple[str, str]] = (), near: Iterable[tuple[str, str, float]] = ()
) -> GraphView:
    stated = list(stated)
    mentions = {(c, end) for c, s, o, _ in stated for end in (s, o)} | set(named)
    names = sorted({name for _, name in mentions})
    close: dict[str, list[Neighbour]] = {}
    for first, second, score in near:
        close.setdefault(first, []).append(Neighbour(entity_id=entity_id(second), score=score))
    entities = [
        make_entity(
            entity_id(name),
            [EntityPart(chunk_id=c, name=name) for c, other in mentions if other == name],
            close.get(name, ()),
        )
        for name in names
    ]
    parts: dict[str, dict[str, FactPart]] = {}
    for chunk_id, subject, object_, weight in stated:
        part = FactPart(chunk_id=chunk_id, subject=subject, predicate="p", object=object_, weight=weight)
        parts.setdefault(fact_id(subject, "p", object_), {})[chunk_id] = part
    return GraphView(entities, [make_fact(id_, each.values()) for id_, each in parts.items()])


EXAMPLE = make_view([("P1", "alice", "acme", 2), ("P2", "acme", "paris", 2), ("P3", "bob", "tea", 2)])
SEEDS = {"alice": 1.0, "acme": 0.45, "paris": 0.8, "P1": 0.05, "P2": 0.02}


def walk(
    view: GraphView, seeds: dict[str, float], damping: float, *, synonyms: bool = True, chunks: bool = True
) -> dict[str, float]:
    edges = edges_of(view, synonyms=synonyms, chunks=chunks)
    places = {view.entities[id_].name: place for id_, place in edges.entities.items()} | dict(edges.chunks)
    restart = np.zeros(len(edges))
    for name, weight in seeds.items():
        restart[places[name]] = weight
    scores = page_rank(edges, restart / restart.sum(), damping)
    return {name: float(scores[place]) for name, place in places.items()}


@pytest.mark.parametrize(
    ("damping", "expected"),
    [
        (0.5, {"acme": 0.313000, "alice": 0.288938, "paris": 0.242274, "P1": 0.085016, "P2": 0.070773}),
        (0.85, {"acme": 0.359990, "alice": 0.215671, "paris": 0.200033, "P1": 0.115338, "P2": 0.108968}),
    ],
)
def test_the_example_of_the_methods_document(damping: float, expected: dict[str, float]) -> None:
    found = walk(EXAMPLE, SEEDS, damping)
    assert found == pytest.approx({**expected, "bob": 0, "tea": 0, "P3": 0}, abs=1e-6)


def test_two_facts_between_one_pair_count_as_one_edge_of_their_weights_together() -> None:
    parallel = [
        ("P1", "alice", "acme", 1.0), ("P1", "acme", "alice", 1.0), ("P2", "acme", "paris", 1.0),
        ("P2", "paris", "acme", 1.0), ("P3", "bob", "tea", 2.0),
    ]  # fmt: skip
    assert walk(make_view(parallel), SEEDS, 0.5) == pytest.approx(walk(EXAMPLE, SEEDS, 0.5), abs=1e-12)


def test_near_names_are_edges_of_their_cosine_beside_facts_and_once_for_both_ends() -> None:
    stated = [("P1", "alice", "acme", 1.0), ("P2", "acme inc", "paris", 1.0)]
    near = [("acme", "acme inc", 0.9), ("acme inc", "acme", 0.9), ("alice", "acme", 0.85)]
    view = make_view(stated, near=near)
    expected = networkx_of(view, {"alice": 1.0}, 0.5)
    assert walk(view, {"alice": 1.0}, 0.5) == pytest.approx(expected, abs=1e-9)
    assert walk(view, {"alice": 1.0}, 0.5, synonyms=False)["paris"] == 0
    assert expected["paris"] > 0


def test_without_chunks_the_walk_knows_entities_alone() -> None:
    found = walk(EXAMPLE, {"alice": 1.0}, 0.5, chunks=False)
    assert set(found) == {"alice", "acme", "paris", "bob", "tea"}
    # A path of three: alice = 1/2 + acme / 4, acme = alice / 2 + paris / 2, paris = acme / 4.
    assert found["acme"] == pytest.approx(1 / 3)
    assert found["alice"] == pytest.approx(7 / 12)


def test_the_matrix_of_a_graph_is_made_once_for_each_choice_of_edges() -> None:
    assert edges_of(EXAMPLE, synonyms=True, chunks=True) is edges_of(EXAMPLE, synonyms=True, chunks=True)
    assert edges_of(EXAMPLE, synonyms=False, chunks=True) is not edges_of(EXAMPLE, synonyms=True, chunks=True)


def networkx_of(view: GraphView, seeds: dict[str, float], damping: float) -> dict[str, float]:
    """The same graph built edge by edge, ranked by networkx."""
    graph = nx.Graph()

    def add(first: str, second: str, weight: float) -> None:
        before = graph.get_edge_data(first, second, {"weight": 0.0})["weight"]
        graph.add_edge(first, second, weight=before + weight)

    name: dict[str, str] = {id_: entity.name for id_, entity in view.entities.items()}
    graph.add_nodes_from([*name.values(), *view.chunk_ids])
    for fact in view.facts.values():
        add(name[fact.subject], name[fact.object], fact.weight)
    pairs: dict[frozenset[str], float] = {}
    for entity in view.entities.values():
        for chunk_id in entity.chunk_ids:
            add(entity.name, chunk_id, 1.0)
        for each in entity.neighbours:
            pair = frozenset((entity.name, name[each.entity_id]))
            pairs[pair] = max(each.score, pairs.get(pair, 0.0))
    for pair, score in pairs.items():
        add(*sorted(pair), score)
    found: dict[str, float] = nx.pagerank(graph, alpha=damping, personalization=seeds, tol=1e-14, max_iter=5000)
    return found


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), size=st.integers(2, 14), damping=st.floats(0.05, 0.95))
def test_any_graph_gives_what_networkx_gives(seed: int, size: int, damping: float) -> None:
    chance = random.Random(seed)
    names = [f"e{n}" for n in range(size)]
    stated = [
        (f"c{chance.randrange(size)}", *chance.sample(names, 2), round(chance.uniform(0.1, 5), 2)) for _ in range(size)
    ]
    named = [(f"c{chance.randrange(size + 2)}", chance.choice(names)) for _ in range(3)]
    known = sorted({name for _, s, o, _ in stated for name in (s, o)} | {name for _, name in named})
    near = [(*chance.sample(known, 2), round(chance.uniform(0.8, 1), 3)) for _ in range(3)]
    view = make_view(stated, named=named, near=near)
    nodes = [*known, *view.chunk_ids]
    seeds = {node: round(chance.uniform(0.01, 1), 3) for node in chance.sample(nodes, chance.randint(1, 4))}
    assert walk(view, seeds, damping) == pytest.approx(networkx_of(view, seeds, damping), abs=1e-8)


def test_a_node_without_edges_starts_over_as_in_networkx() -> None:
    # Without chunks, an entity that no fact names has no edge.
    view = make_view([("P1", "alice", "acme", 1.0)], named=[("P2", "zoe")])
    graph = nx.Graph([("alice", "acme")])
    graph.add_node("zoe")
    seeds = {"alice": 1.0, "zoe": 3.0}
    expected = nx.pagerank(graph, alpha=0.85, personalization=seeds, tol=1e-14, max_iter=5000)
    assert walk(view, seeds, 0.85, chunks=False) == pytest.approx(expected, abs=1e-9)


def test_nodes_behind_the_last_one_have_no_edges() -> None:
    edges = edges_of(EXAMPLE, synonyms=True, chunks=True)
    restart = np.zeros(len(edges) + 1)
    restart[edges.entities[entity_id("alice")]] = 0.5
    restart[-1] = 0.5
    graph = nx.Graph()
    graph.add_weighted_edges_from([("alice", "acme", 2), ("acme", "paris", 2), ("P1", "alice", 1), ("P1", "acme", 1)])
    graph.add_weighted_edges_from([("P2", "acme", 1), ("P2", "paris", 1)])
    graph.add_node("alone")
    expected = nx.pagerank(graph, alpha=0.5, personalization={"alice": 1, "alone": 1}, tol=1e-14, max_iter=5000)
    scores = page_rank(edges, restart, 0.5)
    assert scores[-1] == pytest.approx(expected["alone"], abs=1e-9)
    assert scores[edges.entities[entity_id("paris")]] == pytest.approx(expected["paris"], abs=1e-9)
    assert scores.sum() == pytest.approx(1)


def test_entities_are_those_of_the_view() -> None:
    edges = edges_of(EXAMPLE, synonyms=True, chunks=True)
    assert list(edges.entities) == list(EXAMPLE.entities)
    assert list(edges.chunks) == ["P1", "P2", "P3"]
    assert all(isinstance(each, Entity) for each in EXAMPLE.entities.values())
