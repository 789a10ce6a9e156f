"""`context.budget`: whole hits from the front, as many as fit."""

from __future__ import annotations

import pytest
from reasoning_parts import failed_ranking, ranking

from ragbraid.nodes.context import budget
from ragbraid.registry.context import StepContext, step_context
from ragbraid.registry.contracts import Ranking

HITS = ranking("one two three", "four five", "six seven eight nine", "ten")


@pytest.mark.parametrize(
    ("max_tokens", "kept"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (8, 2), (9, 3), (10, 4), (1000, 4)]
)
def test_hits_stay_whole_until_the_first_that_does_not_fit(max_tokens: int, kept: int) -> None:
    found = budget(HITS, max_tokens=max_tokens)
    assert found == HITS.model_copy(update={"hits": HITS.hits[:kept]})


def test_the_first_hits_stay_even_if_they_do_not_fit() -> None:
    assert [len(budget(HITS, max_tokens=5, keep_min=n)) for n in (0, 1, 3, 99)] == [2, 2, 3, 4]


def test_what_is_dropped_is_told() -> None:
    step = StepContext()
    with step_context(step):
        budget(HITS, max_tokens=6)
        budget(HITS, max_tokens=10)
    assert step.notes == ["kept 2 of 4 hits, 5 of 10 tokens; `max_tokens` is 6"]


def test_chinese_counts_by_character_and_titles_and_sections_count() -> None:
    (plain,) = ranking("内存溢出")
    titled = plain.model_copy(update={"title": "运维手册", "section_path": ("第一章",)})
    given = Ranking(hits=(titled,), score_kind="rrf")
    assert [len(budget(given, max_tokens=n)) for n in (4, 10, 11)] == [0, 0, 1]


def test_nothing_stays_nothing_and_failure_stays_failure() -> None:
    assert budget(Ranking(), max_tokens=5) == Ranking()
    assert budget(failed_ranking(), max_tokens=5) == failed_ranking()
