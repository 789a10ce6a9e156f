"""Writes the pages that are made from the code: `docs/nodes.md`, `docs/errors.md` and `docs/nodes_of_methods.md`.

`python docs/generate.py` writes them; with `--check` it exits with 1 when they are not those of the code.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ragbraid.dsl.codes import CODES
from ragbraid.dsl.compile import load_plan
from ragbraid.dsl.walk import node_steps
from ragbraid.flows.cli_catalogue import node_to_dict
from ragbraid.registry.catalogue import installed_catalogue

DOCS = Path(__file__).parent
GOLDEN = DOCS.parent / "tests" / "golden" / "bad"
EXAMPLES = DOCS.parent / "examples_flows"
NOTE = "<!-- Made by docs/generate.py; change the code, not this page. -->\n"


def nodes_page() -> str:
    """Return the page of all nodes: contract, settings with bounds and defaults, example."""
    catalogue = installed_catalogue()
    parts = [NOTE, "# Nodes\n", "`ragbraid nodes NAME` prints the same on a terminal.\n"]
    parts.extend(_node_section(node_to_dict(node)) for node in catalogue.nodes())
    parts.append("# Resource providers\n")
    parts.extend(
        f"## `{provider.name}` ({provider.role})\n\n{_indented(provider.docstring)}\n"
        for provider in catalogue.resources()
    )
    return "\n".join(parts)


def _node_section(node: dict[str, Any]) -> str:
    rows = [
        f"| `{port['name']}` | {port['kind']} | `{_cell(port['type'])}` | "
        f"{'required' if port['required'] else '`' + _cell(repr(port['default'])) + '`'} | {_cell(port['bounds'])} |"
        for port in node["ports"]
    ]
    table = "\n".join(["| parameter | kind | type | default | bounds |", "|---|---|---|---|---|", *rows])
    needed, usable = (
        ", ".join(f"`{need['name']}` ({need['role']})" for need in node["resources"] if need["required"] is required)
        for required in (True, False)
    )
    lines = [f"## `{node['name']}`", "", _indented(node["docstring"]), "", table, "", f"Gives `{node['output']}`."]
    if needed:
        lines.append(f"Needs {needed}.")
    if usable:
        lines.append(f"Uses {usable} where there is one.")
    if node["example"]:
        lines.extend(["", "```yaml", node["example"], "```"])
    return "\n".join([*lines, ""])


def _indented(text: str) -> str:
    """Keep the sections of a docstring apart: `Args:` and its like become a code block."""
    head, _, rest = text.partition("\n\nArgs:")
    return f"{head}\n\n```text\nArgs:{rest}\n```" if rest else text


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def errors_page() -> str:
    """Return the page of all codes, each with a file that has the mistake and what is printed for it."""
    parts = [NOTE, "# What the checker finds\n"]
    for code, about in CODES.items():
        parts.append(f"## {code}\n\n{about}\n")
        examples = sorted(GOLDEN.glob(f"{code.lower()}_*.txt"))
        if examples:
            parts.append(f"```text\n{examples[0].read_text(encoding='utf-8').rstrip()}\n```\n")
    return "\n".join(parts)


def methods_page() -> str:
    """Return the table of nodes and the example flows that use them, by themselves or in a flow that they use."""
    catalogue = installed_catalogue()
    users: dict[str, list[str]] = {}
    for path in sorted(EXAMPLES.glob("*.yaml")):
        for node in sorted({step.node.name for step in node_steps(load_plan(path, catalogue).body)}):
            users.setdefault(node, []).append(f"[{path.stem}](../examples_flows/{path.name})")
    unused = sorted(f"`{node.name}`" for node in catalogue.nodes() if node.name not in users)
    return "\n".join(
        [
            NOTE,
            "# Which method uses which nodes\n",
            "One set of nodes for all methods. [Methods](methods.md) says where each comes from and what differs from the",
            "original. A flow that another one uses as a node counts for both.\n",
            "| node | flows |",
            "|---|---|",
            *(f"| `{node}` | {', '.join(flows)} |" for node, flows in sorted(users.items())),
            f"\nIn no example flow, for flows of your own: {', '.join(unused)}.\n",
        ]
    )


def main() -> int:
    """Write the pages, or compare them."""
    pages = {
        DOCS / "nodes.md": nodes_page(),
        DOCS / "errors.md": errors_page(),
        DOCS / "nodes_of_methods.md": methods_page(),
    }
    if "--check" in sys.argv[1:]:
        stale = [path for path, text in pages.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
        for path in stale:
            print(f"{path.name} is not that of the code; run `python docs/generate.py`", file=sys.stderr)
        return 1 if stale else 0
    for path, text in pages.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
