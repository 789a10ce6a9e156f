from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ragbraid.dsl.source import (
    Entry,
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    read_file,
    read_inline,
    read_source,
    subspan,
    to_python,
)
from ragbraid.registry.errors import Finding, SourceSpan


def read(text: str) -> Node:
    node, findings = read_source(text, "qa.yaml")
    assert findings == ()
    assert node is not None
    return node


def scalar(text: str, key: str = "a") -> ScalarNode:
    node = read(text)
    assert isinstance(node, MappingNode)
    value = node.get(key)
    assert isinstance(value, ScalarNode)
    return value


def only_finding(text: str) -> Finding:
    _, findings = read_source(text, "qa.yaml")
    assert len(findings) == 1, findings
    return findings[0]


def text_at(text: str, span: SourceSpan) -> str:
    lines = re.split(r"(?<=\n)", text)
    before = [len("".join(lines[: n - 1])) for n in (span.line, span.end_line)]
    return text[before[0] + span.column - 1 : before[1] + span.end_column - 1]


# -- values of YAML 1.2 ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("no", "no"),
        ("on", "on"),
        ("yes", "yes"),
        ("y", "y"),
        ("017", 17),
        ("0o17", 15),
        ("0x1F", 31),
        ("-3", -3),
        ("+3", 3),
        ("1_000", "1_000"),
        ("1e3", 1000.0),
        ("1.", 1.0),
        (".5", 0.5),
        ("-.inf", -math.inf),
        ("12:30:00", "12:30:00"),
        ("2024-05-01", "2024-05-01"),
        ("null", None),
        ("~", None),
        ("", None),
        ("None", "None"),
        ("true", True),
        ("TRUE", True),
        ("tRUE", "tRUE"),
        ("0b11", "0b11"),
        ("'5'", "5"),
        ('"null"', "null"),
        ("<<", "<<"),
        ("9" * 400, "9" * 400),
    ],
)
def test_scalars_mean_what_the_core_schema_of_yaml_1_2_says(written: str, value: Any) -> None:
    node = scalar(f"a: {written}\n")
    assert node.value == value
    assert type(node.value) is type(value)


def test_not_a_number_is_read() -> None:
    value = scalar("a: .nan\n").value
    assert isinstance(value, float)
    assert math.isnan(value)


def test_a_tree_becomes_plain_python() -> None:
    assert to_python(read("a: {b: [1, x, null], c: true}\nd:\n- e: 1.5\n")) == {
        "a": {"b": [1, "x", None], "c": True},
        "d": [{"e": 1.5}],
    }


def test_mapping_answers_by_key() -> None:
    node = read("b: 1\na: 2\n")
    assert isinstance(node, MappingNode)
    assert node.keys() == ("b", "a")
    assert node.get("c") is None
    assert node.entry("c") is None
    entry = node.entry("a")
    assert isinstance(entry, Entry)
    assert entry.key_span == SourceSpan("qa.yaml", 2, 1, 2, 2)


def test_bounded_aliases_are_followed() -> None:
    assert to_python(read("a: &x [1, 2]\nb: *x\n")) == {"a": [1, 2], "b": [1, 2]}


def test_a_byte_order_mark_is_no_part_of_the_file() -> None:
    assert scalar("\ufeffa: 1\n").span == SourceSpan("qa.yaml", 1, 4, 1, 5)


# -- positions ---------------------------------------------------------------------------------------------------------


def test_columns_count_code_points() -> None:
    node = scalar("标题: x\na: 😀 b\n")
    assert node.span == SourceSpan("qa.yaml", 2, 4, 2, 7)


def test_a_block_mapping_ends_with_its_last_value() -> None:
    text = "a:\n  b: 1\n  c: 2\n\n# comment\nd: 3\n"
    node = read(text)
    assert isinstance(node, MappingNode)
    inner = node.get("a")
    assert inner is not None
    assert text_at(text, inner.span) == "b: 1\n  c: 2"


def test_a_block_of_text_ends_before_its_line_break() -> None:
    text = "a: |\n  one\n  two\n\nb: 1\n"
    assert text_at(text, scalar(text).span) == "|\n  one\n  two"


