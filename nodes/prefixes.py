"""What embedding models want written before queries and passages, by their authors' model cards."""

from __future__ import annotations

_SEARCH = "Represent this sentence for searching relevant passages: "
PREFIXES: tuple[tuple[str, str, str], ...] = (
    ("intfloat/multilingual-e5", "query: ", "passage: "),
    ("nomic-ai/nomic-embed-text", "search_query: ", "search_document: "),
    ("snowflake/snowflake-arctic-embed", _SEARCH, ""),
    ("mixedbread-ai/mxbai-embed-large", _SEARCH, ""),
    ("baai/bge-small-en", _SEARCH, ""),
    ("baai/bge-base-en", _SEARCH, ""),
    ("baai/bge-large-en", _SEARCH, ""),
    ("baai/bge-small-zh", "为这个句子生成表示以用于检索相关文章：", ""),
)
"""Start of a model's name in lower case, then what its authors ask to write before queries and before passages."""


def known_prefixes(model: str) -> tuple[str, str]:
    """Return what a model's authors ask to write before queries and before passages; empty where nothing is known."""
    for start, query, passage in PREFIXES:
        if model.lower().startswith(start):
            return query, passage
    return "", ""


def prefix_marks(query_prefix: str, passage_prefix: str) -> str:
    """Return what prefixes add to an embedder's identity: they change its vectors, so an index must not mix them."""
    named = (("query", query_prefix), ("passage", passage_prefix))
    return "".join(f" {key}={text!r}" for key, text in named if text)
