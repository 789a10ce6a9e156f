"""What reading reports about communities gives: scored points, partial answers with follow-ups, and what writing did."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, NonNegativeInt

from ragbraid.registry.contract import Contract

Helpfulness = Annotated[int, Field(ge=0, le=100)]


class Point(Contract):
    """Something that reports or passages say to a question, and how much it helps to answer, from 0 to 100.

    `source_ids` are the hits that it rests on and `chunk_ids` the chunks behind what it names of them, the closest
    first.
    """

    text: str
    score: Helpfulness
    source_ids: tuple[str, ...] = ()
    chunk_ids: tuple[str, ...] = ()


class Points(Contract):
    """Points from one reading, in the order in which they were made.

    `unknown` counts the numbers of the model that stood for nothing it was shown. It is degraded where something that
    should have been read was not, with the reason in `error`.
    """

    points: tuple[Point, ...] = ()
    unknown: NonNegativeInt = 0
    degraded: bool = False
    error: str | None = None


class PartialAnswer(Contract):
    """What some evidence says to a question, how much that helps from 0 to 100, and what to look up next.

    It is empty where there was nothing to read, and degraded where reading failed.
    """

    answer: str = ""
    score: Helpfulness = 0
    follow_ups: tuple[str, ...] = ()
    source_ids: tuple[str, ...] = ()
    chunk_ids: tuple[str, ...] = ()
    unknown: NonNegativeInt = 0
    degraded: bool = False
    error: str | None = None

    @property
    def points(self) -> Points:
        """The answer as the one point of a reading; no point where there is no answer."""
        point = Point(text=self.answer, score=self.score, source_ids=self.source_ids, chunk_ids=self.chunk_ids)
        made = (point,) if self.answer else ()
        return Points(points=made, unknown=self.unknown, degraded=self.degraded, error=self.error)


class Leads(Contract):
    """Where a search that asks on stands.

    `questions` are to be followed next, the most promising first, `asked` holds them and all before them, `points` all
    that is known so far. `left_out` counts follow-ups beyond the limit; they are not followed.
    """

    questions: tuple[str, ...] = ()
    asked: tuple[str, ...] = ()
    points: tuple[Points, ...] = ()
    left_out: NonNegativeInt = 0


class MissingReport(Contract):
    """A community without a report: its id, some of its entities, and why there is none."""

    community_id: str
    entities: tuple[str, ...] = ()
    reason: str


class ReportRun(Contract):
    """What a run that writes reports did.

    Of the `communities`, `written` got a new report, `reused` kept theirs because nothing that it was written from has
    changed, `outdated` kept one that could not be written anew, and those in `missing` have none. `removed` counts
    reports about communities that are gone.
    """

    knowledge_base: str
    generation: NonNegativeInt
    communities: NonNegativeInt = 0
    written: NonNegativeInt = 0
    reused: NonNegativeInt = 0
    outdated: NonNegativeInt = 0
    removed: NonNegativeInt = 0
    missing: tuple[MissingReport, ...] = ()
    notes: tuple[str, ...] = ()


REPORT_CONTRACTS: dict[str, type[Any]] = {
    cls.__name__: cls for cls in (Leads, MissingReport, PartialAnswer, Point, Points, ReportRun)
}
"""The type names of reports that flow files may use."""
