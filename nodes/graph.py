"""The `graph.*` nodes: finding things in the knowledge graph of a knowledge base."""

from ragbraid.nodes.graph_chunks import to_chunks
from ragbraid.nodes.graph_facts import endpoints, entities, facts, filter_facts, relations_of
from ragbraid.nodes.graph_join import extend, facts_of, frontier, merge
from ragbraid.nodes.graph_link import link, mentions, spot
from ragbraid.nodes.graph_plan import plan_paths
from ragbraid.nodes.graph_prune import prune_entities, prune_relations
from ragbraid.nodes.graph_rank import ppr, seed, seed_entities
from ragbraid.nodes.graph_relations import spot_relations
from ragbraid.nodes.graph_select import exact, fuzzy, pick_facts
from ragbraid.nodes.graph_walk import explore, follow, walk_paths
from ragbraid.nodes.report_local import local_facts, text_units

__all__ = [
    "endpoints",
    "entities",
    "exact",
    "explore",
    "extend",
    "facts",
    "facts_of",
    "filter_facts",
    "follow",
    "frontier",
    "fuzzy",
    "link",
    "local_facts",
    "mentions",
    "merge",
    "pick_facts",
    "plan_paths",
    "ppr",
    "prune_entities",
    "prune_relations",
    "relations_of",
    "seed",
    "seed_entities",
    "spot",
    "spot_relations",
    "text_units",
    "to_chunks",
    "walk_paths",
]
