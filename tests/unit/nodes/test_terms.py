import pytest

from ragbraid.nodes.terms import find_terms
from ragbraid.registry.contracts import Chunk


def names(text: str, **fields: object) -> list[str]:
    given = {"id": "c", "document_id": "d", "source": "a", "index": 0, "text": text, **fields}
    return [term.name for term in find_terms(Chunk.model_validate(given)).values()]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Marie Curie worked at the University of Oxford in 1911.", ["Marie Curie", "University of Oxford"]),
        ("The gateway failed with ERR_OOM_KILL_001 and CVE-2024-12345.", ["ERR_OOM_KILL_001", "CVE-2024-12345"]),
        ("However, Poland won against The Netherlands.", ["Poland", "Netherlands"]),
        ("Yesterday was fine. Tomorrow will be, too.", []),
        ("Paris is nice. Many live in Paris.", ["Paris"]),
        ("She met Albert Einstein's wife, and Apollo 11.", ["Albert Einstein", "Apollo 11"]),
        ("It was written by Steven E. de Souza. They left after World War I. The end.", ["Steven E. de Souza", "World War I"]),
        ("The WHO acted. WHO!", ["WHO"]),
        ("THIS IS A VERY LOUD HEADLINE ABOUT NOTHING IN PARTICULAR", []),
        ("Москва была столицей; он жил в Москве.", ["Москве"]),
        ("in this lower-case text there is nothing", []),
        ("", []),
        ("?!… *** 123 456", []),
    ],
)  # fmt: skip
def test_names_and_identifiers_are_terms(text: str, found: list[str]) -> None:
    assert names(text) == found


def test_chinese_nouns_and_katakana_words_are_terms() -> None:
    assert names("居里夫人1867年生于华沙，在巴黎大学研究放射性。") == ["居里夫人", "华沙", "巴黎大学", "放射性"]
    assert names("ソニーのカメラ") == ["ソニー", "カメラ"]


def test_a_short_title_is_a_term_and_headings_are_read_for_terms() -> None:
    assert names("it is big", title="The  big apple", section_path=("Life in Rome",)) == ["The big apple", "Rome"]
    assert names("it is big", title="a title that goes on and on and on and on") == []


def test_spellings_of_one_name_are_one_term_with_its_count() -> None:
    chunk = Chunk(id="c", document_id="d", source="a", index=0, text="In Rome, ROME and “Rome”.")
    assert {key: (term.name, term.count) for key, term in find_terms(chunk).items()} == {"rome": ("Rome", 3)}
