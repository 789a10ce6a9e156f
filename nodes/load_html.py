"""From an HTML page to Markdown-like text: headings, lists, code and tables keep a form that chunkers understand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ragbraid.nodes.load_text import ReadText

if TYPE_CHECKING:
    from selectolax.lexbor import LexborNode

_DROPPED = frozenset({
    "script", "style", "noscript", "template", "nav", "svg", "math", "iframe", "object", "canvas", "audio", "video",
    "button", "select", "textarea", "input", "head",
})  # fmt: skip
_HEADINGS = {f"h{level}": level for level in range(1, 7)}
_PARAGRAPHS = frozenset({"p", "blockquote", "ul", "ol", "dl", "table", "figure", "section", "article", "main"})
_LINES = frozenset({
    "div", "dt", "dd", "tr", "td", "th", "caption", "figcaption", "header", "footer", "aside", "form", "fieldset",
    "legend", "address", "details", "summary", "hgroup", "body", "option", "hr",
})  # fmt: skip
_WHITESPACE = re.compile(r"\s+")


def read_html(page: str) -> ReadText:
    """Turn a page into text.

    Headings become `#` lines, list items `- ` lines, preformatted text a fenced block, the rows of a data table
    `cell | cell` lines. Scripts, styles, navigation and form controls are left out. The title is the first `<h1>`,
    else `<title>`, else the first heading.
    """
    from selectolax.lexbor import LexborHTMLParser

    tree = LexborHTMLParser(page)
    writer = _Writer()
    if tree.body is not None:
        for node, entering in _walk(tree.body):
            writer.visit(node, entering)
    title = tree.css_first("title")
    named = _flat(title.text()) if title is not None else ""
    first = next((text for level, text in writer.headings if level == 1), "")
    any_heading = writer.headings[0][1] if writer.headings else ""
    return ReadText(writer.finish(), first or named or any_heading or None)


def _walk(top: LexborNode) -> Iterator[tuple[LexborNode, bool]]:
    """Yield every node on entering and every element on leaving; without recursion, as pages may nest deeply."""
    node: LexborNode = top
    while True:
        yield node, True
        child = node.first_child if node.is_element_node and not _is_whole(node) else None
        if child is not None:
            node = child
            continue
        while True:
            if node.is_element_node:
                yield node, False
            if node.mem_id == top.mem_id:
                return
            if node.next is not None:
                node = node.next
                break
            parent = node.parent
            if parent is None:
                return
            node = parent


class _Writer:
    """Builds the text block by block: words gather in a line until something ends it."""

    def __init__(self) -> None:
        self.headings: list[tuple[int, str]] = []
        self._blocks: list[str] = []
        self._line: list[str] = []

    def visit(self, node: LexborNode, entering: bool) -> None:
        """Take in one node, on entering or on leaving it."""
        tag = node.tag or ""
        if node.is_text_node:
            self._line.append(node.text_content or "")
        elif _is_whole(node):
            if entering:
                self._write_whole(node, tag)
        elif tag in _HEADINGS or tag in _PARAGRAPHS:
            self._end_line(paragraph=True)
        elif tag in _LINES or (tag == "br" and entering):
            self._end_line()
        elif tag == "li":
            self._end_line()
            if entering:
                self._line.append("- ")
        elif tag == "img" and entering:
            self._line.append(f" {node.attributes.get('alt') or ''} ")

    def finish(self) -> str:
        """Return the whole text."""
        self._end_line()
        return re.sub(r"\n{3,}", "\n\n", "".join(self._blocks)).strip("\n") + "\n" if self._blocks else ""

    def _end_line(self, *, paragraph: bool = False) -> None:
        text = _flat("".join(self._line))
        self._line.clear()
        if text and text != "-":
            self._blocks.append(text + "\n")
        if paragraph:
            self._blocks.append("\n")

    def _write_whole(self, node: LexborNode, tag: str) -> None:
        if tag in _HEADINGS:
            self._end_line(paragraph=True)
            if title := _flat(node.text(separator=" " if node.css_first("br") else "")):
                self.headings.append((_HEADINGS[tag], title))
                self._blocks.append(f"{'#' * _HEADINGS[tag]} {title}\n\n")
        elif tag == "pre":
            self._end_line(paragraph=True)
            code = node.text().strip("\n")
            fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", code)), default=0))
            self._blocks.append(f"{fence}\n{code}\n{fence}\n\n")
        elif tag == "tr":
            self._end_line()
            cells = [_flat(_cell_text(cell)) for cell in node.iter() if cell.tag in ("td", "th")]
            if any(cells):
                self._blocks.append(" | ".join(cells) + "\n")


def _is_whole(node: LexborNode) -> bool:
    """Whether an element is written in one go, so that the walk does not go into it."""
    tag = node.tag or ""
    if tag in _DROPPED or tag == "pre" or tag in _HEADINGS:
        return True
    # A row that holds headings or another table lays out the page; its cells are read like any other block.
    return tag == "tr" and node.css_first("table, h1, h2, h3, h4, h5, h6, pre, ul, ol") is None


def _cell_text(cell: LexborNode) -> str:
    words = [node.text_content or "" for node in cell.traverse(include_text=True) if node.is_text_node and _shown(node)]
    return " ".join(words) if cell.css_first("p, div, br") is not None else "".join(words)


def _shown(node: LexborNode) -> bool:
    parent = node.parent
    return parent is None or parent.tag not in _DROPPED


def _flat(text: str) -> str:
    return _WHITESPACE.sub(" ", text).strip()
