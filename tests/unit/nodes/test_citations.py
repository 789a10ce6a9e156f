import pytest

from ragbraid.nodes.citations import is_quoted, resolve_citations
from ragbraid.registry.contracts import Hit

HITS = [
    Hit(id="a", text="The archive opens\nat nine.", score=3, rank=1, score_kind="rrf", document_id="d1", source="a.md",
        title="Hours", section_path=("City", "Archive")),
    Hit(id="b", text="检索\n流程 分为三步。", score=2, rank=2, score_kind="rrf"),
    Hit(id="c", text="The ﬁrst ｆｌｏｏｒ is closed.", score=1, rank=3, score_kind="rrf"),
]  # fmt: skip


def test_markers_are_renumbered_in_order_of_appearance() -> None:
    cited = resolve_citations("Closed [3]. Nine [1]. Closed again [3][1].", [], HITS)
    assert cited.text == "Closed [1]. Nine [2]. Closed again [1][2]."
    assert [(c.marker, c.chunk_id) for c in cited.citations] == [(1, "c"), (2, "a")]
    assert cited.unknown == 0


def test_a_citation_carries_where_its_passage_comes_from() -> None:
    (citation,) = resolve_citations("Nine [1].", [(1, "opens at nine")], HITS).citations
    assert (citation.document_id, citation.source, citation.title) == ("d1", "a.md", "Hours")
    assert citation.section_path == ("City", "Archive")
    assert (citation.quote, citation.verified) == ("opens at nine", True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One [1, 3].", "One [1][2]."),
        ("一【1，2】。", "一[1][2]。"),
        ("One [ 2 ] and ［1；3］.", "One [1] and [2][3]."),
        ("One [1,1].", "One [1]."),
        ("An array a[x] stays, [see] too.", "An array a[x] stays, [see] too."),
    ],
)
def test_the_ways_in_which_models_write_markers_are_understood(text: str, expected: str) -> None:
    assert resolve_citations(text, [], HITS).text == expected


def test_unknown_numbers_leave_text_and_list_and_are_counted_once_each() -> None:
    cited = resolve_citations("Nine [7]. Ten [1, 9] eleven [0].", [(7, "x"), (12, "y"), (1, "nine")], HITS)
    assert cited.text == "Nine. Ten [1] eleven."
    assert [(c.marker, c.chunk_id) for c in cited.citations] == [(1, "a")]
    assert cited.unknown == 4


def test_a_passage_listed_without_a_marker_gets_one_at_the_end() -> None:
    cited = resolve_citations("Closed [3].", [(1, "nine"), (3, "closed")], HITS)
    assert cited.text == "Closed [1]. [2]"
    assert [(c.marker, c.chunk_id, c.verified) for c in cited.citations] == [(1, "c", True), (2, "a", True)]


def test_a_marker_without_a_quote_is_not_verified() -> None:
    (citation,) = resolve_citations("Nine [1].", [(1, "  ")], HITS).citations
    assert (citation.quote, citation.verified) == (None, False)


def test_of_several_quotes_the_first_verified_one_stays_else_the_first() -> None:
    (citation,) = resolve_citations("Nine [1].", [(1, "at ten"), (1, "at nine"), (1, "opens")], HITS).citations
    assert (citation.quote, citation.verified) == ("at nine", True)
    (citation,) = resolve_citations("Nine [1].", [(1, "at ten"), (1, "at two")], HITS).citations
    assert (citation.quote, citation.verified) == ("at ten", False)


@pytest.mark.parametrize(
    ("quote", "hit", "found"),
    [
        ("opens at nine", 0, True),
        ("检索流程分为三步", 1, True),
        ("The first floor", 2, True),
        ("the first floor", 2, False),
        ("opens at ten", 0, False),
        ("", 0, False),
        (" \n", 0, False),
    ],
)
def test_quotes_are_compared_after_nfkc_and_without_white_space(quote: str, hit: int, found: bool) -> None:
    assert is_quoted(quote, HITS[hit].text) is found


def test_an_answer_without_citations_stays_as_it_is() -> None:
    cited = resolve_citations("  Nothing cited. ", [], HITS)
    assert (cited.text, cited.citations, cited.unknown) == ("Nothing cited.", (), 0)


FACT = Hit(
    id="fact:1", text="Acme based in Paris", score=1, rank=1, score_kind="cosine", kind="fact", document_id="d1",
    source="a.md", metadata={"chunk_ids": ["c7", "c9"]},
)  # fmt: skip


@pytest.mark.parametrize("kind", ["fact", "entity", "report"])
def test_what_comes_from_chunks_is_cited_as_the_first_of_them_with_a_quote_of_what_was_shown(kind: str) -> None:
    hit = FACT.model_copy(update={"kind": kind})
    cited = resolve_citations("In Paris [1].", [(1, "based in Paris")], [hit])
    (citation,) = cited.citations
    assert (citation.chunk_id, citation.document_id, citation.source) == ("c7", "d1", "a.md")
    assert (citation.quote, citation.verified) == ("based in Paris", True)


def test_a_fact_without_a_chunk_is_cited_as_itself_and_a_chunk_never_as_another() -> None:
    bare = FACT.model_copy(update={"metadata": {}})
    chunk = HITS[0].model_copy(update={"metadata": {"chunk_ids": ["of the author"]}})
    cited = resolve_citations("Paris [1], nine [2].", [], [bare, chunk])
    assert [citation.chunk_id for citation in cited.citations] == ["fact:1", "a"]
