"""`graph.spot_relations`: which relations of the knowledge graph a question names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Annotated

from pydantic import Field

from ragbraid.nodes.analysis import analyze
from ragbraid.nodes.graph_linking import COMMON, UNSPACED
from ragbraid.nodes.graph_walking import relation_key
from ragbraid.nodes.reasoning import Texts
from ragbraid.registry.context import report_note
from ragbraid.registry.graph_names import normalize_name
from ragbraid.registry.graph_view import GraphView
from ragbraid.registry.knowledge import KnowledgeBase, Where
from ragbraid.registry.node import node

_PARTICLES = "的了在是有和与为于被由对从到 "


@node(
    "graph.spot_relations",
    blocking=True,
    example="""
    names: graph.spot
    topics: {use: graph.link, mentions: $names}
    relations: graph.spot_relations
    stated: {use: graph.exact, subject: $topics, predicates: $relations}
    """,
)
def spot_relations(
    question: str,
    *,
    kb: KnowledgeBase,
    max_relations: Annotated[int, Field(ge=1, le=100)] = 20,
    where: Where | None = None,
) -> Texts:
    """Find the relations of the knowledge graph that a question names, without a model, for `graph.exact`.

    A relation is named where the question has all its words, apart from those that every question has, in whatever
    form: "designed by" in "Who was the designer?". In scripts without blanks between words it has to stand in the
    question as it is, a particle at its end aside, with at least two letters. A relation of common words alone, such as
    "is" or "has", is never named, and neither is one in another language than the question's: `graph.fuzzy` compares
    by meaning. Those of more words come first, then by frequency.

    Args:
        question: the question; nothing is found in an empty one.
        kb: the knowledge base.
        max_relations: how many relations are taken; a note in the trace says when there are more.
        where: only relations that chunks state which fulfil these conditions.

    Raises:
        SettingsError: the knowledge base does not exist, holds no knowledge graph, or lacks a field of `where`.
        ServiceError: the store failed.
    """
    words, text = _telling(question), normalize_name(question)
    if not words:
        return ()
    known = kb.graph(where).remember("words of relations", _words_of_relations)
    named = [relation for relation, marks in known.items() if all(_has(words, text, mark) for mark in marks)]
    found = sorted(named, key=lambda relation: -len(known[relation]))
    if len(found) > max_relations:
        report_note(f"{len(found) - max_relations} relations behind the first {max_relations} were left out")
    return tuple(found[:max_relations])


def _has(words: frozenset[str], text: str, mark: str) -> bool:
    return mark in text if UNSPACED.search(mark) else mark in words


def _words_of_relations(view: GraphView) -> Mapping[str, frozenset[str]]:
    """Return by what each relation is known, the most frequent relation first, as it is mostly spelled."""
    spellings: dict[str, Counter[str]] = {}
    for fact in view.facts.values():
        if key := relation_key(fact.predicate):
            spellings.setdefault(key, Counter())[fact.predicate] += 1
    ordered = sorted(spellings.items(), key=lambda item: (-item[1].total(), item[0]))
    marks = {min(spelled, key=lambda each: (-spelled[each], each)): _marks(key) for key, spelled in ordered}
    return {relation: telling for relation, telling in marks.items() if telling}


def _marks(key: str) -> frozenset[str]:
    """Return what a question that names a relation has: its telling words, or all of it where no blanks part words."""
    if not UNSPACED.search(key):
        return _telling(key)
    core = key.strip(_PARTICLES)
    mark = core if len(core) > 1 else key
    return frozenset({mark}) if core and len(mark) > 1 else frozenset()


def _telling(text: str) -> frozenset[str]:
    """Return the words of a text, in the form in which they are searched for, without those of any question."""
    return frozenset(analyze(text).words) - _common_forms()


@cache
def _common_forms() -> frozenset[str]:
    return frozenset(form for word in COMMON for form in analyze(word).words)
