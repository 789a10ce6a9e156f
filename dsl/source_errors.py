"""Why a file is no YAML, in the words of someone who writes flows.

The parser says where it gave up and what it was doing; the usual reasons are recognised from the text around that
place. Both of PyYAML's parsers are understood, whose wording differs.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from yaml import MarkedYAMLError, YAMLError

Explanation = tuple[str, int, int, str | None]
"""Message, begin and end as offsets in the text, hint."""

_LINE_BREAK = re.compile(r"\r\n|\r|\n")
_COLON_WITHOUT_SPACE = re.compile(r"\s*(?:- +)?([^\s:#'\"{}\[\],]+):(?=[^\s:/])")
_KEY_BEFORE = re.compile(r"([\s;])\s*([^\s,{}\[\]:;]+)\s*\Z")
_WIDE = {"\uff1a": ": ", "\uff0c": ", ", "\uff5b": "{", "\uff5d": "}", "\uff3b": "[", "\uff3d": "]"}
_WIDE_MARK = re.compile(
    r"(?:^\s*(?:- )*|[{,\uff0c]\s*)[\w.-]+\s*(?P<colon>\uff1a)"  # key： value
    r"|^\s*(?:- )*[\w.-]+:\s+(?:(?P<open>[\uff5b\uff3b])|\{.*?(?P<comma>[\uff0c\uff5d]))"  # key: ｛, key: {a: b， c
)
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'|(?:^|\s)#.*")
_CLOSING = {"{": "}", "[": "]"}


@dataclass(frozen=True, slots=True)
class _Trouble:
    """Where the parser gave up (`at`), where what it was reading had begun (`since`), and what it said."""

    text: str
    at: int
    since: int
    problem: str
    context: str

    @property
    def character(self) -> str:
        return self.text[self.at : self.at + 1]

    @property
    def line_start(self) -> int:
        return _line_start(self.text, self.at)

    @property
    def before(self) -> str:
        """What stands before the trouble in its line."""
        return self.text[self.line_start : self.at]


def explain_yaml_error(text: str, error: YAMLError) -> Explanation:
    """Return what is wrong in plain words, where, and what to do about it."""
    if not isinstance(error, MarkedYAMLError) or error.problem_mark is None:
        return "the file is not YAML", 0, 0, None
    mark = error.problem_mark
    since = error.context_mark.index if error.context_mark else mark.index
    at = min(mark.index, len(text))
    trouble = _Trouble(text, at, min(since, len(text)), error.problem or "", error.context or "")
    for explain in _EXPLANATIONS:
        found = explain(trouble)
        if found:
            return found
    said = (error.problem or "it breaks off here").replace("did not find expected", "expected")
    return f"the file is not YAML from here on: {said}", at, at + 1, None


def _tab(trouble: _Trouble) -> Explanation | None:
    line = trouble.text[trouble.line_start : _line_end(trouble.text, trouble.line_start)]
    indentation = line[: len(line) - len(line.lstrip())]
    if "\t" not in indentation:
        return None
    start = trouble.line_start + indentation.index("\t")
    return "a tab is used as indentation, which YAML does not allow", start, start + 1, "indent with spaces"


def _full_width(trouble: _Trouble) -> Explanation | None:
    """Find full-width punctuation where YAML's own was meant: in the line of the trouble, or in the one before."""
    previous = _previous_line(trouble.text, trouble.line_start)
    for start, end in ((trouble.line_start, trouble.at), (previous, trouble.line_start)):
        if start is None:
            continue
        found = _WIDE_MARK.search(_blank_quoted(trouble.text[start:end]))
        if found:
            at = start + found.start(str(found.lastgroup))
            wide = trouble.text[at]
            return f"`{wide}` is a full-width character", at, at + 1, f"write `{_WIDE[wide]}`"
    return None


def _blank_quoted(line: str) -> str:
    """Return the line with quoted texts and comments made blank, so that places stay the same."""
    return _QUOTED.sub(lambda match: " " * len(match[0]), line)


