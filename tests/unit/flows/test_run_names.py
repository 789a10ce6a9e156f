from typing import Any

import pytest

from ragbraid.dsl.plan import InputSpec
from ragbraid.flows.run_names import MAX_NAME, run_name
from ragbraid.flows.secrets import hide
from ragbraid.registry.contracts import Document


def spec(name: str, *, required: bool = True, default: Any = None) -> InputSpec:
    return InputSpec(name=name, type=str, default=default, required=required, about="", declared={})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"question": "Who keeps the light?"}, "Who keeps the light?"),
        ({"question": " two\nlines\t of \r it "}, "two lines of it"),
        ({"question": "a\x00b\x1b[31m\u202eevil\ud800"}, "ab[31mevil"),
        ({"question": "多少天年假？"}, "多少天年假？"),
        ({"question": "x" * 200}, "x" * (MAX_NAME - 1) + "…"),
        ({"question": "", "folder": "docs/manuals"}, "docs/manuals"),
        ({"folder": "docs", "query": "asked"}, "asked"),
        ({"folder": "/" + "deep/" * 40 + "end.md"}, "…" + ("deep/" * 40 + "end.md")[1 - MAX_NAME :]),
        ({"url": "https://me:pass@host/wiki?token=abc#top"}, "https://host/wiki"),
        ({"question": 3}, None),
        ({"question": " \x00\u200b "}, None),
        ({"text": "neither"}, None),
        ({}, None),
    ],
)
def test_a_run_is_called_after_its_question_or_its_source(given: dict[str, Any], expected: str | None) -> None:
    specs = [spec(name) for name in ("folder", "text", "url", "query", "question")]
    assert run_name(specs, given) == expected


def test_a_default_names_a_run_that_nobody_filled_in() -> None:
    assert run_name([spec("folder", required=False, default="data/handbook")], {}) == "data/handbook"
    assert run_name([spec("folder", required=False, default=None)], {}) is None


def test_a_name_that_a_person_chose_is_kept() -> None:
    specs = [spec("question")]
    asked = {"question": "Who?"}
    assert run_name(specs, asked, "ruddy-otter") == "Who?"
    for chosen in ("Nightly", "run 7", "Who?", "before-2026"):
        assert run_name(specs, asked, chosen) is None


def test_secrets_are_no_part_of_a_name_not_even_in_part() -> None:
    hide("a-secret-that-is-long-enough-to-be-cut")
    found = run_name([spec("question")], {"question": "x" * 50 + "a-secret-that-is-long-enough-to-be-cut"})
    assert found == "x" * 50 + "***"


def test_what_is_no_text_names_nothing() -> None:
    document = Document(id="1", source="1", text="x", content_hash="0")
    assert run_name([spec("source")], {"source": document}) is None
