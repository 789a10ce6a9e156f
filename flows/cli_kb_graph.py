"""`ragbraid kb graph`: the knowledge graph of a knowledge base, by its entities, around one of them, or as triples."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from pydantic import TypeAdapter

from ragbraid.dsl.tables import format_table
from ragbraid.flows.cli_kb_place import DEFAULT_RESOURCE, look, opened
from ragbraid.flows.cli_output import print_json
from ragbraid.registry.errors import SettingsError
from ragbraid.registry.graph import Entity, Fact
from ragbraid.registry.graph_view import GraphView
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.suggest import did_you_mean

_ENTITY = TypeAdapter(Entity)
_FACT = TypeAdapter(Fact)
_SHOWN_SOURCES = 3


@click.command()
@click.argument("name", default=DEFAULT_RESOURCE)
@click.option("--entity", help="Show one entity with its facts and the passages behind them.")
@click.option("--top", default=20, show_default=True, help="How many entities, or facts of one, to show.")
@click.option("--triples", is_flag=True, help="Print all facts as JSON Lines, as `load.triples` reads them.")
def graph(
    name: str,
    entity: str | None,
    top: int,
    triples: bool,
    profile: str | None,
    project: Path | None,
    flow: Path | None,
    as_json: bool,
) -> None:
    """Show the knowledge graph of a knowledge base: its best-connected entities, one of them, or all facts."""
    if entity is not None and triples:
        raise click.UsageError("--entity and --triples are two ways to look; take one of them")
    with opened(look(profile, project, flow).find(name)) as base:
        view = base.graph()
        if triples:
            for line in _triples(view):
                click.echo(line)
        elif entity is None:
            _show_entities(view, top, as_json)
        else:
            _show_entity(base, view, entity, top, as_json)


def _show_entities(view: GraphView, top: int, as_json: bool) -> None:
    best = sorted(view.entities.values(), key=lambda each: (-view.degree(each.id), each.id))[:top]
    rows: list[dict[str, Any]] = [
        {"name": each.name, "type": each.type, "facts": view.degree(each.id), "chunks": len(each.chunk_ids)}
        for each in best
    ]
    if as_json:
        print_json({"entities": len(view.entities), "facts": len(view.facts), "top": rows})
        return
    click.echo(f"{len(view.entities)} entities, {len(view.facts)} facts")
    click.echo(
        format_table(("ENTITY", "TYPE", "FACTS", "CHUNKS"), [[str(value) for value in row.values()] for row in rows])
    )


def _show_entity(base: KnowledgeBase, view: GraphView, name: str, top: int, as_json: bool) -> None:
    found = view.named(name)
    if not found:
        near = did_you_mean(name, [each.name for each in view.entities.values()])
        raise SettingsError(f"the knowledge graph of `{base.name}` has no entity `{name}`", hint=near)
    for entity in found:
        facts = sorted(view.facts_of(entity.id), key=lambda fact: (-fact.weight, fact.id))
        if as_json:
            shown = [_FACT.dump_python(fact, mode="json") for fact in facts[:top]]
            print_json({"entity": _ENTITY.dump_python(entity, mode="json"), "facts": shown, "all_facts": len(facts)})
        else:
            click.echo("\n".join(_lines_about(base, view, entity, facts, top)))


def _lines_about(base: KnowledgeBase, view: GraphView, entity: Entity, facts: list[Fact], top: int) -> Iterator[str]:
    yield f"{entity.name} ({', '.join(entity.types) or entity.type}), named by {len(entity.chunk_ids)} chunks"
    if entity.aliases:
        yield f"  also: {', '.join(entity.aliases)}"
    if entity.description:
        yield f"  {entity.description}"
    if entity.neighbours:
        near = (f"{view.entities[each.entity_id].name} ({each.score:.2f})" for each in entity.neighbours)
        yield f"  nearly the same name: {', '.join(near)}"
    for fact in facts[:top]:
        yield f"  - {fact.text}  [{', '.join(_sources(base, fact))}]"
    if len(facts) > top:
        yield f"  ... and {len(facts) - top} more facts (--top {len(facts)})"


def _sources(base: KnowledgeBase, fact: Fact) -> list[str]:
    sources = sorted({chunk.source for chunk in base.fetch(fact.chunk_ids)})
    more = len(sources) - _SHOWN_SOURCES
    return [*sources[:_SHOWN_SOURCES], *([f"and {more} more"] if more > 0 else [])]


def _triples(view: GraphView) -> Iterator[str]:
    for fact in view.facts.values():
        for part in fact.parts:
            line = {
                "subject": part.subject,
                "predicate": part.predicate,
                "object": part.object,
                "chunk_id": part.chunk_id,
            }
            yield json.dumps(line, ensure_ascii=False)
