"""`context.budget`: how much of a ranking fits into a number of tokens."""

from __future__ import annotations

from itertools import accumulate
from typing import Annotated

from pydantic import Field, NonNegativeInt

from ragbraid.nodes.chunking import find_tokens
from ragbraid.nodes.reasoning import keep_hits
from ragbraid.registry.context import report_note
from ragbraid.registry.contracts import Hit, Ranking
from ragbraid.registry.node import node


@node(
    "context.budget",
    example="""
    facts: {use: graph.facts, top_k: 40, min_score: 0.2}
    fitting: {use: context.budget, hits: $facts, max_tokens: 8000}
    """,
)
def budget(
    hits: Ranking, *, max_tokens: Annotated[int, Field(ge=1, le=10_000_000)], keep_min: NonNegativeInt = 0
) -> Ranking:
    """Keeps as many of the first hits as fit into a number of tokens, and drops the rest whole.

    Everything behind the first hit that does not fit is dropped, also what would fit by itself, so that the order of
    importance holds. LightRAG gives 6000 tokens to entities, 8000 to relations and 30000 to all together: one such
    step for each. Tokens are counted as `chunk.*` nodes count them (words, CJK characters and signs, without a model),
    over text, title and section; an English word is about 1.3 tokens of a model, so leave room.

    Args:
        hits: the hits, most important first.
        max_tokens: how many tokens they may have together.
        keep_min: so many of the first hits stay even if they do not fit.
    """
    lengths = [_count(hit) for hit in hits]
    fitting = sum(1 for total in accumulate(lengths) if total <= max_tokens)
    kept = min(len(hits), max(fitting, keep_min))
    if kept < len(hits):
        used, all_ = sum(lengths[:kept]), sum(lengths)
        report_note(f"kept {kept} of {len(hits)} hits, {used} of {all_} tokens; `max_tokens` is {max_tokens}")
    return keep_hits(hits, hits.hits[:kept])


def _count(hit: Hit) -> int:
    shown = (hit.text, hit.title or "", *hit.section_path)
    return sum(1 for text in shown for _ in find_tokens(text))
