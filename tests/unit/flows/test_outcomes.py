from __future__ import annotations

from ragbraid.flows.outcomes import failures_of, outcome_of, refused_outcome
from ragbraid.registry.contracts import IndexReport, SourceReport


def report(*reasons: str | None) -> IndexReport:
    failed = (SourceReport(source=f"{index}.pdf", status="failed", reason=why) for index, why in enumerate(reasons))
    kept = SourceReport(source="kept.md", status="unchanged", reason="it holds no text")
    return IndexReport(knowledge_base="kb", generation=2, sources=(kept, *failed), unchanged=1, failed=len(reasons))


def test_the_outcome_has_the_totals_of_every_report_and_none_of_anything_else() -> None:
    assert outcome_of(report("it is damaged")) == "1 unchanged, 1 failed"
    assert outcome_of({"a": report(), "b": report(None), "c": 3}) == "a: 1 unchanged; b: 1 unchanged, 1 failed"
    assert outcome_of({"c": 3}) is None


def test_every_source_that_failed_is_told_with_its_reason_up_to_the_limit() -> None:
    assert failures_of({"a": report("it is damaged"), "b": report(None)}, 5) == [
        "0.pdf: it is damaged",
        "0.pdf: it could not be read",
    ]
    assert failures_of(report("a", "b", "c"), 2) == ["0.pdf: a", "1.pdf: b", "and 1 more"]
    assert failures_of(report(), 2) == failures_of("text", 2) == []


def test_a_report_that_is_refused_says_what_failed() -> None:
    assert refused_outcome(report("it is damaged")) == "1 unchanged, 1 failed; 0.pdf: it is damaged"
    assert refused_outcome([1]) is None