def test_an_anchor_is_no_part_of_the_value() -> None:
    text = "a: &x  hello\n"
    assert text_at(text, scalar(text).span) == "hello"


@pytest.mark.parametrize(
    "text",
    [
        "a: one two three\n",
        "a: 'one two three'\n",
        'a: "one two three"\n',
        "a: one\n  two three\n",
        "a: 'it''s one\n  two three'\n",
        'a: "\\u4e2d\\t one\\n two \\\n  three"\n',
        "a: |\n  one\n  two\n  three\n",
        "a: >-\n  one\n    two\n\n  three\n",
        "a: >\n  one two\n  three\n",
        "a: &x |2\n    one\n  two three\n",
        "a: one\r\n  two\r\n  three\r\n",
    ],
)
def test_words_inside_a_scalar_are_found_in_the_file(text: str) -> None:
    node = scalar(text)
    for word in ("one", "two", "three"):
        start = node.text.index(word)
        assert text_at(text, subspan(node, start, start + len(word))) == word


def test_the_span_of_an_escape_covers_all_of_it() -> None:
    text = 'a: "x\\u4e2dy"\n'
    assert text_at(text, subspan(scalar(text), 1, 2)) == "\\u4e2d"
    text = "a: 'it''s'\n"
    assert text_at(text, subspan(scalar(text), 2, 3)) == "''"


def test_a_quote_that_stands_for_itself_is_placed_inside_its_quotes() -> None:
    text = "a: ''''\n"
    assert subspan(scalar(text), 0, 1) == SourceSpan("qa.yaml", 1, 5, 1, 7)


def test_the_end_of_a_text_is_a_place_too() -> None:
    assert subspan(scalar("a: abc\n"), 3, 3) == SourceSpan("qa.yaml", 1, 7, 1, 7)
    folded = scalar("a: ab\n  c\n")
    assert subspan(folded, 4, 4) == SourceSpan("qa.yaml", 2, 4, 2, 4)


def test_offsets_outside_a_folded_text_give_the_whole_scalar() -> None:
    folded = scalar("a: ab\n  c\n")
    assert subspan(folded, 2, 99) == folded.span


def test_the_value_of_a_declaration_is_read_in_place() -> None:
    node = scalar("a: list[str] = [x, 2]\n")
    inner, findings = read_inline(node, node.text.index("[x"))
    assert findings == ()
    assert isinstance(inner, SequenceNode)
    assert to_python(inner) == ["x", 2]
    assert inner.items[1].span == SourceSpan("qa.yaml", 1, 20, 1, 21)


def test_the_value_of_a_folded_declaration_stands_at_the_whole_scalar() -> None:
    node = scalar("a: list[str] =\n  [x, 2]\n")
    inner, _ = read_inline(node, node.text.index("[x"))
    assert inner is not None
    assert inner.span == node.span


