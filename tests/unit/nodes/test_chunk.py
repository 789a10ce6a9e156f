"""Chunkers: the hand-computed examples, exact spans for any text, and what ids depend on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbraid.nodes.chunk import chunk_by_headings, chunk_by_window, chunk_recursively, keep_whole
from ragbraid.nodes.chunking import RecursiveSplitter, find_tokens, slide_window
from ragbraid.nodes.markdown import find_headings
from ragbraid.registry.contracts import ChunkSet, Document, DocumentSet, SourceFailure
from ragbraid.registry.errors import NodeInputError

FRAMEWORK_SEPARATORS = ["\n\n", "\n", " ", ""]
CHINESE = "内存溢出处理指南。第一步检查日志。第二步重启。"


def documents(*texts: str, title: str | None = None) -> DocumentSet:
    made = [
        Document(id=f"d{n}", source=f"s{n}", text=text, title=title, content_hash=f"h{n}", metadata={"lang": "zh"})
        for n, text in enumerate(texts)
    ]
    return DocumentSet(documents=tuple(made), scope="/data", complete=True)


def texts_of(chunks: ChunkSet) -> list[str]:
    return [chunk.text for chunk in chunks.chunks]


# -- recursive: A28-A32 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "settings", "expected"),
    [
        ("aaaa bbbb cccc dddd", {"size": 9, "separators": [" "]}, ["aaaa bbbb", "cccc", "dddd"]),
        (
            "aaaa bbbb cccc dddd",
            {"size": 10, "overlap": 5, "separators": [" "]},
            ["aaaa bbbb", "bbbb cccc", "cccc dddd"],
        ),
        (
            CHINESE,
            {"size": 10, "separators": FRAMEWORK_SEPARATORS},
            ["内存溢出处理指南。第", "一步检查日志。第二步", "重启。"],
        ),
        ("abcdefghij", {"size": 4, "overlap": 2}, ["abcd", "cdef", "efgh", "ghij"]),
    ],
)
def test_recursive_chunks_with_separators_at_the_start_are_those_of_the_original(
    text: str, settings: dict[str, object], expected: list[str]
) -> None:
    assert texts_of(chunk_recursively(documents(text), keep_separator="start", **settings)) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize("separators", [["。"], None])
def test_chinese_sentences_stay_whole_with_our_separators(separators: list[str] | None) -> None:
    chunks = chunk_recursively(documents(CHINESE), size=10, separators=separators)
    assert texts_of(chunks) == ["内存溢出处理指南。", "第一步检查日志。", "第二步重启。"]


@pytest.mark.parametrize("chunker", [chunk_recursively, chunk_by_window, chunk_by_headings, keep_whole])
def test_text_without_words_gives_no_chunk_but_keeps_its_source(chunker: Callable[[DocumentSet], ChunkSet]) -> None:
    chunks = chunker(documents("", " \n\t  "))
    assert len(chunks) == 0
    assert [(source.source, source.document_id, source.content_hash) for source in chunks.sources] == [
        ("s0", "d0", "h0"),
        ("s1", "d1", "h1"),
    ]


@pytest.mark.parametrize("overlap", [10, 11])
def test_an_overlap_that_reaches_the_size_is_refused(overlap: int) -> None:
    for chunker in (chunk_recursively, chunk_by_window, chunk_by_headings):
        with pytest.raises(NodeInputError, match=rf"overlap \({overlap}\) must be smaller than the size \(10\)"):
            chunker(documents("x"), size=10, overlap=overlap)


def test_a_separator_between_joined_pieces_stays_when_none_is_kept() -> None:
    chunks = chunk_recursively(documents("aa,bb,cc,dd"), size=6, separators=[","], keep_separator="none")
    assert texts_of(chunks) == ["aa,bb", "cc,dd"]


def test_a_piece_stays_too_long_when_no_separator_is_left() -> None:
    assert texts_of(chunk_recursively(documents("abcdefgh ij"), size=4, separators=[" "])) == ["abcdefgh", "ij"]


def test_sizes_may_be_counted_in_tokens() -> None:
    chunks = chunk_recursively(documents("one two three. 内存溢出。 four"), size=4, unit="tokens")
    assert texts_of(chunks) == ["one two three.", "内存溢出", "。", "four"]


# -- window: A38 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (1450, [(0, 500), (450, 950), (900, 1400), (1350, 1450)]),
        (1400, [(0, 500), (450, 950), (900, 1400)]),
        (500, [(0, 500)]),
        (501, [(0, 500), (450, 501)]),
        (1, [(0, 1)]),
        (0, []),
    ],
)
def test_windows_stop_at_the_first_that_reaches_the_end(count: int, expected: list[tuple[int, int]]) -> None:
    assert list(slide_window(((n, n + 1) for n in range(count)), 500, 50)) == expected
    words = " ".join("w" * 3 for _ in range(count))
    spans = [(c.span.start // 4, c.span.end // 4 + 1) for c in chunk_by_window(documents(words)).chunks if c.span]
    assert spans == expected


@given(st.integers(0, 60), st.integers(1, 12), st.data())
def test_the_number_of_windows_follows_the_formula(count: int, size: int, data: st.DataObject) -> None:
    overlap = data.draw(st.integers(0, size - 1))
    windows = list(slide_window(((n, n + 1) for n in range(count)), size, overlap))
    expected = (count > 0) + max(0, -((size - count) // (size - overlap)))
    assert len(windows) == expected
    assert [start for start, _ in windows] == [n * (size - overlap) for n in range(expected)]


def test_tokens_are_words_cjk_characters_and_signs_and_long_words_are_bounded() -> None:
    text = "Don't mix 内存 カナ 한 x_1! " + "a" * 90
    tokens = [text[start:end] for start, end in find_tokens(text)]
    assert tokens[:13] == ["Don", "'", "t", "mix", "内", "存", "カ", "ナ", "한", "x_1", "!", "a" * 40, "a" * 40]


def test_windows_may_be_counted_in_characters() -> None:
    assert texts_of(chunk_by_window(documents("abcdefghij"), size=4, overlap=2, unit="chars")) == [
        "abcd",
        "cdef",
        "efgh",
        "ghij",
    ]


# -- headings: A43, A44 ------------------------------------------------------------------------------------------------


def test_text_before_the_first_heading_is_a_chunk_and_a_heading_without_text_is_none() -> None:
    chunks = chunk_by_headings(documents("前言\n# A\n正文\n# B\n"))
    assert [(c.text, c.section_path, c.embed_text) for c in chunks.chunks] == [
        ("前言", (), None),
        ("正文", ("A",), "A\n\n正文"),
    ]


@pytest.mark.parametrize(
    "code",
    [
        "```\n# x\n```",
        "~~~ python\n# x\n```\n# y\n~~~",
        "````\n```\n# x\n````",
        "  ```sh\n# x\n  ```",
        "```\n# never closed",
    ],
)
def test_a_hash_inside_fenced_code_is_no_heading(code: str) -> None:
    assert find_headings(f"text\n\n{code}\n") == []
    assert len(chunk_by_headings(documents(f"# T\n\n{code}\n"))) == 1


def test_both_styles_of_headings_are_found_with_levels_and_offsets() -> None:
    text = "Title\n=====\n\nintro\n\nSub\n---\nx\n### Deep ###\n#5 no heading\n#\n## C# and F#\r\n"
    found = [(h.level, h.title, text[h.start : h.end]) for h in find_headings(text)]
    assert found == [
        (1, "Title", "Title\n=====\n"),
        (2, "Sub", "Sub\n---\n"),
        (3, "Deep", "### Deep ###\n"),
        (1, "", "#\n"),
        (2, "C# and F#", "## C# and F#\r\n"),
    ]


@pytest.mark.parametrize(
    "text", ["- item\n---\n", "a\nb\n---\n", "| a | b |\n---\n", "    code\n---\n", "\n---\n", "---\n"]
)
def test_a_rule_below_anything_but_a_single_line_is_no_heading(text: str) -> None:
    assert find_headings(text) == []


def test_sections_know_the_headings_above_them_and_the_title_is_said_once() -> None:
    text = "# Guide\n\nstart\n\n## Install\n\n### Linux\n\nrun it\n\n## Use\n\nenjoy\n"
    chunks = chunk_by_headings(documents(text, title="Guide")).chunks
    assert [(c.text, c.embed_text) for c in chunks] == [
        ("start", "Guide\n\nstart"),
        ("run it", "Guide > Install > Linux\n\nrun it"),
        ("enjoy", "Guide > Use\n\nenjoy"),
    ]
    other = chunk_by_headings(documents(text, title="Handbook")).chunks
    assert other[1].embed_text == "Handbook > Guide > Install > Linux\n\nrun it"
    assert other[1].section_path == ("Guide", "Install", "Linux")


def test_headings_below_the_asked_level_stay_in_the_text() -> None:
    chunks = chunk_by_headings(documents("# A\nx\n## B\ny\n"), levels=1)
    assert texts_of(chunks) == ["x\n## B\ny"]


def test_a_long_section_is_split_and_every_part_keeps_its_path() -> None:
    chunks = chunk_by_headings(documents("# A\n" + "word " * 100), size=60)
    assert len(chunks) > 5
    assert all(len(chunk.text) <= 60 for chunk in chunks.chunks)
    assert {chunk.section_path for chunk in chunks.chunks} == {("A",)}


@pytest.mark.parametrize("edge", ["| ", ""])
def test_rows_of_a_table_are_never_cut(edge: str) -> None:
    rows = [f"{edge}name {n} | value {n}. and some more words ! here" for n in range(8)]
    chunks = chunk_by_headings(documents("# A\n" + "\n".join(rows)), size=30)
    assert texts_of(chunks) == rows


def test_prose_with_a_bar_is_no_table() -> None:
    text = "either this | or that, and then a good many words follow after it"
    assert len(chunk_by_headings(documents(text), size=30)) > 1


# -- whole -------------------------------------------------------------------------------------------------------------


def test_a_ready_passage_is_one_chunk_and_its_title_is_embedded_with_it() -> None:
    (chunk,) = keep_whole(documents(" text \n", title="T")).chunks
    assert (chunk.text, chunk.embed_text, chunk.title) == (" text \n", "T\n\n text \n", "T")
    (plain,) = keep_whole(documents("text", title="T"), embed_title=False).chunks
    assert plain.embed_text is None


# -- spans, ids and what is carried over -------------------------------------------------------------------------------

PIECES = st.sampled_from(
    ["a", "bc ", "\n", "\n\n", "\r\n", "\r", " ", "\t", "。", "！", "内存溢出", "🙂", "👩‍👩‍👧", "é", "e\u0301", ". ", "# ", "## H\n",
     "```\n", "---\n", "===\n", "| x | y |\n", "\u3000", "\u2028", "\x0c", "\x00", "- ", "word"]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=80)
SIZES = st.integers(1, 25).flatmap(lambda size: st.tuples(st.just(size), st.integers(0, size - 1)))


@given(TEXTS, SIZES, st.sampled_from(["chars", "tokens"]), st.sampled_from(["start", "end", "none"]))
def test_every_chunk_is_exactly_its_span_of_the_document(
    text: str, sizes: tuple[int, int], unit: str, keep: str
) -> None:
    size, overlap = sizes
    found = documents(text, title="T")
    results = [
        chunk_recursively(found, size=size, overlap=overlap, unit=unit, keep_separator=keep),  # type: ignore[arg-type]
        chunk_by_window(found, size=size, overlap=overlap, unit=unit),  # type: ignore[arg-type]
        chunk_by_headings(found, size=size, overlap=overlap),
        keep_whole(found),
    ]
    for chunks in results:
        ids = [chunk.id for chunk in chunks.chunks]
        assert len(set(ids)) == len(ids)
        assert [chunk.index for chunk in chunks.chunks] == list(range(len(ids)))
        for chunk in chunks.chunks:
            assert chunk.span is not None
            assert text[chunk.span.start : chunk.span.end] == chunk.text
            assert chunk.text.strip()
        starts = [chunk.span.start for chunk in chunks.chunks if chunk.span]
        assert starts == sorted(starts)


@given(TEXTS, SIZES)
def test_no_word_is_lost_and_no_chunk_is_longer_than_the_size(text: str, sizes: tuple[int, int]) -> None:
    size, overlap = sizes
    spans = list(RecursiveSplitter(size, overlap).split(text))
    covered = {position for start, end in spans for position in range(start, end)}
    assert all(text[position].isspace() for position in range(len(text)) if position not in covered)
    assert all(end - start <= size for start, end in spans)


def test_an_id_depends_on_the_document_the_text_and_its_repetitions_alone() -> None:
    first = chunk_recursively(documents("same\n\nsame\n\nother"), size=7)
    changed = chunk_recursively(documents("new\n\nsame\n\nother\n\nsame"), size=7)
    assert texts_of(first) == ["same", "same", "other"]
    by_text = {chunk.text: chunk.id for chunk in reversed(first.chunks)}
    assert len({chunk.id for chunk in first.chunks}) == 3
    assert changed.chunks[1].id == by_text["same"]
    assert changed.chunks[2].id == by_text["other"]
    assert changed.chunks[3].id == first.chunks[1].id


def test_text_that_differs_in_unicode_composition_only_has_the_same_id() -> None:
    composed, decomposed = (keep_whole(documents(text)).chunks[0] for text in ("caf\u00e9", "cafe\u0301"))
    assert composed.id == decomposed.id
    assert decomposed.text == "cafe\u0301"


def test_the_fingerprint_changes_with_node_and_settings_only() -> None:
    made = [
        chunk_recursively(documents("x")).chunks[0].made_by,
        chunk_recursively(documents("y z")).chunks[0].made_by,
        chunk_recursively(documents("x"), size=799).chunks[0].made_by,
        chunk_by_headings(documents("x"), size=800).chunks[0].made_by,
        keep_whole(documents("x")).chunks[0].made_by,
    ]
    assert made[0] == made[1]
    assert len(set(made)) == 4


def test_what_the_loader_knew_is_carried_over() -> None:
    found = documents("text", "").model_copy(update={"failures": (SourceFailure(source="bad", reason="It is gone."),)})
    chunks = chunk_recursively(found)
    assert (chunks.failures, chunks.scope, chunks.complete) == (found.failures, "/data", True)
    (chunk,) = chunks.chunks
    assert (chunk.document_id, chunk.source, chunk.metadata) == ("d0", "s0", {"lang": "zh"})
    assert not chunk_recursively(found.model_copy(update={"complete": False})).complete
