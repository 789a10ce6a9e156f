"""Prompt templates: loading ours, choosing one by language, checking and rendering a flow's own.

A template is Jinja2 text in a sandbox. It either is the user message as a whole, or consists of the blocks `system`
and `user`. Where it has no `system` block the node's own system message stays, and with it the rule that passages are
material and not instructions.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Literal

from ragbraid.registry.contracts import Hit
from ragbraid.registry.errors import NodeInputError
from ragbraid.registry.resources import Message

if TYPE_CHECKING:  # importing it is a tenth of checking a small flow
    from jinja2 import nodes
    from jinja2.sandbox import SandboxedEnvironment

Language = Literal["en", "zh"]

_BLOCKS = frozenset({"system", "user"})
_CHINESE = re.compile(r"[㐀-䶿一-鿿]")
_LATIN_WORD = re.compile(r"[A-Za-zÀ-ɏ]+")
_CONTROL_TOKEN = re.compile(r"<(?=\||/?s>|</?SYS>>|(?:start|end)_of_turn>)|\[(?=/?INST\])")
"""The first character of the marks by which chat models tell turns apart; some servers obey them inside a message."""


@dataclass(frozen=True)
class Passage:
    """A numbered passage as templates see it. Printed as it is, it stands between marks that no passage can forge."""

    number: int
    text: str
    title: str
    section: str
    source: str
    key: str

    def __str__(self) -> str:
        lines = [f"<<<passage {self.number} key {self.key}>>>"]
        if self.title:
            lines.append(f"Title: {self.title}")
        if self.section:
            lines.append(f"Section: {self.section}")
        return "\n".join([*lines, self.text, f"<<<end {self.number} key {self.key}>>>"])


def number_passages(hits: Sequence[Hit], question: str) -> list[Passage]:
    """Turn hits into passages numbered from 1.

    The key in their marks is a hash of everything that they say, so a passage that contained it would have to contain
    its own hash. Marks of chat formats (`<|im_end|>` and the like) get a space after their first character.
    """
    shown = [
        (_defused(hit.text), one_line(hit.title or ""), one_line(" > ".join(hit.section_path)), hit.source or "")
        for hit in hits
    ]
    key = hashlib.sha256(repr((question, shown)).encode()).hexdigest()[:12]
    return [
        Passage(number, text, title, section, source, key)
        for number, (text, title, section, source) in enumerate(shown, start=1)
    ]


def _defused(text: str) -> str:
    return _CONTROL_TOKEN.sub(r"\g<0> ", text)


def one_line(text: str) -> str:
    """Return a text as a single line in which no mark of a chat format works."""
    return _defused(" ".join(text.split()))


def choose_language(text: str, language: Literal["auto", "en", "zh"] = "auto") -> Language:
    """Return the language to write in: the given one, else Chinese where a text has as many Han characters as words."""
    if language != "auto":
        return language
    chinese = len(_CHINESE.findall(text))
    return "zh" if chinese and chinese >= len(_LATIN_WORD.findall(text)) else "en"


@cache
def load_template(name: str, language: Language) -> str:
    """Return the text of one of our own templates, such as `answer` in `zh`."""
    return (files("ragbraid.nodes") / "prompts" / f"{name}.{language}.jinja").read_text(encoding="utf-8")


def check_template(text: str, variables: Sequence[str]) -> list[str]:
    """Return what is wrong with a template, one sentence each; empty when it can be used.

    Args:
        text: the template.
        variables: the names that the node fills in.
    """
    from jinja2 import TemplateSyntaxError, nodes
    from jinja2.meta import find_undeclared_variables

    try:
        tree = _environment().parse(text)
    except TemplateSyntaxError as error:
        return [f"Line {error.lineno} of the prompt template is not valid: {error.message}."]
    found = [
        f"The prompt template uses `{name}`, which this node does not fill in; it fills in {_listed(variables)}."
        for name in sorted(find_undeclared_variables(tree) - set(variables) - set(_environment().globals))
    ]
    blocks = [node for node in tree.body if isinstance(node, nodes.Block)]
    found += [
        f"The prompt template has a block `{block.name}`; the blocks of a prompt are `system` and `user`."
        for block in blocks
        if block.name not in _BLOCKS
    ]
    if blocks and any(_is_content(node) for node in tree.body):
        found.append("The prompt template has text outside its blocks, which would never be sent.")
    return found


def render_messages(template: str, default: str, values: Mapping[str, Any]) -> list[Message]:
    """Render a template into the messages of a chat.

    Args:
        template: the template to use.
        default: the node's own template, which gives each block that `template` lacks.
        values: the variables.

    Raises:
        NodeInputError: the template is wrong or fails on these values.
    """
    from jinja2 import TemplateError

    problems = check_template(template, tuple(values))
    if problems:
        raise NodeInputError(" ".join(problems), kind="input", hint="correct the template that `prompt` names")
    try:
        parts = {**_render(default, values), **_render(template, values)}
    except TemplateError as error:
        raise NodeInputError(f"The prompt template cannot be filled in: {error}.", kind="input") from None
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise NodeInputError(
            f"The prompt template cannot be filled in: {type(error).__name__}: {error}.", kind="input"
        ) from None
    if not parts["user"]:
        raise NodeInputError("The prompt template gives an empty message.", kind="input")
    return [Message(role="system", content=parts["system"]), Message(role="user", content=parts["user"])]


def _render(text: str, values: Mapping[str, Any]) -> dict[str, str]:
    template = _environment().from_string(text)
    if not template.blocks:
        return {"user": template.render(values).strip()}
    context = template.new_context(dict(values))
    return {name: "".join(block(context)).strip() for name, block in template.blocks.items()}


@cache
def _environment() -> SandboxedEnvironment:
    from jinja2 import StrictUndefined
    from jinja2.sandbox import SandboxedEnvironment

    # Prompts are plain text for a model, not HTML: escaping would change what passages say.
    return SandboxedEnvironment(undefined=StrictUndefined, autoescape=False, trim_blocks=True, lstrip_blocks=True)


def _is_content(node: nodes.Node) -> bool:
    from jinja2 import nodes

    if isinstance(node, nodes.Block):
        return False
    if isinstance(node, nodes.Output):
        return any(not isinstance(part, nodes.TemplateData) or part.data.strip() for part in node.nodes)
    return True


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
