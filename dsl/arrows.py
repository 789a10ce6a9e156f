"""The arrow notation: `kg_cs, kg_fr, rc -> merger -> rerank; plan.steps -> search`.

    flow    = path { ";" path }            path  = stage "->" stage { "->" stage }
    stage   = ref { "," ref }              ref   = name { "." name }

White space and line breaks mean nothing, and a trailing `;` is allowed. A mistake is reported once; what is readable
around it is still returned, so that the nodes named there do not look forgotten.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ArrowRef:
    """A name and the fields behind it; `start` and `end` are offsets in the text."""

    names: tuple[str, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Stage:
    """What stands between two arrows: it starts together and goes on together."""

    refs: tuple[ArrowRef, ...]


@dataclass(frozen=True, slots=True)
class Path:
    """Stages joined by arrows, at least two."""

    stages: tuple[Stage, ...]


@dataclass(frozen=True, slots=True)
class ArrowProblem:
    """One mistake in the notation; `start` and `end` are offsets in the text."""

    message: str
    start: int
    end: int
    hint: str | None = None


_TOKEN = re.compile(
    r"""
      (?P<space>   \s+ )
    | (?P<arrow>   -> )
    | (?P<foreign> <?=+>* | <-+>? | -{2,}> | -\s+> | -?>+ | [\u2190-\u21ff\u27f0-\u27ff] )
    | (?P<comma>   , )
    | (?P<end>     ; )
    | (?P<wide>    [\uff0c\u3001\uff1b\u3002] )
    | (?P<comment> \#.* )
    | (?P<word>    (?: \s*\.\s*(?=[\w.]) | \.(?!\s) | (?!-\s*>|-->) [^\s,;<>=\u2190-\u21ff\u27f0-\u27ff\uff0c\u3001\uff1b\u3002.] | \. )+ )
    """,
    re.VERBOSE,
)
_REF = re.compile(r"[^\W\d]\w*(?:\s*\.\s*[^\W\d]\w*)*")
_WIDE = {"\uff0c": ("comma", ","), "\u3001": ("comma", ","), "\uff1b": ("end", ";"), "\u3002": ("end", ";")}
_WRITE_ARROW = "an arrow is written `->`"


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


def parse_arrows(text: str) -> tuple[tuple[Path, ...], tuple[ArrowProblem, ...]]:
    """Read a string of arrows.

    Returns:
        The paths in the order written, and the problems in the order of the text.
    """
    reader = _Reader(text)
    for match in _TOKEN.finditer(text):
        if match.lastgroup and match.lastgroup != "space":
            reader.take(_Token(match.lastgroup, match[0], match.start(), match.end()))
    reader.close_path()
    if not reader.paths and not reader.problems:
        reader.complain("there is no arrow here", 0, len(text), "write `first -> second`")
    return tuple(reader.paths), tuple(reader.problems)


class _Reader:
    """Collects refs into stages and stages into paths, one token at a time."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.paths: list[Path] = []
        self.problems: list[ArrowProblem] = []
        self.after_end = True  # nothing since the last `;` or the beginning
        self.begin_path()

    def begin_path(self) -> None:
        self.stages: list[list[ArrowRef]] = [[]]
        self.last: _Token | None = None
        self.faultless = True

    def complain(self, message: str, start: int, end: int, hint: str | None = None) -> None:
        self.problems.append(ArrowProblem(message, start, end, hint))
        self.faultless = False

    def take(self, token: _Token) -> None:
        if token.kind == "wide":
            kind, plain = _WIDE[token.text]
            self.complain(f"`{token.text}` is a full-width character", token.start, token.end, f"write `{plain}`")
            token = _Token(kind, plain, token.start, token.end)
        elif token.kind == "foreign":
            hint = "turn the names around and write `->`" if token.text[0] in "<\u2190" else _WRITE_ARROW
            self.complain(f"`{token.text}` is not an arrow", token.start, token.end, hint)
            token = _Token("arrow", token.text, token.start, token.end)
        if token.kind == "end":
            self.take_end(token)
        elif token.kind == "comment":
            hint = "put the comment into a line of its own outside this text, or make `flow` a list"
            self.complain("a comment cannot stand among arrows", token.start, token.end, hint)
        else:
            {"word": self.take_word, "comma": self.take_comma, "arrow": self.take_arrow}[token.kind](token)
            self.after_end = False
            self.last = token

    def take_word(self, token: _Token) -> None:
        start = token.start + token.text.startswith("$")
        text = token.text[start - token.start :]
        readable = _REF.fullmatch(text) is not None
        if not readable or start > token.start:
            closes = not self.faultless and text.endswith(")")  # its partner has been reported
            if not closes:
                self.complain(*_explain_word(token))
        elif self.last is not None and self.last.kind == "word" and self.new_line(token):
            self.complain_once(
                "a `;` is missing between these lines", token.start, token.end, "end the line before with `;`"
            )
            self.close_path()
        elif self.last is not None and self.last.kind == "word" and _REF.fullmatch(self.last.text):
            before = self.last.text
            hint = f"write `{before}, {text}` or `{before} -> {text}`; a name has no space in it"
            self.complain(f"a comma or an arrow is missing between `{before}` and `{text}`", start, token.end, hint)
        if readable:
            names = tuple(name.strip() for name in text.split("."))
            self.stages[-1].append(ArrowRef(names, start, token.end))

    def new_line(self, token: _Token) -> bool:
        """Whether a word begins a line of its own, after a path that has an arrow."""
        return self.last is not None and len(self.stages) > 1 and "\n" in self.text[self.last.end : token.start]

    def complain_once(self, message: str, start: int, end: int, hint: str) -> None:
        """Report a mistake that was probably made in every line only where it was made first."""
        if all(problem.message != message for problem in self.problems):
            self.complain(message, start, end, hint)

    def take_comma(self, token: _Token) -> None:
        self.expect_name(token, "before this comma")

    def take_arrow(self, token: _Token) -> None:
        self.expect_name(token, "before this arrow")
        self.stages.append([])

    def expect_name(self, token: _Token, where: str) -> None:
        """Report a comma or an arrow that has no name before it."""
        if self.last is None:
            self.complain(f"a name is missing {where}", token.start, token.end)
        elif self.last.kind == "arrow" and token.kind == "arrow":
            self.complain("there is nothing between these two arrows", self.last.start, token.end, "delete one of them")
        elif self.last.kind != "word":
            self.complain(f"a name is missing after this {self.last.kind}", self.last.start, self.last.end)

    def take_end(self, token: _Token) -> None:
        if self.after_end:
            self.complain("there is no path before this `;`", token.start, token.end, "delete it")
        self.close_path()
        self.after_end = True

    def close_path(self) -> None:
        """Keep the path that has been read and be ready for the next."""
        stages = tuple(Stage(tuple(refs)) for refs in self.stages if refs)
        refs = [ref for stage in stages for ref in stage.refs]
        if refs and self.last is not None and self.last.kind != "word":
            self.complain(f"a name is missing after this {self.last.kind}", self.last.start, self.last.end)
        if len(stages) > 1:
            self.paths.append(Path(stages))
        elif refs and len(self.stages) == 1 and self.faultless:
            hint = "write `first -> second`, or delete it"
            self.complain("there is no arrow in this path", refs[0].start, refs[-1].end, hint)
        self.begin_path()


def _explain_word(token: _Token) -> tuple[str, int, int, str]:
    """Return what is wrong with a word that is no reference."""
    text = token.text
    message, hint = f"`{text}` is no name", "a name has letters, digits and `_`, and begins with a letter"
    if text.startswith("$"):
        message, hint = "names in arrows are written without `$`", f"write `{text[1:]}`"
    elif "[" in text:
        message, hint = f"an item of a list cannot be sent by an arrow: `{text}`", "write `$...` under the node instead"
    elif "." in text and _REF.fullmatch(text.replace(".", "")):
        message, hint = f"a name is missing beside the dot in `{text}`", "a field of an output is written `node.field`"
    elif not any(character.isalnum() for character in text):
        message, hint = f"`{text}` means nothing here", "names, `,`, `->` and `;` are all there is"
    elif "-" in text:
        hint = f"write `{text.replace('-', '_')}`: " + hint
    return message, token.start, token.end, hint
