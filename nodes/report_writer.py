"""Writing reports level by level: which are still true, which the model is asked for, which it fails to give."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

from pydantic import BaseModel, Field, model_validator

from ragbraid.nodes.batches import batches
from ragbraid.nodes.communities import COMMUNITY_PREFIX
from ragbraid.nodes.enriching import ABOUT_ONE_CHUNK, GIVE_UP_AFTER, make_stamp
from ragbraid.nodes.prompts import choose_language
from ragbraid.nodes.reasoning import Asking, Draft, Line, Note, bounded, gather, tidy, write_messages
from ragbraid.nodes.report_asking import for_each
from ragbraid.nodes.report_context import Material, describe_community, interleave, pick_statements
from ragbraid.registry.context import report_progress
from ragbraid.registry.errors import ServiceError
from ragbraid.registry.graph import Community, Insight, Report
from ragbraid.registry.graph_view import GraphView
from ragbraid.registry.resources import LLM, Message

REPORT_PREFIX = "report:"
SAVED_TOGETHER = 100
"""How many communities are dealt with between two savings; so many answers of the model a killed run may lose."""
MAX_FINDING_CHUNKS = 20
"""How many chunks a finding names; one about a thing that a thousand chunks mention needs no thousand."""


class DraftFinding(BaseModel):
    """One thing worth knowing."""

    summary: Line = Field(description="the finding in one sentence")
    explanation: Note = Field(default="", description="what there is to know about it, in a few sentences")
    statements: list[int] = Field(default=[], description="numbers of the statements that it rests on")


class DraftReport(Draft):
    """The report."""

    title: Line
    summary: Annotated[str, Field(json_schema_extra={"minLength": 1, "maxLength": 2000})]
    rating: float = Field(ge=0, le=10, allow_inf_nan=False, description="how much the group matters, from 0 to 10")
    rating_explanation: Note = ""
    findings: list[DraftFinding]

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not tidy(self.title) or not tidy(self.summary):
            raise ValueError("`title` or `summary` is empty")
        return self


@dataclass(frozen=True)
class WriterSettings:
    """How reports are written; see `report.write`."""

    how: Asking
    max_level: int
    max_input_tokens: int
    max_findings: int
    max_failed_share: float
    concurrency: int


class ReportWriter:
    """Writes the reports of one graph. `written` and `reused` count them, `failed` says which there are not and why.

    Args:
        view: the graph.
        found: its communities.
        old: the reports that exist.
        llm: writes the reports.
        settings: how.
    """

    def __init__(
        self, view: GraphView, found: Sequence[Community], old: Iterable[Report], llm: LLM, settings: WriterSettings
    ) -> None:
        self.wanted = [each for each in found if each.level <= settings.max_level]
        self.failed: dict[str, ServiceError] = {}
        self.written = 0
        self.reused = 0
        self._view = view
        self._by_id = {each.id: each for each in self.wanted}
        self._old = {each.id: each for each in old}
        self._by_stamp = {each.stamp: each for each in self._old.values() if each.stamp}
        self._llm = llm
        self._settings = settings
        self._made: dict[str, Report] = {}
        self._unknown = 0
        self._left_out = 0
        self._in_a_row = 0
        self._gave_up: ServiceError | None = None

    async def write(self) -> AsyncIterator[int]:
        """Write all reports, the finest level first; failures of the model are kept in `failed`.

        Yields:
            After every part in which some were written how many there are so far, so that they can be saved.
        """
        levels: dict[int, list[Community]] = defaultdict(list)
        for each in self.wanted:
            levels[each.level].append(each)
        for level in sorted(levels, reverse=True):
            for part in batches(levels[level], SAVED_TOGETHER):
                before = self.written
                materials = await asyncio.to_thread(self._describe, part)
                await for_each(materials, lambda pair: self._write_one(*pair), concurrency=self._settings.concurrency)
                if self.written > before:
                    yield self.written

    def so_far(self) -> list[Report]:
        """Return the reports that are made, and the earlier ones in whose place there is none yet."""
        made = {each.id: each for each in self._made.values()}
        return list({**self._old, **made}.values())

    def all_reports(self) -> list[Report]:
        """Return the reports that shall be there from now on, in order of level."""
        kept = {each.community_id: each for each in self.outdated} | self._made
        return [kept[each.id] for each in self.wanted if each.id in kept]

    @property
    def outdated(self) -> list[Report]:
        """The earlier reports about communities that now got none, where every chunk behind them is still there."""
        present = set(self._view.chunk_ids)
        found = []
        for id_ in self.failed:
            old = self._old.get(self.report_id(id_))
            if old is not None and present.issuperset(old.chunk_ids):
                found.append(old.model_copy(update=self._place(self._by_id[id_])))
        return found

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the run should know."""
        notes = []
        if self._left_out:
            notes.append(
                f"{self._left_out} communities did not fit into `max_input_tokens`, reports about parts included"
            )
        if self._unknown:
            notes.append(f"{self._unknown} numbers of the model stood for no statement and were left out")
        return tuple(notes)

    def names_of(self, community: Community, most: int = 3) -> tuple[str, ...]:
        """Return the names of its best connected entities."""
        ordered = sorted(community.entity_ids, key=lambda entity: (-self._view.degree(entity), entity))
        return tuple(self._view.entities[entity].name for entity in ordered[:most])

    @staticmethod
    def report_id(community_id: str) -> str:
        """Return the id of the report about a community."""
        return REPORT_PREFIX + community_id.removeprefix(COMMUNITY_PREFIX)

    def _describe(self, level: Sequence[Community]) -> list[tuple[Community, Material]]:
        return [
            (
                each,
                describe_community(
                    self._view,
                    each,
                    [self._by_id[child] for child in each.children if child in self._by_id],
                    self._made,
                    max_tokens=self._settings.max_input_tokens,
                ),
            )
            for each in level
        ]

    async def _write_one(self, community: Community, material: Material) -> None:
        self._left_out += material.left_out > 0
        messages = self._messages(material)
        stamp = self._stamp(messages)
        old = self._by_stamp.get(stamp)
        if old is not None:
            self.reused += 1
            self._made[community.id] = self._placed(old, community, material)
        elif self._gave_up is not None:
            self.failed[community.id] = self._gave_up
        else:
            await self._ask(community, material, messages, stamp)
        report_progress("write reports", len(self._made) + len(self.failed), len(self.wanted))

    def _messages(self, material: Material) -> list[Message]:
        how = self._settings.how
        spoken = choose_language(" ".join(each.text for each in material.statements), how.language)
        facts = {"max_findings": self._settings.max_findings}
        values = gather(None, lists={"statements": material.lines(spoken)}, facts=facts)
        return write_messages(spoken, "write_report", values, how)

    def _stamp(self, messages: Sequence[Message]) -> str:
        """Return what stands for everything that the text of a report depends on; the messages hold all material."""
        how = self._settings.how
        said = [(message.role, message.content) for message in messages]
        return make_stamp("report", self._llm.identity, how.temperature, self._settings.max_findings, said)

    async def _ask(self, community: Community, material: Material, messages: Sequence[Message], stamp: str) -> None:
        how = self._settings.how
        form = bounded(DraftReport, "findings", self._settings.max_findings)
        try:
            said = await self._llm.extract(messages, form, max_tokens=how.max_tokens, temperature=how.temperature)
        except ServiceError as error:
            self._note(community, error)
            return
        self._in_a_row = 0
        self.written += 1
        self._made[community.id] = self._placed(self._read(said.value, material, stamp), community, material)

    def _note(self, community: Community, error: ServiceError) -> None:
        self.failed[community.id] = error
        if error.kind in ABOUT_ONE_CHUNK:
            self._in_a_row = 0
            if len(self.failed) > self._settings.max_failed_share * len(self.wanted):
                self._gave_up = error
            return
        self._in_a_row += 1
        if error.kind == "auth" or self._in_a_row >= GIVE_UP_AFTER:
            self._gave_up = error

    def _read(self, draft: DraftReport, material: Material, stamp: str) -> Report:
        findings = []
        for each in draft.findings:
            statements, unknown = pick_statements(each.statements, material)
            self._unknown += unknown
            if summary := tidy(each.summary):
                based_on = tuple(statement.id for statement in statements)
                findings.append(Insight(summary=summary, explanation=tidy(each.explanation), based_on=based_on))
        return Report(
            id="",
            community_id="",
            level=0,
            title=tidy(draft.title),
            summary=tidy(draft.summary),
            findings=tuple(findings),
            rating=draft.rating,
            rating_explanation=tidy(draft.rating_explanation),
            stamp=stamp,
        )

    def _placed(self, report: Report, community: Community, material: Material) -> Report:
        """Return a report at its place in the hierarchy, with the chunks that stand behind its material now."""
        chunks = {each.id: each.chunk_ids for each in material.statements}
        findings = tuple(
            each.model_copy(
                update={
                    "chunk_ids": tuple(interleave([chunks.get(id_, ()) for id_ in each.based_on]))[:MAX_FINDING_CHUNKS]
                }
            )
            for each in report.findings
        )
        update = {**self._place(community), "findings": findings, "chunk_ids": material.chunk_ids}
        return report.model_copy(update=update)

    def _place(self, community: Community) -> dict[str, object]:
        above = community.parent_id
        return {
            "id": self.report_id(community.id),
            "community_id": community.id,
            "level": community.level,
            "entity_ids": community.entity_ids,
            "parent_id": None if above is None else self.report_id(above),
            "children": tuple(self.report_id(child) for child in community.children if child in self._by_id),
        }