def _quotes(trouble: _Trouble) -> Explanation | None:
    if "quoted scalar" not in trouble.context and "quoted scalar" not in trouble.problem:
        return None
    if "escape" in trouble.problem or "escape" in trouble.context:
        start = trouble.text.rfind("\\", trouble.since, trouble.at + 1)
        shown = trouble.text[start : start + 2]
        hint = "write the text in single quotes, or the backslash twice"
        return f"`{shown}` means nothing inside double quotes", start, start + 2, hint
    quote = trouble.text[trouble.since]
    return (
        f"the quote {quote} that opens here is never closed",
        trouble.since,
        trouble.since + 1,
        f"add {quote} at the end",
    )


def _unquoted_in_flow(trouble: _Trouble) -> Explanation | None:
    if "flow mapping" not in trouble.context and "flow sequence" not in trouble.context:
        return None
    if trouble.character not in ("{", "["):
        return None
    start = max(trouble.text.rfind(mark, 0, trouble.at) for mark in ("{", "[", ",", ": ", "\n")) + 1
    while trouble.text[start].isspace():
        start += 1
    end = _matching_end(trouble.text, trouble.at)
    shown = trouble.text[start:end]
    outer = "{}" if "mapping" in trouble.context else "[]"
    quote = "'" if '"' in shown else '"'
    return f"`{shown}` has brackets, so inside `{outer}` it needs quotes", start, end, f"write {quote}{shown}{quote}"


def _brackets(trouble: _Trouble) -> Explanation | None:
    if trouble.character and trouble.character in "]}":
        message = f"`{trouble.character}` closes nothing here"
        return message, trouble.at, trouble.at + 1, "delete it, or open it before, or put quotes around the text"
    if "flow mapping" not in trouble.context and "flow sequence" not in trouble.context:
        return None
    key = _KEY_BEFORE.search(trouble.text, trouble.since, trouble.at) if trouble.character == ":" else None
    if key and _belongs_inside(trouble, key.start(2)):
        hint = (
            "put a comma before it, or quotes around the text"
            if key[1] in " \t\r\n"
            else f"write a comma instead of `{key[1]}`"
        )
        return f"a comma is missing before `{key[2]}`", key.start(2), key.end(2), hint
    bracket = trouble.text[trouble.since]
    closing = _CLOSING.get(bracket, bracket)
    if _LINE_BREAK.search(trouble.text, trouble.since, trouble.at) or not trouble.character:
        hint = f"add `{closing}`, or the comma that is missing between two entries"
        return f"the `{bracket}` that opens here is not closed", trouble.since, trouble.since + 1, hint
    return f"a comma or `{closing}` is missing before this", trouble.at, trouble.at + 1, "or put quotes around the text"


def _belongs_inside(trouble: _Trouble, key: int) -> bool:
    """Whether a key is part of the bracket that is open, not of the mapping around it: by its indentation."""
    outer, inner = _line_start(trouble.text, trouble.since), _line_start(trouble.text, key)
    if outer == inner:
        return True
    line = trouble.text[outer : _line_end(trouble.text, outer)]
    return key - inner > len(line) - len(line.lstrip())


def _mapping_value(trouble: _Trouble) -> Explanation | None:
    if "mapping values are not allowed" not in trouble.problem:
        return None
    previous = _previous_line(trouble.text, trouble.line_start)
    key = re.match(r"\s*(?:- +)*[^\s:][^:]*:\s+", trouble.before)
    if key:
        start = trouble.line_start + key.end()
        end = _line_end(trouble.text, start)
        what = "an expression" if trouble.text.startswith("${", start) else "text"
        return f"{what} with a colon and a space in it needs quotes", start, end, "put quotes around the whole value"
    glued = _COLON_WITHOUT_SPACE.match(trouble.text, previous) if previous is not None else None
    bare = _line_without_colon(trouble, previous)
    if bare:
        start, end = bare
        return f"`{trouble.text[start:end]}` has no colon", start, end, "write `key: value`"
    if glued and glued.end() <= trouble.line_start:
        return (
            f"a space is missing after `{glued[1]}:`",
            glued.start(1),
            glued.end(),
            f"write `{glued[1]}: ` with a space",
        )
    start = trouble.line_start + len(trouble.before) - len(trouble.before.lstrip())
    message = "this line is indented like a part of the line before it, which already has a value"
    return message, start, trouble.at, "indent it like the other keys of its mapping"


