from __future__ import annotations

import pytest

from ragbraid.nodes.neo4j_connection import Neo4jConnection, plain_sentence

exceptions = pytest.importorskip("neo4j.exceptions")


class ServerError(Exception):
    """An answer of the server, as the driver raises it: a code and a message."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (ServerError("Neo.ClientError.Security.Unauthorized"), "auth", "refused user `ann`"),
        (ServerError("Neo.ClientError.Security.CredentialsExpired"), "auth", "refused user `ann`"),
        (ServerError("Neo.ClientError.Security.Forbidden"), "auth", "does not allow user `ann`"),
        (ServerError("Neo.ClientError.Security.AuthenticationRateLimit"), "rate_limit", "too many wrong passwords"),
        (ServerError("Neo.ClientError.General.ForbiddenOnReadOnlyDatabase"), "failed", "can only be read"),
        (ServerError("Neo.ClientError.Database.DatabaseNotFound"), "failed", "has no database `kg`"),
        (ServerError("Neo.TransientError.General.MemoryPoolOutOfMemoryError"), "failed", "too little memory"),
        (ServerError("Neo.ClientError.Transaction.TransactionTimedOut"), "timeout", "did not answer in time"),
        (ServerError("Neo.ClientError.Statement.SyntaxError"), "failed", "has no vector indexes"),
        (ServerError("Neo.TransientError.Transaction.DeadlockDetected", "a lock"), "unavailable", "failed: a lock"),
        (ServerError("Neo.DatabaseError.General.UnknownError", "two\n lines"), "failed", "failed: two lines"),
        (exceptions.ServiceUnavailable("x"), "unavailable", "cannot be reached"),
        (exceptions.SessionExpired("x"), "unavailable", "cannot be reached"),
        (exceptions.ConfigurationError("x"), "failed", "must be version 5.18 or later"),
    ],
)
def test_what_the_server_and_the_driver_say_becomes_a_sentence(error: Exception, kind: str, words: str) -> None:
    found = plain_sentence(error, "bolt://host:7687", user="ann", database="kg")
    assert found.kind == kind
    assert words in str(found)
    assert "bolt://host:7687" in str(found)


def test_the_location_has_the_port_and_takes_addresses_of_every_kind() -> None:
    def location(url: str) -> str:
        return Neo4jConnection(url, user="ann", password="hunter2", database=None).location

    assert location("neo4j+s://graph.example.org/") == "neo4j+s://graph.example.org:7687"
    assert location("bolt://[::1]:7000") == "bolt://[::1]:7000"