def test_a_broken_value_of_a_declaration_is_one_finding_in_place() -> None:
    node = scalar("a: list[str] = [x, 2\n")
    inner, findings = read_inline(node, node.text.index("[x"))
    assert inner is None
    assert [(f.code, f.span.column) for f in findings] == [("RB001", 16)]


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message", "shown", "hint"),
    [
        ("a: {b: ${x.y}}\n", "`${x.y}` has brackets, so inside `{}` it needs quotes", "${x.y}", 'write "${x.y}"'),
        (
            "a: {t: list[str]}\n",
            "`list[str]` has brackets, so inside `{}` it needs quotes",
            "list[str]",
            'write "list[str]"',
        ),
        ("a: {t: dict[str, int], d: 1}\n", "`dict[str, int]` has", "dict[str, int]", 'write "dict[str, int]"'),
        ("a: {q: $x[0].y}\n", "`$x[0].y` has brackets", "$x[0].y", 'write "$x[0].y"'),
        ("a: [${ x }, 2]\n", "inside `[]` it needs quotes", "${ x }", 'write "${ x }"'),
        ('a: {b: ${ "q" }}\n', "inside `{}` it needs quotes", '${ "q" }', "write '${ \"q\" }'"),
        ("a:\n\tb: 1\n", "a tab is used as indentation", "\t", "indent with spaces"),
        ("a: 'x\nb: 1\n", "the quote ' that opens here is never closed", "'", "add ' at the end"),
        ("a: [1, 2\nb: 1\n", "the `[` that opens here is not closed", "[", "add `]`"),
        ("a: {b: 1\n", "the `{` that opens here is not closed", "{", "add `}`"),
        ("a: {b: 1}}\n", "`}` closes nothing here", "}", "delete it"),
        ("a: [1, {x: y z: 1}]\n", "a comma is missing before `z`", "z", "quotes"),
        ("a:1\nb: 2\n", "a space is missing after `a:`", "a:", "write `a: ` with a space"),
        ("a: 1\nb:2\nc: 3\n", "a space is missing after `b:`", "b:", "write `b: ` with a space"),
        ("a: {b:1}\n", "a space is missing after `b:`", "b:1", "write `b: ` with a space"),
        ("a: 1\nb 2\n", "`b 2` has no colon", "b 2", "write `key: value`"),
        ("a: b: c\n", "text with a colon and a space in it needs quotes", "b: c", "quotes around the whole value"),
        ('a: ${ {"k": 1} }\n', "an expression with a colon", '${ {"k": 1} }', "quotes around the whole value"),
        ("a: @x\n", "a value cannot begin with `@`", "@", "quotes"),
        ("a: * b\n", "a value cannot begin with `*`", "*", "quotes"),
        ("a: > b -> c\n", "`>` begins a block of text", ">", "quotes"),
        ('a: "\\q"\n', "`\\q` means nothing inside double quotes", "\\q", "single quotes"),
        ("a: 'don't'\n", "the text ends at the quote before this", "t", "written twice"),
        ("a: 1\n  b: 2\n", "which already has a value", "b", "indent it like"),
        ("a:\n  b: 1\n c: 2\n", "the indentation of this line fits no line above", "c: 2", "indent it like"),
        ("  a: 1\n b: 2\n", "indented less than the first line", "b: 2", "indent both alike"),
        ("x:\n  - a\n  b: 1\n", "a line of a list must begin with `- `", "b: 1", "indent"),
        ("a: 1\n- b\n", "a list item stands where a key is expected", "- b", "indent"),
        ("a: \x07\n", "the character U+0007 cannot be seen", "\x07", "delete it"),
    ],
)
@pytest.mark.parametrize("parser", ["C", "Python"])
def test_syntax_errors_are_told_in_plain_words(
    text: str, message: str, shown: str, hint: str, parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if parser == "Python":
        monkeypatch.delattr(yaml, "CLoader", raising=False)
    finding = only_finding(text)
    assert finding.code == "RB001"
    assert message in finding.message
    assert text_at(text, finding.span) == shown
    assert hint in (finding.hint or "")


def test_a_doubled_key_points_at_the_first_one() -> None:
    finding = only_finding("a: 1\nb: 2\na: 3\n")
    assert finding.code == "RB002"
    assert finding.message == "the key `a` occurs twice"
    assert finding.span.line == 3
    assert [label.span.line for label in finding.labels] == [1]


@pytest.mark.parametrize("key", ["1", "null", "true", "[a, b]", "{a: 1}"])
def test_a_key_that_is_not_text_is_refused(key: str) -> None:
    assert only_finding(f"{key}: x\n").code == "RB004"


@pytest.mark.parametrize("text", ["", "# nothing\n", "\n\n"])
def test_an_empty_file_is_refused(text: str) -> None:
    node, findings = read_source(text, "qa.yaml")
    assert node is None
    assert [(f.code, f.message) for f in findings] == [("RB004", "the file is empty")]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a: !!python/object x\n", "!!python/object"),
        ("a: !t {b: 1}\n", "!t"),
        ("a: &x [*x]\n", "*x"),
        ("a: *nowhere\n", "*nowhere"),
        ("a: 1\n---\nb: 2\n", "---"),
    ],
)
def test_tags_endless_aliases_and_second_documents_are_refused(text: str, shown: str) -> None:
    finding = only_finding(text)
    assert finding.code == "RB003"
    assert text_at(text, finding.span) == shown


