"""The states in which a run can be, by the name that a user writes and the one that Prefect gives them."""

from __future__ import annotations

STATES = {
    "scheduled": "Scheduled",
    "late": "Late",
    "pending": "Pending",
    "running": "Running",
    "paused": "Paused",
    "suspended": "Suspended",
    "retrying": "Retrying",
    "awaiting-retry": "AwaitingRetry",
    "awaiting-knowledge-base": "AwaitingKnowledgeBase",
    "awaiting-concurrency-slot": "AwaitingConcurrencySlot",
    "completed": "Completed",
    "failed": "Failed",
    "timed-out": "TimedOut",
    "crashed": "Crashed",
    "cancelling": "Cancelling",
    "cancelled": "Cancelled",
}
