from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ragbraid.dsl.arrows import Path, parse_arrows


def shown(paths: tuple[Path, ...]) -> str:
    """Write paths back in their shortest form."""
    return ";".join(
        "->".join(",".join(".".join(ref.names) for ref in stage.refs) for stage in path.stages) for path in paths
    )


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("kg_cs,kg_fr,rc -> kg_merger", "kg_cs,kg_fr,rc->kg_merger"),
        ("kg_cs,kg_fr,rc->kg_merger;kg_merger->answer;", "kg_cs,kg_fr,rc->kg_merger;kg_merger->answer"),
        ("a -> b -> c ;\n  plan . steps ->\n  d\n", "a->b->c;plan.steps->d"),
        ("日本 -> b1_", "日本->b1_"),
    ],
)
def test_arrows_are_read(text: str, short: str) -> None:
    paths, problems = parse_arrows(text)
    assert problems == ()
    assert shown(paths) == short


def test_every_reference_knows_where_it_stands() -> None:
    text = "a , plan.steps\n->  b"
    paths, _ = parse_arrows(text)
    refs = [ref for stage in paths[0].stages for ref in stage.refs]
    assert [text[ref.start : ref.end] for ref in refs] == ["a", "plan.steps", "b"]


@pytest.mark.parametrize(
    ("text", "message", "place", "short"),
    [
        ("", "there is no arrow here", "", ""),
        ("  ", "there is no arrow here", "  ", ""),
        ("a, b", "there is no arrow in this path", "a, b", ""),
        ("a -> b; c", "there is no arrow in this path", "c", "a->b"),
        (";", "there is no path before this `;`", ";", ""),
        ("a->b;;c->d", "there is no path before this `;`", ";", "a->b;c->d"),
        ("a => b", "`=>` is not an arrow", "=>", "a->b"),
        ("a → b", "`→` is not an arrow", "→", "a->b"),
        ("a --> b", "`-->` is not an arrow", "-->", "a->b"),
        ("a - > b", "`- >` is not an arrow", "- >", "a->b"),
        ("a > b", "`>` is not an arrow", ">", "a->b"),
        ("a >> b", "`>>` is not an arrow", ">>", "a->b"),
        ("a <- b", "`<-` is not an arrow", "<-", "a->b"),
        ("a b -> c", "a comma or an arrow is missing between `a` and `b`", "b", "a,b->c"),
        ("a,, b -> c", "a name is missing after this comma", ",", "a,b->c"),
        (", a -> b", "a name is missing before this comma", ",", "a->b"),
        ("a, -> b", "a name is missing after this comma", ",", "a->b"),
        ("a -> b,", "a name is missing after this comma", ",", "a->b"),
        ("a -> , b", "a name is missing after this arrow", "->", "a->b"),
        ("a -> -> b", "there is nothing between these two arrows", "-> ->", "a->b"),
        ("-> a", "a name is missing before this arrow", "->", ""),
        ("a ->", "a name is missing after this arrow", "->", ""),
        ("a -> b -> ; c -> d", "a name is missing after this arrow", "->", "a->b;c->d"),
        ("$a.b -> c", "names in arrows are written without `$`", "$a.b", "a.b->c"),
        ("a[0] -> b", "an item of a list cannot be sent by an arrow: `a[0]`", "a[0]", ""),
        ("1a -> b", "`1a` is no name", "1a", ""),
        ("a-b -> c", "`a-b` is no name", "a-b", ""),
        ("a.0 -> b", "a name is missing beside the dot in `a.0`", "a.0", ""),
        (".a -> b", "a name is missing beside the dot in `.a`", ".a", ""),
        ("(a, b) -> c", "`(a` is no name", "(a", ""),
        ("a ! b -> c", "`!` means nothing here", "!", "a,b->c"),
        ("a，b -> c", "`，` is a full-width character", "，", "a,b->c"),
        ("a -> b # then", "a comment cannot stand among arrows", "# then", "a->b"),
    ],
)
def test_one_mistake_is_one_problem_in_plain_words(text: str, message: str, place: str, short: str) -> None:
    paths, problems = parse_arrows(text)
    assert [problem.message for problem in problems] == [message]
    assert text[problems[0].start : problems[0].end] == place
    assert shown(paths) == short


def test_hints_say_what_to_write() -> None:
    hints = [parse_arrows(text)[1][0].hint for text in ("a => b", "a-b -> c", "$a -> b", "a b -> c")]
    assert hints == [
        "an arrow is written `->`",
        "write `a_b`: a name has letters, digits and `_`, and begins with a letter",
        "write `a`",
        "write `a, b` or `a -> b`; a name has no space in it",
    ]


def test_two_mistakes_in_two_paths_are_two_problems() -> None:
    _, problems = parse_arrows("a => b; c ->; d -> e")
    assert [problem.message for problem in problems] == ["`=>` is not an arrow", "a name is missing after this arrow"]


NAME = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)
REF = st.lists(NAME, min_size=1, max_size=3).map(tuple)
FLOW = st.lists(st.lists(st.lists(REF, min_size=1, max_size=3), min_size=2, max_size=4), min_size=1, max_size=4)
GAP = st.sampled_from(["", " ", "\n", "  \t"])


@given(FLOW, GAP, GAP, st.booleans())
def test_what_is_written_is_read_back(
    flow: list[list[list[tuple[str, ...]]]], before: str, after: str, trailing: bool
) -> None:
    def joined(separator: str, parts: list[str]) -> str:
        return f"{before}{separator}{after}".join(parts)

    paths = [joined("->", [joined(",", [joined(".", list(ref)) for ref in stage]) for stage in path]) for path in flow]
    found, problems = parse_arrows(joined(";", paths) + (";" if trailing else ""))
    assert problems == ()
    assert [[[ref.names for ref in stage.refs] for stage in path.stages] for path in found] == flow


@given(st.text(max_size=60) | st.text(alphabet="ab.,;->=<$ \n[]1，→#", max_size=60))
def test_any_text_gives_paths_or_problems(text: str) -> None:
    paths, problems = parse_arrows(text)
    assert paths or problems
    assert all(0 <= problem.start <= problem.end <= len(text) for problem in problems)
    for path in paths:
        assert len(path.stages) >= 2
        assert all(stage.refs for stage in path.stages)
