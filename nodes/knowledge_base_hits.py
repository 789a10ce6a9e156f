"""Hits of what a store found: built once, for the points that are left, from fields that were validated when written."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence

from pydantic import BaseModel

from ragbraid.nodes.store import Payload, span_from_payload
from ragbraid.nodes.store_found import Found
from ragbraid.registry.contracts import Hit, RouteScore, ScoreKind

FuseKeys = Callable[[Mapping[str, Sequence[Hashable]]], Sequence[tuple[Hashable, float]]]
"""Makes of the keys of every route (unique, best first) the fused keys with their scores, best first."""

FUSED = "hybrid"

_HIT_FIELDS = set(Hit.model_fields)

# Hits and route scores are made here as `Hit.model_construct` does it, but with its four attributes, and the three of a
# route score, looked up once: both are frozen, so each has to be set through its class. To go through the fields by
# name every time, or to validate them again, would cost more than the search by terms.
_new = object.__new__
_set_fields, _set_names, _set_extra, _set_private = (
    vars(BaseModel)[slot].__set__
    for slot in ("__dict__", "__pydantic_fields_set__", "__pydantic_extra__", "__pydantic_private__")
)
_set_rank, _set_score, _set_kind = (vars(RouteScore)[slot].__set__ for slot in ("rank", "score", "kind"))


def to_hits(found: Found, route: str, kind: ScoreKind) -> list[Hit]:
    """Turn found points into hits, best first; of two points with one chunk id the better one stays."""
    hits: dict[str, Hit] = {}
    for score, payload in zip(found.scores, found.payloads, strict=True):
        if payload["chunk_id"] not in hits:  # a moved file can bring one id from two sources
            rank = len(hits) + 1
            scores = {route: _route_score(rank, score, kind)}
            hits[payload["chunk_id"]] = _hit(payload, score, kind, rank, scores)
    return list(hits.values())


def to_fused_hits(
    fused: Sequence[tuple[Hashable, float]],
    routes: Mapping[str, tuple[Found, ScoreKind]],
    payloads: Mapping[Hashable, Payload],
) -> list[Hit]:
    """Make the hits that a fusion leaves, each with rank and score of every route that found it.

    Args:
        fused: keys of points with their new scores, best first.
        routes: what every route found, best first, and the kind of its scores.
        payloads: the payload of every fused point, by key.
    """
    scores_of: dict[Hashable, dict[str, RouteScore]] = {key: {} for key, _ in fused}
    for route, (found, kind) in routes.items():
        for rank, (point, score) in enumerate(zip(found.keys, found.scores, strict=True), start=1):
            if point in scores_of:
                scores_of[point][route] = _route_score(rank, score, kind)
    hits: dict[str, Hit] = {}
    for key, score in fused:
        payload, rank = payloads[key], len(hits) + 1
        if payload["chunk_id"] not in hits:
            scores = scores_of[key]
            scores[FUSED] = _route_score(rank, score, "rrf")
            hits[payload["chunk_id"]] = _hit(payload, score, "rrf", rank, scores)
    return list(hits.values())


def _hit(payload: Payload, score: float, kind: ScoreKind, rank: int, scores: dict[str, RouteScore]) -> Hit:
    """Make a hit without validating it; all share the set of field names, as hits are frozen and a copy gets its own."""
    made = _new(Hit)
    _set_fields(
        made,
        {
            "id": payload["chunk_id"],
            "text": payload["text"],
            "score": score,
            "rank": rank,
            "score_kind": kind,
            "kind": "summary" if payload["chunk_kind"] == "summary" else "chunk",
            "scores": scores,
            "document_id": payload["document_id"],
            "source": payload["source"],
            "index": payload["index"],
            "title": payload["title"],
            "section_path": tuple(payload["section_path"]),
            "embed_text": payload["embed_text"],
            "span": span_from_payload(payload),
            "language": payload["language"],
            "metadata": payload["metadata"],
        },
    )
    _set_names(made, _HIT_FIELDS)
    _set_extra(made, None)
    _set_private(made, None)
    return made


def _route_score(rank: int, score: float, kind: ScoreKind) -> RouteScore:
    """Make a route score without validating it."""
    made = _new(RouteScore)
    _set_rank(made, rank)
    _set_score(made, score)
    _set_kind(made, kind)
    return made
