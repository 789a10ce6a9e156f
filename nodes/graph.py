"""The `graph.*` nodes: finding things in the knowledge graph of a knowledge base."""

from ragbraid.nodes.graph_chunks import to_chunks
from ragbraid.nodes.graph_facts import endpoints, entities, facts, filter_facts, relations_of
from ragbraid.nodes.graph_rank import ppr, seed, seed_entities

__all__ = [
    "endpoints",
    "entities",
    "facts",
    "filter_facts",
    "ppr",
    "relations_of",
    "seed",
    "seed_entities",
    "to_chunks",
]
