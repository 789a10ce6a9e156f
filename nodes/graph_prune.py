"""`graph.prune_relations` and `graph.prune_entities`: the two questions that Think-on-Graph asks a model at every hop."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, TypeVar

from pydantic import Field, PositiveInt

from ragbraid.nodes.graph_walking import arrow_of, entities_of, has_facts, keep_paths
from ragbraid.nodes.reasoning import (
    Asking,
    Draft,
    OnInvalid,
    PromptLanguage,
    Temperature,
    ask_or_none,
    bounded,
    gather,
    pick,
    prompt_file,
)
from ragbraid.registry.context import report_note
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.graph import GraphPath, SubGraph
from ragbraid.registry.node import node
from ragbraid.registry.resources import LLM

T = TypeVar("T")

Keep = Annotated[int, Field(ge=1, le=50)]
HowManyShown = Annotated[int, Field(ge=1, le=200)]


class Picked(Draft):
    """The numbers of what helps."""

    keep: list[int] = Field(description="the numbers of what helps, best first; empty when nothing does")


@node(
    "graph.prune_relations",
    example="""
    step: {use: graph.explore, seeds: $ends, known: $walked, depth: 1, fan: 50}
    relations: {use: graph.prune_relations, subgraph: $step, keep: 3}
    """,
)
async def prune_relations(
    subgraph: SubGraph,
    question: str,
    *,
    llm: LLM,
    keep: Keep = 3,
    prompt: Annotated[str | None, prompt_file("relations", "keep")] = None,
    max_relations: HowManyShown = 50,
    max_tokens: PositiveInt = 300,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> SubGraph:
    """Lets a model choose along which relations to go on, and keeps the paths whose last fact is of one of these.

    The relation search of Think-on-Graph (Sun et al. 2024), with one call for the relations of all entities in place of
    one for each. A relation stands for the facts of one entity with one predicate in one direction. Where there are
    not more than `keep` the model is not asked.

    Args:
        subgraph: what was walked in this hop.
        question: the question.
        keep: how many relations stay at most, as the width of the search is in Think-on-Graph; more go back to the
            model as a mistake.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_relations: how many relations the model sees, the first ones; those behind them are left out, with a note
            in the trace.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the choice as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` takes
            the first `keep` relations, marked degraded.

    Raises:
        NodeInputError: the question is empty, the template is wrong, or there are facts but no paths to them.
        ServiceError: the model failed, or there is nothing to choose from because the search failed.
    """
    if not has_facts(subgraph):
        return subgraph
    _require_paths(subgraph)
    named, facts = entities_of(subgraph), {fact.id: fact for fact in subgraph.facts}
    groups: dict[tuple[str, str], list[GraphPath]] = {}
    for path in subgraph.paths:
        if path.facts:
            start = path.entities[-2]
            groups.setdefault((start, arrow_of(facts[path.facts[-1]], start)), []).append(path)
    lines = [f"({named[start].name}){arrow} [{len(paths)}]" for (start, arrow), paths in groups.items()]
    how = Asking(prompt, max_tokens, temperature, language)
    chosen = await _choose(llm, "relations", question, lines, keep, max_relations, how, on_invalid)
    listed = list(groups.values())
    wanted = {path for position in chosen for path in listed[position]}
    return keep_paths(subgraph, [path for path in subgraph.paths if path in wanted])


@node(
    "graph.prune_entities",
    example="""
    relations: {use: graph.prune_relations, subgraph: $step}
    entities: {use: graph.prune_entities, subgraph: $relations, keep: 3}
    ends: {use: graph.frontier, subgraph: $entities}
    """,
)
async def prune_entities(
    subgraph: SubGraph,
    question: str,
    *,
    llm: LLM,
    keep: Keep = 3,
    prompt: Annotated[str | None, prompt_file("entities", "keep")] = None,
    max_entities: HowManyShown = 50,
    max_tokens: PositiveInt = 300,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
    on_invalid: OnInvalid = "fail",
) -> SubGraph:
    """Lets a model choose from which entities to go on, and keeps the paths that end in one of these.

    The entity search of Think-on-Graph (Sun et al. 2024). An entity is shown with the first path that leads to it.
    Where there are not more than `keep` the model is not asked.

    Args:
        subgraph: what was walked in this hop.
        question: the question.
        keep: how many entities stay at most, as the width of the search is in Think-on-Graph; more go back to the
            model as a mistake.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_entities: how many entities the model sees, the first ones; those behind them are left out, with a note in
            the trace.
        max_tokens: bounds what the model writes; reaching it is an error.
        temperature: 0 makes the choice as repeatable as the model allows.
        language: language of the prompt; `auto` takes the question's.
        on_invalid: after an answer of the wrong form or one that was cut off, `fail` fails the step and `keep` takes
            the first `keep` entities, marked degraded.

    Raises:
        NodeInputError: the question is empty, the template is wrong, or there are facts but no paths to them.
        ServiceError: the model failed, or there is nothing to choose from because the search failed.
    """
    if not has_facts(subgraph):
        return subgraph
    _require_paths(subgraph)
    named = entities_of(subgraph)
    ends: dict[str, GraphPath] = {}
    for path in subgraph.paths:
        if path.facts:
            ends.setdefault(path.entities[-1], path)
    lines = [f"{named[id_].name}: {path.text}" for id_, path in ends.items()]
    how = Asking(prompt, max_tokens, temperature, language)
    chosen = await _choose(llm, "entities", question, lines, keep, max_entities, how, on_invalid)
    listed = list(ends)
    wanted = {listed[position] for position in chosen}
    return keep_paths(subgraph, [path for path in subgraph.paths if path.facts and path.entities[-1] in wanted])


def _require_paths(subgraph: SubGraph) -> None:
    if not any(path.facts for path in subgraph.paths):
        raise NodeInputError(
            "There are facts but no paths that lead to them, so there is no last hop to choose in.",
            kind="input",
            hint="give it what `graph.explore` or `graph.follow` found",
        )


async def _choose(
    llm: LLM, what: str, question: str, lines: Sequence[str], keep: int, most: int, how: Asking, on_invalid: OnInvalid
) -> list[int]:
    """Return the places of the lines that stay; the model is not asked where all of them can."""
    if len(lines) <= keep:
        return list(range(len(lines)))
    shown = shown_and_rest(lines, most, what)
    values = gather(question, lists={what: shown}, facts={"keep": keep})
    form, kept = bounded(Picked, "keep", keep), f"the first {keep} {what} were kept"
    draft = await ask_or_none(llm, f"prune_{what}", form, values, how, on_invalid, kept)
    return list(range(min(keep, len(shown)))) if draft is None else pick(draft.keep, len(shown))[0]


def shown_and_rest(items: Sequence[T], most: int, what: str) -> Sequence[T]:
    """Return the items that a model is shown, with a note in the trace about those that it is not."""
    if len(items) > most:
        report_note(f"{len(items) - most} {what} behind the first {most} were not shown to the model and left out")
    return items[:most]
