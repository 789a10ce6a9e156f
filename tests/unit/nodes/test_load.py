"""Loaders: real files in many encodings and states, and what is said about those that cannot be read."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from ragbraid.nodes import load_lines
from ragbraid.nodes.load import load_files, load_jsonl
from ragbraid.nodes.load_files import glob_pattern
from ragbraid.nodes.load_html import read_html
from ragbraid.nodes.load_text import UnreadableText, decode
from ragbraid.registry.context import StepContext, project_folder, step_context
from ragbraid.registry.contracts import DocumentSet
from ragbraid.registry.errors import NodeInputError, RunError

CHINESE = "内存溢出处理指南。第一步检查日志。第二步重启服务。"
TRADITIONAL = "記憶體溢位處理指南。第一步檢查日誌,然後重新啟動服務。"
FRENCH = "Le café où l'été dernier nous avons mangé des crêpes était fermé à Noël."
POLISH = "W Szczebrzeszynie chrząszcz brzmi w trzcinie, a święta są już bliżej niż myślisz."


def write(root: Path, **files: str | bytes) -> Path:
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return root


def sources(found: DocumentSet) -> list[str]:
    return [document.source for document in found.documents]


def reasons(found: DocumentSet) -> dict[str, str]:
    return {failure.source: failure.reason for failure in found.failures}


# -- which files -------------------------------------------------------------------------------------------------------


def test_a_folder_is_read_in_the_order_of_paths_whatever_lies_in_it(tmp_path: Path) -> None:
    write(tmp_path, b_dot_md="# B", a__z_dot_txt="z", a_dot_html="<h1>A</h1>", pic_dot_png=b"\x89PNG", LICENSE="free")
    context = StepContext()
    with step_context(context):
        found = load_files(path=str(tmp_path))
    assert sources(found) == ["a.html", "a/z.txt", "b.md"]
    assert [document.format for document in found.documents] == ["html", "text", "markdown"]
    assert (found.scope, found.complete, found.failures) == (f"{tmp_path.as_posix()}/**/*", True, ())
    assert context.notes == ["2 files of other formats were passed over."]
    assert load_files(path=str(tmp_path)) == found


def test_a_prefix_tells_the_sources_of_two_folders_apart(tmp_path: Path) -> None:
    write(tmp_path, one__readme_dot_md="# One", two__readme_dot_md="# Two", two__bad_dot_md=b"\xff\x00\xff")
    one, two = load_files(path=str(tmp_path / "one")), load_files(path=str(tmp_path / "two"), prefix="two/")
    assert (sources(one), sources(two)) == (["readme.md"], ["two/readme.md"])
    assert set(reasons(two)) == {"two/bad.md"}
    assert one.documents[0].id != two.documents[0].id
    assert one.root != two.root


def test_a_document_says_where_it_came_from_and_what_its_bytes_were(tmp_path: Path) -> None:
    write(tmp_path, notes__a_dot_txt="text\r\n")
    (document,) = load_files(path=str(tmp_path)).documents
    assert (document.source, document.title, document.text) == ("notes/a.txt", "a", "text\n")
    assert document.content_hash == hashlib.sha256(b"text\r\n").hexdigest()


def test_a_folder_that_is_moved_keeps_its_documents_and_in_its_project_also_its_scope(tmp_path: Path) -> None:
    for place in ("old", "new/place"):
        write(tmp_path / place, docs__a_dot_md="a", docs__b__c_dot_md="c", docs__p_dot_jsonl='{"id": "1", "text": "x"}')
    found = []
    for place in ("old", "new/place"):
        with project_folder(tmp_path / place):
            folder = tmp_path / place / "docs"
            found.append((load_files(path=str(folder)), load_jsonl(path=str(folder / "p.jsonl"))))
    assert found[0] == found[1]
    assert (found[0][0].scope, found[0][1].scope) == ("docs/**/*", "docs/p.jsonl")
    outside = load_files(path=str(tmp_path / "old/docs"))
    assert outside.documents == found[0][0].documents
    assert outside.scope == f"{tmp_path.as_posix()}/old/docs/**/*"


def test_an_author_may_name_the_scope(tmp_path: Path) -> None:
    write(tmp_path, a_dot_md="a", p_dot_jsonl='{"id": "1", "text": "x"}')
    assert load_files(path=str(tmp_path), scope="handbook").scope == "handbook"
    assert load_jsonl(path=str(tmp_path / "p.jsonl"), scope="handbook").scope == "handbook"


def test_hidden_files_are_passed_over_unless_a_pattern_names_them(tmp_path: Path) -> None:
    write(tmp_path, _dot_git__x_dot_md="x", _dot_hidden_dot_md="h", a_dot_md="a")
    assert sources(load_files(path=str(tmp_path))) == ["a.md"]
    assert sources(load_files(path=str(tmp_path), pattern=".git/*.md")) == [".git/x.md"]
    assert sources(load_files(path=str(tmp_path), pattern=["*.md", ".*.md"])) == [".hidden.md", "a.md"]


def test_patterns_choose_and_exclusions_leave_out_files_and_folders(tmp_path: Path) -> None:
    write(tmp_path, a_dot_md="a", d__b_dot_md="b", d__e__c_dot_txt="c", drafts__f_dot_md="f")
    assert sources(load_files(path=str(tmp_path), pattern="**/*.md")) == ["a.md", "d/b.md", "drafts/f.md"]
    assert sources(load_files(path=str(tmp_path), exclude=["drafts", "**/c.*"])) == ["a.md", "d/b.md"]
    assert sources(load_files(path=str(tmp_path), exclude=["drafts/"])) == ["a.md", "d/b.md", "d/e/c.txt"]
    both = load_files(path=str(tmp_path), pattern=["*.md", "d/**"])
    assert sources(both) == ["a.md", "d/b.md", "d/e/c.txt"]
    assert both.scope == f"{tmp_path.as_posix()}/*.md,d/**"


def test_a_path_may_be_a_file_or_hold_wildcards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, docs__a_dot_md="a", docs__b_dot_txt="b", docs__x__c_dot_md="c")
    one = load_files(path=str(tmp_path / "docs" / "a.md"))
    assert (sources(one), one.scope) == (["a.md"], (tmp_path / "docs" / "a.md").as_posix())
    monkeypatch.chdir(tmp_path)
    several = load_files(path="docs/**/*.md")
    assert (sources(several), several.scope) == (["a.md", "x/c.md"], f"{tmp_path.as_posix()}/docs/**/*.md")


@pytest.mark.parametrize(
    ("glob", "matching", "other"),
    [
        ("**/*", ["a", "a/b", "a/b/c.md"], [".a", "a/.b", ".a/b"]),
        ("a/**/b", ["a/b", "a/x/b", "a/x/y/b"], ["ab", "a/xb", "a/.x/b"]),
        ("[a-c]?.md", ["ab.md", "c1.md"], ["d1.md", "a.md", "a/.md"]),
        ("[!a]b", ["bb"], ["ab", "/b"]),
        ("./a*(1).md", ["ab(1).md"], ["a/b(1).md", "a1.md"]),
        ("a[b", ["a[b"], ["ab"]),
    ],
)
def test_globs_stay_within_a_name_unless_they_are_doubled(glob: str, matching: list[str], other: list[str]) -> None:
    pattern = glob_pattern(glob)
    assert [path for path in matching + other if pattern.fullmatch(path)] == matching


def test_a_format_that_is_asked_for_by_name_and_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    write(tmp_path, a_dot_pdf=b"%PDF", b_dot_md="b", Makefile="all:")
    assert "Files ending in `.pdf` are not read" in reasons(load_files(path=str(tmp_path / "a.pdf")))["a.pdf"]
    found = load_files(path=str(tmp_path), pattern=["*.pdf", "*.md"])
    assert (sources(found), list(reasons(found))) == (["b.md"], ["a.pdf"])
    assert "without an extension" in reasons(load_files(path=str(tmp_path / "Makefile")))["Makefile"]


@pytest.mark.parametrize("path", ["nowhere", "nowhere/*.md", "a\0b"])
def test_a_path_at_which_nothing_exists_is_an_error_in_one_sentence(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError) as caught:
        load_files(path=path)
    assert str(caught.value).startswith(f"`{path}` ")
    assert caught.value.kind == "input"
    assert caught.value.hint


def test_settings_that_cannot_be_meant_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NodeInputError, match="path to load from is empty"):
        load_files(path=" ")
    for encoding in ("utf-99", "base64"):
        with pytest.raises(NodeInputError, match=f"The encoding `{encoding}` is unknown"):
            load_files(path=str(tmp_path), encoding=encoding)


def test_links_are_followed_on_request_only_and_never_in_circles(tmp_path: Path) -> None:
    write(tmp_path, docs__a_dot_md="a", outside__b_dot_md="b")
    root = tmp_path / "docs"
    (root / "loop").symlink_to(root)
    (root / "out").symlink_to(tmp_path / "outside")
    (root / "dead.md").symlink_to(tmp_path / "gone")
    context = StepContext()
    with step_context(context):
        assert sources(load_files(path=str(root))) == ["a.md"]
    assert context.notes == ["3 symbolic links were not followed (`follow_links` is off)."]
    followed = load_files(path=str(root), follow_links=True)
    assert {"a.md", "out/b.md"} <= set(sources(followed))
    assert len(followed) <= 3
    assert reasons(followed)["dead.md"] == "It is a link to nothing."


def test_a_pipe_in_the_folder_does_not_stop_the_run(tmp_path: Path) -> None:
    write(tmp_path, a_dot_md="a")
    os.mkfifo(tmp_path / "p.md")
    assert sources(load_files(path=str(tmp_path))) == ["a.md"]
    assert "no regular file" in reasons(load_files(path=str(tmp_path / "p.md")))["p.md"]


# -- what cannot be read -----------------------------------------------------------------------------------------------


def test_one_bad_file_does_not_end_the_run(tmp_path: Path) -> None:
    write(tmp_path, a_dot_txt=b"PK\0\0", b_dot_txt="x" * 101, c_dot_txt="", d_dot_txt="fine")
    found = load_files(path=str(tmp_path), max_bytes=100)
    assert [(document.source, document.text) for document in found.documents] == [("c.txt", ""), ("d.txt", "fine")]
    assert reasons(found) == {
        "a.txt": "It is a binary file (it holds NUL bytes).",
        "b.txt": "It is larger than 100 bytes; raise `max_bytes` to read it.",
    }
    assert found.complete


def test_a_file_that_vanishes_or_may_not_be_read_is_a_failure(tmp_path: Path) -> None:
    write(tmp_path, a_dot_txt="a", b_dot_txt="b")
    context = StepContext(on_progress=lambda label, done, total: (tmp_path / "b.txt").unlink(missing_ok=True))
    with step_context(context):
        found = load_files(path=str(tmp_path))
    assert sources(found) == ["a.txt"]
    assert reasons(found) == {"b.txt": "It is gone, or no regular file."}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_makes_the_set_incomplete(tmp_path: Path) -> None:
    write(tmp_path, locked__a_dot_txt="a", b_dot_txt="b")
    (tmp_path / "locked").chmod(0)
    found = load_files(path=str(tmp_path))
    (tmp_path / "locked").chmod(0o700)
    assert sources(found) == ["b.txt"]
    assert not found.complete
    assert "cannot be read" in reasons(found)["locked/"]


def test_a_name_that_is_no_text_is_reported_and_the_set_is_not_complete(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/\xff.md", "wb"):
        pass
    write(tmp_path, a_dot_md="a")
    found = load_files(path=str(tmp_path))
    assert sources(found) == ["a.md"]
    assert "not valid UTF-8" in found.failures[0].reason
    assert not found.complete


# -- encodings ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (CHINESE, "gb18030"),
        (CHINESE, "utf-8"),
        (CHINESE, "utf-8-sig"),
        (CHINESE, "utf-16"),
        (CHINESE, "utf-32"),
        (TRADITIONAL, "big5"),
        (FRENCH, "latin-1"),
        (POLISH, "cp1250"),
    ],
)
def test_encodings_are_recognised(text: str, encoding: str) -> None:
    assert decode(text.encode(encoding))[0] == text


def test_a_long_text_is_recognised_by_its_beginning() -> None:
    text = f"{CHINESE}\n" * 10_000
    assert decode(text.encode("gb18030"))[0] == text


def test_bytes_that_do_not_fit_their_encoding_are_refused_with_the_place() -> None:
    with pytest.raises(UnreadableText, match="not valid ascii text at byte 3"):
        decode("caf\u00e9".encode(), "ascii")
    with pytest.raises(UnreadableText, match="not valid utf-16-le text"):
        decode(b"\xff\xfea")


def test_a_recognised_encoding_is_noted(tmp_path: Path) -> None:
    write(tmp_path, a_dot_txt=CHINESE.encode("gb18030"), b_dot_txt=CHINESE)
    context = StepContext()
    with step_context(context):
        found = load_files(path=str(tmp_path))
    assert [document.text for document in found.documents] == [CHINESE, CHINESE]
    assert context.notes == ["1 files are not UTF-8; they were recognised as gb18030 and read as such."]
    assert load_files(path=str(tmp_path / "a.txt"), encoding="gb18030").documents[0].text == CHINESE


# -- formats -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "content", "title"),
    [
        ("a.md", "intro\n\n```\n# code\n```\n## Second\n", "Second"),
        ("a.md", "no heading", "a"),
        ("a.md", "---\ntitle: Given\n---\n# Heading\n", "Given"),
        ("a.rst", "====\nName\n====\n\nNot one\n--\n", "Name"),
        ("a.txt", "# not a heading", "a"),
        ("a.html", "<title>Site</title><h2>x</h2><h1>Main</h1>", "Main"),
        ("a.html", "<title>Site &amp; more</title><h2>x</h2>", "Site & more"),
        ("a.html", "<h2>x</h2>", "x"),
        ("a.html", "", "a"),
    ],
)
def test_the_title_is_the_first_heading_or_what_comes_next_to_it(
    tmp_path: Path, name: str, content: str, title: str
) -> None:
    (tmp_path / name).write_text(content)
    assert load_files(path=str(tmp_path)).documents[0].title == title


def test_simple_front_matter_becomes_metadata_and_leaves_the_text(tmp_path: Path) -> None:
    front = 'title: "T: x"\ntags: [a, b]\ndate: 2024-01-02\ndraft: no\nhot: true\nweight: 3\nversion: "1.10"\nempty:\n'
    write(tmp_path, a_dot_md=f"---\n{front}---\n\nBody\n")
    (document,) = load_files(path=str(tmp_path)).documents
    assert document.text == "Body\n"
    assert document.metadata == {
        "title": "T: x",
        "tags": ["a", "b"],
        "date": "2024-01-02",
        "draft": "no",
        "hot": True,
        "weight": 3,
        "version": "1.10",
        "empty": None,
    }


@pytest.mark.parametrize(
    "text",
    ["---\na: {b: c}\n---\nx\n", "---\n- a\n---\nx\n", "---\na: [\n---\nx\n", "---\nnever closed\n", "---\n\ntext\n"],
)
def test_front_matter_that_is_no_simple_mapping_stays_in_the_text(tmp_path: Path, text: str) -> None:
    write(tmp_path, a_dot_md=text)
    (document,) = load_files(path=str(tmp_path)).documents
    assert (document.text, document.metadata) == (text, {})


def test_html_keeps_headings_lists_code_and_tables_and_drops_what_is_no_content() -> None:
    page = """<html><head><title>T</title><style>p{}</style></head><body><nav>Home</nav>
    <h1>Hello <b>there</b></h1><p>one<br>two &nbsp; 三</p><script>if (a<b) {}</script>
    <ul><li>first<li>second</ul><pre># no heading
  indented</pre>
    <table><tr><th>name<th>value</tr><tr><td><p>a</p><td>1</tr></table>
    <table><tr><td><h2>In a layout</h2>cell</td></tr></table><!-- gone --></body></html>"""
    assert read_html(page).text == (
        "# Hello there\n\none\ntwo 三\n\n- first\n- second\n\n```\n# no heading\n  indented\n```\n\n"
        "name | value\na | 1\n\n## In a layout\n\ncell\n"
    )


@pytest.mark.parametrize("page", ["", "<p", "<!doctype html>", "<title>only</title>", "<script>x"])
def test_a_page_without_content_gives_no_text(page: str) -> None:
    assert read_html(page).text == ""


def test_a_page_may_nest_deeply() -> None:
    assert read_html("<div>" * 3000 + "deep" + "</div>" * 3000).text == "deep\n"


# -- JSON Lines --------------------------------------------------------------------------------------------------------


def lines(*values: Any) -> str:
    return "\n".join(value if isinstance(value, str) else json.dumps(value) for value in values) + "\n"


@pytest.mark.parametrize("compressed", [False, True])
def test_passages_become_documents_with_their_ids_and_fields(tmp_path: Path, compressed: bool) -> None:
    content = lines(
        {"id": "p1", "text": "一", "title": "T", "year": 2024, "tags": ["a"], "deep": {"x": 1}},
        "",
        {"id": 2, "text": ""},
    ).encode()
    file = tmp_path / "p.jsonl"
    file.write_bytes(gzip.compress(content) if compressed else b"\xef\xbb\xbf" + content)
    context = StepContext()
    with step_context(context):
        found = load_jsonl(path=str(file))
    assert [(d.id, d.source, d.text, d.title, d.metadata, d.format) for d in found.documents] == [
        ("p1", "p1", "一", "T", {"year": 2024, "tags": ["a"]}, "jsonl"),
        ("2", "2", "", None, {}, "jsonl"),
    ]
    assert found.documents[0].content_hash == hashlib.sha256(content.split(b"\n")[0]).hexdigest()
    assert (found.scope, found.complete, found.failures) == (file.as_posix(), True, ())
    assert context.notes == ["Nested fields were left out of the metadata: `deep`."]


def test_fields_may_have_other_names(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(lines({"_id": "x", "body": "b", "name": "n"}))
    (document,) = load_jsonl(
        path=str(tmp_path / "p.jsonl"), id_field="_id", text_field="body", title_field="name"
    ).documents
    assert (document.id, document.text, document.title, document.metadata) == ("x", "b", "n", {})


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("{broken", "not valid JSON"),
        ("[1]", "no JSON object"),
        ('{"text": "t"}', "no usable `id`"),
        ('{"id": true, "text": "t"}', "no usable `id`"),
        ('{"id": "x", "text": "t", "n": NaN}', "NaN is no JSON number"),
        ('{"id": "x", "text": "\\ud800"}', "surrogate"),
        ("[" * 100_000, "nests too deeply"),
    ],
)
def test_a_line_of_unknown_source_is_a_failure_with_its_number_and_the_set_is_not_complete(
    tmp_path: Path, line: str, reason: str
) -> None:
    (tmp_path / "p.jsonl").write_text(lines({"id": "a", "text": "t"}, line, {"id": "b", "text": "t"}))
    found = load_jsonl(path=str(tmp_path / "p.jsonl"))
    assert sources(found) == ["a", "b"]
    assert [failure.source for failure in found.failures] == ["p.jsonl:2"]
    assert reason in found.failures[0].reason
    assert not found.complete


def test_a_line_whose_id_is_known_fails_under_that_id(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(lines({"id": "a"}, {"id": "b", "text": 5}, {"id": "c", "text": "", "title": 1}))
    found = load_jsonl(path=str(tmp_path / "p.jsonl"))
    assert list(reasons(found)) == ["a", "b", "c"]
    assert reasons(found)["a"] == "p.jsonl:1: The field `text` is missing or is no text."
    assert found.complete


def test_a_repeated_id_is_a_failure_and_the_first_line_stays(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(lines({"id": "a", "text": "1"}, {"id": "a", "text": "2"}))
    found = load_jsonl(path=str(tmp_path / "p.jsonl"))
    assert [document.text for document in found.documents] == ["1"]
    assert reasons(found) == {"p.jsonl:2": "The id `a` stands in line 1 already; the first line stays."}


def test_a_damaged_archive_gives_what_stands_before_the_damage(tmp_path: Path) -> None:
    content = lines(*({"id": str(n), "text": os.urandom(400).hex()} for n in range(200)))
    (tmp_path / "p.jsonl.gz").write_bytes(gzip.compress(content.encode())[:-20_000])
    found = load_jsonl(path=str(tmp_path / "p.jsonl.gz"))
    assert 0 < len(found) < 200
    assert "ends early or is damaged after line" in reasons(found)["p.jsonl.gz"]
    assert not found.complete


def test_a_line_that_is_too_long_is_refused_and_the_next_one_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_lines, "_MAX_LINE_BYTES", 50)
    (tmp_path / "p.jsonl").write_text(lines({"id": "a", "text": "x" * 200}, {"id": "b", "text": "y"}))
    found = load_jsonl(path=str(tmp_path / "p.jsonl"))
    assert sources(found) == ["b"]
    assert reasons(found) == {"p.jsonl:1": "The line is longer than 50 bytes."}


def test_a_file_of_passages_must_exist_and_be_a_file(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "none.jsonl", "does not exist"), (tmp_path, "is no file")):
        with pytest.raises(RunError, match=reason):
            load_jsonl(path=str(path))
    (tmp_path / "empty.jsonl").touch()
    assert load_jsonl(path=str(tmp_path / "empty.jsonl")).complete