def _missing_colon(trouble: _Trouble) -> Explanation | None:
    if "could not find expected ':'" not in trouble.problem:
        return None
    end = _line_end(trouble.text, trouble.since)
    shown = trouble.text[trouble.since : end].rstrip()
    glued = _COLON_WITHOUT_SPACE.match(shown)
    if glued:
        start = trouble.since
        return (
            f"a space is missing after `{glued[1]}:`",
            start,
            start + glued.end(),
            f"write `{glued[1]}: ` with a space",
        )
    return f"`{shown}` has no colon", trouble.since, trouble.since + len(shown), "write `key: value`"


def _first_character(trouble: _Trouble) -> Explanation | None:
    bare = trouble.character or " "
    if "cannot start any token" in trouble.problem or "alphabetic or numeric" in trouble.problem:
        start = trouble.at if "cannot start" in trouble.problem else trouble.since
        bare = trouble.text[start]
        message = f"a value cannot begin with `{bare}` unless it is quoted"
        return message, start, start + 1, "put quotes around the text"
    if "block scalar" in trouble.context:
        bare = trouble.text[trouble.since]
        message = f"`{bare}` begins a block of text, which has to start in the next line"
        return message, trouble.since, trouble.since + 1, f"put quotes around the text if it begins with `{bare}`"
    return None


def _indentation(trouble: _Trouble) -> Explanation | None:
    start, end = trouble.at, max(trouble.at + 1, _line_end(trouble.text, trouble.at))
    if trouble.before.strip():
        if trouble.before.rstrip()[-1:] in "]}":
            hint = "delete it, or put quotes around the whole value"
            return f"the value ends at the `{trouble.before.rstrip()[-1]}` before this", start, end, hint
        begun = trouble.before.rstrip()[-1:]
        if begun in "'\"":
            hint = 'inside single quotes a quote is written twice, inside double quotes as \\"'
            return f"the text ends at the quote before this, and something follows ({begun})", start, start + 1, hint
        return None
    if "block collection" in trouble.context or "block sequence" in trouble.context:
        return "a line of a list must begin with `- ` at this indentation", start, end, "or indent it like its mapping"
    if trouble.character == "-" and "block mapping" in trouble.context:
        return "a list item stands where a key is expected", start, end, "indent it below the key that it belongs to"
    if "document start" in trouble.problem:
        return "this line is indented less than the first line of the file", start, end, "indent both alike"
    if "block mapping" in trouble.context:
        return "the indentation of this line fits no line above it", start, end, "indent it like the keys it belongs to"
    return None


_EXPLANATIONS: tuple[Callable[[_Trouble], Explanation | None], ...] = (
    _tab,
    _full_width,
    _quotes,
    _unquoted_in_flow,
    _brackets,
    _mapping_value,
    _missing_colon,
    _first_character,
    _indentation,
)


def _line_without_colon(trouble: _Trouble, previous: int | None) -> tuple[int, int] | None:
    """Return where the line before stands when it is the first of its mapping and has no colon."""
    if previous is None:
        return None
    line = trouble.text[previous : _line_end(trouble.text, previous)]
    indentation = len(line) - len(line.lstrip())
    above = _previous_line(trouble.text, previous)
    opened = above is None or trouble.text[above : _line_end(trouble.text, above)].rstrip().endswith(":")
    if not opened or ":" in line or line.lstrip().startswith(("-", "#")):
        return None
    own = len(trouble.before) - len(trouble.before.lstrip())
    return (previous + indentation, previous + len(line.rstrip())) if own == indentation else None


def _line_start(text: str, at: int) -> int:
    return max(text.rfind("\n", 0, at), text.rfind("\r", 0, at)) + 1


def _line_end(text: str, at: int) -> int:
    found = _LINE_BREAK.search(text, at)
    return found.start() if found else len(text)


def _previous_line(text: str, start: int) -> int | None:
    """Return where the last line before `start` that is not blank begins."""
    end = len(text[:start].rstrip())
    return _line_start(text, end) if end else None


def _matching_end(text: str, at: int) -> int:
    """Return the end of the value whose bracket opens at `at`: behind its partner and what is glued to that."""
    depth = 0
    limit = _line_end(text, at)
    for position in range(at, limit):
        depth += (text[position] in "{[") - (text[position] in "}]")
        if depth == 0:
            glued = re.compile(r"[^\s,{}\[\]]*").match(text, position + 1)
            return glued.end() if glued else position + 1
    return limit