def test_aliases_that_multiply_are_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    finding = only_finding("\n".join(lines))
    assert finding.code == "RB003"
    assert "10,000" in finding.message


def test_deep_nesting_is_refused() -> None:
    assert only_finding("a: " + "[" * 200 + "]" * 200).code == "RB003"


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_file_is_read_with_its_text(tmp_path: Path) -> None:
    path = tmp_path / "qa.yaml"
    path.write_bytes(b"\xef\xbb\xbfname: x\n")
    text, node, findings = read_file(path)
    assert (text, findings) == ("name: x\n", ())
    assert node is not None
    assert to_python(node) == {"name": "x"}


def test_files_that_cannot_be_read_are_findings(tmp_path: Path) -> None:
    bad = tmp_path / "latin.yaml"
    bad.write_bytes("name: x\nabout: caf\xe9\n".encode("latin-1"))
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (1024 * 1024 + 1))
    found = [read_file(path) for path in (tmp_path / "none.yaml", tmp_path, bad, big)]
    assert all(text is None and node is None for text, node, _ in found)
    assert [[finding.code for finding in findings] for _, _, findings in found] == [["RB005"]] * 4
    messages = [findings[0].message for _, _, findings in found]
    assert "there is no file" in messages[0]
    assert "is a folder" in messages[1]
    assert "is not UTF-8: byte 0xe9 in line 2" in messages[2]
    assert "larger than 1 MiB" in messages[3]
    assert found[2][2][0].span.column == 11


# -- properties --------------------------------------------------------------------------------------------------------

PLAIN_DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@given(st.text(max_size=200))
def test_no_text_makes_the_reader_crash(text: str) -> None:
    node, findings = read_source(text, "qa.yaml")
    assert node is not None or findings
    for finding in findings:
        assert finding.span.line >= 1
        assert (finding.span.end_line, finding.span.end_column) >= (finding.span.line, finding.span.column)


@given(st.text(alphabet="ab:[]{}-,'\"\\\n\t &*!|>#%@$0~", max_size=60))
def test_no_heap_of_punctuation_makes_the_reader_crash(text: str) -> None:
    node, findings = read_source(text, "qa.yaml")
    assert node is not None or findings
    total = len(text.split("\n"))
    assert all(finding.span.end_line <= total for finding in findings)


@given(
    st.dictionaries(st.text(max_size=10), st.text(max_size=60), min_size=1, max_size=5),
    st.sampled_from([None, "'", '"', "|", ">"]),
    st.integers(10, 40),
)
def test_every_word_of_every_value_is_found_where_it_stands(data: dict[str, str], style: str, width: int) -> None:
    text = yaml.dump(data, default_style=style, allow_unicode=True, width=width, sort_keys=False)
    node, findings = read_source(text, "qa.yaml")
    if findings:  # plain `null: x`, tags of the dumper
        return
    assert isinstance(node, MappingNode)
    for entry in node.entries:
        assert isinstance(entry.value, ScalarNode)
        for word in re.finditer(r"[a-zA-Z0-9]+", entry.value.text):
            at = text_at_any_break(text, subspan(entry.value, *word.span()))
            assert at == word[0] or "\\" in at


def text_at_any_break(text: str, span: SourceSpan) -> str:
    starts = [0, *(match.end() for match in re.finditer(r"\r\n|\r|\n", text))]
    return text[starts[span.line - 1] + span.column - 1 : starts[span.end_line - 1] + span.end_column - 1]


@given(st.dictionaries(st.text("abcxyz_", min_size=1, max_size=8), PLAIN_DATA, min_size=1, max_size=4))
def test_what_json_writes_is_read_back(data: dict[str, Any]) -> None:
    import json

    text = json.dumps(data, ensure_ascii=True)
    node, findings = read_source(text, "qa.yaml")
    if any(finding.code in ("RB001", "RB004") for finding in findings):
        return
    assert node is not None
    assert to_python(node) == data
