"""`report.write`: communities of the knowledge graph become reports, those inside others first."""

from __future__ import annotations

import asyncio
from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from ragbraid.nodes.communities import SEED, communities
from ragbraid.nodes.reasoning import Asking, PromptLanguage, Temperature
from ragbraid.nodes.report_writer import ReportWriter, WriterSettings
from ragbraid.registry.context import report_degraded, report_note
from ragbraid.registry.contracts import IndexReport
from ragbraid.registry.errors import LimitError, ServiceError
from ragbraid.registry.graph import Report
from ragbraid.registry.knowledge import KnowledgeBase
from ragbraid.registry.node import PromptFile, node
from ragbraid.registry.reports import MissingReport, ReportRun
from ragbraid.registry.resources import LLM, Embedder


@node(
    "report.write",
    cacheable=False,
    example="""
    index: {use: index.upsert, chunks: $chunks}
    reports: {use: report.write, after: $index, max_level: 2}
    """,
)
async def write(
    after: IndexReport | None = None,
    *,
    kb: KnowledgeBase,
    llm: LLM,
    embedder: Embedder,
    max_level: Annotated[int, Field(ge=0, le=10)] = 2,
    max_size: Annotated[int, Field(ge=2, le=1000)] = 10,
    seed: NonNegativeInt = SEED,
    max_input_tokens: Annotated[int, Field(ge=1000)] = 8000,
    max_findings: Annotated[int, Field(ge=1, le=50)] = 8,
    max_failed_share: Annotated[float, Field(ge=0, le=1)] = 0.2,
    concurrency: Annotated[int, Field(ge=1, le=64)] = 4,
    prompt: Annotated[str | None, PromptFile(("statements", "max_findings", "rule", "key", "language"))] = None,
    max_tokens: PositiveInt = 2000,
    temperature: Temperature = 0.0,
    language: PromptLanguage = "auto",
) -> ReportRun:
    """Writes a report about every community of the knowledge graph, and puts them in the place of the reports there.

    The index side of GraphRAG (Edge et al. 2024). Communities inside others come first, so that a large one can be
    described by the reports about its parts; GraphRAG puts all contexts together before any report exists. A report
    that was written from the same material, with the same prompt and model, is kept and the model not asked, so a rerun
    over an unchanged graph costs nothing. Findings say which facts they rest on, and so which chunks.

    A community for which the model gives no report of the right form stays without one and is named in the result; if
    its earlier report rests on nothing that is gone, that one stays. What is written is saved in parts beside the
    reports there, and at the end in their place, so a run that fails or is killed goes on where it was.

    Args:
        after: what has to be done before, such as the result of `index.upsert`; only the order counts.
        kb: the knowledge base whose graph it is, and where the reports go.
        llm: writes the reports.
        embedder: the model that filled the knowledge base.
        max_level: the finest level that gets reports; 0 are the coarsest communities.
        max_size: communities of more entities than this are divided further.
        seed: of the random numbers of the division.
        max_input_tokens: how much of a community the model sees, in words, CJK characters and signs; an English word is
            about 1.3 tokens of a model.
        max_findings: how many findings a report may have; more go back to the model as a mistake.
        max_failed_share: fail when a larger share of the communities than this gets no report.
        concurrency: how many communities are with the model at once.
        prompt: a template file that replaces ours; it may hold the blocks `system` and `user`, or be the user message.
        max_tokens: bounds what the model writes about one community.
        temperature: 0 makes the reports as repeatable as the model allows.
        language: language of the reports; `auto` takes that of what each is written from.

    Raises:
        NodeInputError: the template is wrong.
        SettingsError: the knowledge base holds no graph, or was filled with another model.
        ServiceError: the model failed too often, or the knowledge base changed meanwhile.
    """
    view = await asyncio.to_thread(kb.graph)
    old = await asyncio.to_thread(kb.reports)
    found = await asyncio.to_thread(communities, view, max_size=max_size, seed=seed)
    how = Asking(prompt, max_tokens, temperature, language)
    settings = WriterSettings(how, max_level, max_input_tokens, max_findings, max_failed_share, concurrency)
    writer = ReportWriter(view, found, old, llm, settings)
    generation = view.generation

    async def save(reports: list[Report]) -> None:
        nonlocal generation
        generation = await asyncio.to_thread(kb.replace_reports, reports, embedder=embedder, generation=generation)

    try:
        async for _ in writer.write():
            await save(writer.so_far())
    except LimitError:
        await save(writer.so_far())
        raise
    _require_enough(writer, max_failed_share)
    reports = writer.all_reports()
    await save(reports)
    return _result(kb.name, generation, writer, reports, old)


def _require_enough(writer: ReportWriter, max_failed_share: float) -> None:
    failed, total = len(writer.failed), len(writer.wanted)
    if failed > max_failed_share * total:
        first = next(iter(writer.failed.values()))
        raise ServiceError(
            f"{failed} of {total} communities got no report (`max_failed_share` allows {max_failed_share:.0%}); "
            f"those that were written are kept. The first failure: {first}",
            kind=first.kind,
        )


def _result(
    name: str, generation: int, writer: ReportWriter, reports: list[Report], old: tuple[Report, ...]
) -> ReportRun:
    outdated = {each.id for each in writer.outdated}
    missing = tuple(
        MissingReport(community_id=each.id, entities=writer.names_of(each), reason=str(writer.failed[each.id]))
        for each in writer.wanted
        if each.id in writer.failed and writer.report_id(each.id) not in outdated
    )
    if writer.failed:
        some = ", ".join(missing[0].entities) if missing else ""
        named = f"; the first is the one of {some}: {missing[0].reason}" if missing else ""
        report_degraded(
            f"{len(writer.failed)} of {len(writer.wanted)} communities got no report, {len(outdated)} of them keep "
            f"their earlier one{named}"
        )
    for note in writer.notes():
        report_note(note)
    return ReportRun(
        knowledge_base=name,
        generation=generation,
        communities=len(writer.wanted),
        written=writer.written,
        reused=writer.reused,
        outdated=len(outdated),
        removed=len({each.id for each in old} - {each.id for each in reports}),
        missing=missing,
        notes=writer.notes(),
    )
