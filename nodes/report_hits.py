"""Reports as hits, and which of them cover a graph without saying anything twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ragbraid.nodes.graph_hits import CHUNK_IDS, MAX_CHUNK_IDS, chunk_ids_of
from ragbraid.registry.contracts import Hit, ScoreKind
from ragbraid.registry.graph import Report

FINDINGS = "findings"
"""Key in the metadata of a report: its findings, each with `summary`, `explanation` and `chunk_ids`."""


def report_hit(report: Report, score: float, score_kind: ScoreKind) -> Hit:
    """Return a report as a hit; its metadata say which community it is about and which chunks stand behind it.

    The chunks that its findings rest on come first.
    """
    cited = dict.fromkeys(id_ for finding in report.findings for id_ in finding.chunk_ids)
    behind = list(dict.fromkeys([*cited, *report.chunk_ids]))
    return Hit(
        id=report.id,
        text=report.text,
        score=score,
        rank=1,
        score_kind=score_kind,
        kind="report",
        metadata={
            CHUNK_IDS: list(behind[:MAX_CHUNK_IDS]),
            "community_id": report.community_id,
            "level": report.level,
            "rating": report.rating,
            "title": report.title,
            "entity_ids": list(report.entity_ids),
            FINDINGS: [
                {"summary": each.summary, "explanation": each.explanation, "chunk_ids": list(each.chunk_ids)}
                for each in report.findings
            ],
        },
    )


def antichain(reports: Sequence[Report], level: int) -> list[Report]:
    """Return reports that cover what all of them cover, none about a part of another's community.

    These are the reports of exactly this level, and those of coarser communities without parts. A community some of
    whose parts have no report that can be seen stands for its parts itself. GraphRAG means to keep the deepest report of
    each entity, but groups by a column that tells nothing apart and keeps parents beside their parts.
    """
    by_id = {each.id: each for each in reports}
    roots = [each for each in reports if each.parent_id not in by_id and each.level <= level]
    chosen: list[Report] = []
    while roots:
        report = roots.pop()
        parts = [by_id[id_] for id_ in report.children if id_ in by_id]
        if report.level >= level or not parts or len(parts) < len(report.children):
            chosen.append(report)
        else:
            roots += parts
    return sorted(_without_parts_of_others(chosen), key=by_importance)


def _without_parts_of_others(reports: Sequence[Report]) -> list[Report]:
    """Leave out reports about parts of other communities, which nothing shows where those between cannot be seen."""
    covered: set[str] = set()
    kept = []
    for report in sorted(reports, key=lambda each: each.level):
        if covered.isdisjoint(report.entity_ids):
            covered.update(report.entity_ids)
            kept.append(report)
    return kept


def by_importance(report: Report) -> tuple[float, int, str]:
    """Order reports: the highest rating first, then the coarsest level, then by id."""
    return (-report.rating, report.level, report.id)


def deepest_reports(reports: Sequence[Report], level: int) -> dict[str, Report]:
    """Return for each entity the report about its finest community, up to a level."""
    found: dict[str, Report] = {}
    for report in sorted(reports, key=lambda each: (each.level, each.id)):
        if report.level <= level:
            found.update(dict.fromkeys(report.entity_ids, report))
    return found


@dataclass(frozen=True)
class Source:
    """A statement of a report, or another hit as a whole: where it stands and the chunks behind it."""

    text: str
    hit_id: str
    chunk_ids: tuple[str, ...]


def statements_of(hits: Sequence[Hit]) -> list[Source]:
    """Return what hits say, each with its chunks: a report's summary and each of its findings, any other hit whole."""
    return [source for hit in hits for source in _split(hit)]


def _split(hit: Hit) -> list[Source]:
    behind = tuple(chunk_ids_of(hit)) or ((hit.id,) if hit.kind == "chunk" else ())
    findings = hit.metadata.get(FINDINGS)
    if hit.kind != "report" or not isinstance(findings, list):
        named = f"{hit.title}: {hit.text}" if hit.title else hit.text
        return [Source(named, hit.id, behind)]
    title, summary = (*hit.text.split("\n", 2), "")[:2]
    return [
        Source(f"{title}: {summary}".rstrip(": "), hit.id, behind),
        *(_finding(each, hit, behind) for each in findings),
    ]


def _finding(finding: object, hit: Hit, behind: tuple[str, ...]) -> Source:
    said: Mapping[str, object] = finding if isinstance(finding, dict) else {}
    text = f"– {said.get('summary', '')}: {said.get('explanation', '')}".rstrip(": ")
    own = said.get("chunk_ids")
    return Source(text, hit.id, tuple(map(str, own)) if isinstance(own, list) and own else behind)
