"""A connection to Neo4j by its official driver: managed transactions, and failures in plain sentences."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from ragbraid.registry.errors import FailureKind, ServiceError

if TYPE_CHECKING:
    import neo4j

Row = dict[str, Any]
Work = tuple[str, Mapping[str, Any]]
"""A statement and its parameters."""

_CONNECT_SECONDS = 10
_RETRY_SECONDS = 10
"""How long the driver repeats a transaction that may succeed later, as while a cluster elects a leader."""


class Neo4jConnection:
    """Runs statements in one database; connects when it is first used, and is safe to share between threads.

    Args:
        url: address of the server, `neo4j://`, `bolt://` or one of these with encryption.
        user: the user, where there is a password.
        password: the password; None for a server without authentication.
        database: which database; None for the user's own.
    """

    def __init__(self, url: str, *, user: str, password: str | None, database: str | None) -> None:
        parts = urlsplit(url)
        host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
        self.location = f"{parts.scheme}://{host}:{parts.port or 7687}"
        self._user = user
        self._auth = None if password is None else (user, password)
        self._database = database
        self._lock = threading.Lock()
        self._driver: neo4j.Driver | None = None

    def run(self, statement: str, /, **parameters: Any) -> list[Row]:
        """Run one statement in a transaction of its own, repeated where that helps; returns its rows.

        Raises:
            ServiceError: it failed.
        """
        return self.run_all([(statement, parameters)])

    def run_all(self, work: Sequence[Work]) -> list[Row]:
        """Run statements in one transaction, repeated as a whole where that helps; returns the rows of the last.

        Raises:
            ServiceError: it failed, and nothing of it was done.
        """

        def run_work(transaction: neo4j.ManagedTransaction) -> list[Row]:
            rows: list[Row] = []
            for statement, parameters in work:
                # Neo4j's type asks for a literal, so that no value gets into a text; `neo4j_cypher` sees to that.
                rows = transaction.run(statement, dict(parameters)).data()
            return rows

        with self._plain_errors():
            driver = self._connected()
            # Reads too go to the leader: another process may have committed what they must see a moment ago.
            with driver.session(
                database=self._database, bookmark_manager=driver.execute_query_bookmark_manager
            ) as session:
                return session.execute_write(run_work)

    def close(self) -> None:
        """Close all connections; the next statement opens them again."""
        with self._lock:
            driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    def _connected(self) -> neo4j.Driver:
        with self._lock:
            if self._driver is None:
                self._driver = self._open()
            return self._driver

    def _open(self) -> neo4j.Driver:
        import neo4j

        driver = neo4j.GraphDatabase.driver(
            self.location,
            auth=self._auth,
            connection_timeout=_CONNECT_SECONDS,
            max_transaction_retry_time=_RETRY_SECONDS,
            notifications_min_severity="OFF",
            telemetry_disabled=True,
            user_agent="ragbraid",
        )
        try:
            # Once and without repetition: who has mistyped the address should not wait.
            driver.verify_connectivity()
        except BaseException:
            driver.close()
            raise
        return driver

    @contextmanager
    def _plain_errors(self) -> Iterator[None]:
        from neo4j.exceptions import DriverError, Neo4jError

        try:
            yield
        except (DriverError, Neo4jError, OSError) as error:
            raise plain_sentence(error, self.location, user=self._user, database=self._database) from error


def plain_sentence(error: Exception, location: str, *, user: str, database: str | None) -> ServiceError:
    """Return the failure of a call to Neo4j in plain words, with a kind that `retry` understands.

    Args:
        error: what the driver raised.
        location: address of the server, without a password.
        user: who was logged in.
        database: which database was asked for.
    """
    code = str(getattr(error, "code", None) or type(error).__name__)
    name = f"`{database}`" if database else "the user's own"
    for kind, marks, sentence in _SENTENCES:
        if any(mark in code for mark in marks):
            return ServiceError(sentence.format(location=location, user=user, database=name), kind=kind)
    text = " ".join(str(getattr(error, "message", None) or error).split())
    transient = code.startswith("Neo.TransientError")
    kind = "unavailable" if transient else "failed"
    return ServiceError(f"Neo4j at {location} failed: {text[:300]} ({code})", kind=kind)


_SENTENCES: tuple[tuple[FailureKind, tuple[str, ...], str], ...] = (
    (
        "auth",
        ("Security.Unauthorized", "Security.CredentialsExpired", "Security.TokenExpired", "AuthError"),
        "Neo4j at {location} refused user `{user}`; set the right `graph_user` and `graph_password`",
    ),
    (
        "auth",
        ("Security.Forbidden",),
        (
            "Neo4j at {location} does not allow user `{user}` to do this in database {database}; grant reading, "
            "writing and creating indexes"
        ),
    ),
    (
        "rate_limit",
        ("Security.AuthenticationRateLimit",),
        "Neo4j at {location} has seen too many wrong passwords; set the right `graph_password` and wait a few seconds",
    ),
    (
        "failed",
        ("ReadOnly", "NotALeader"),
        "database {database} of Neo4j at {location} can only be read; name one in `graph_database` that can be written",
    ),
    (
        "failed",
        ("Database.DatabaseNotFound", "Database.GraphNotFound"),
        "Neo4j at {location} has no database {database}; create it, or name another in `graph_database`",
    ),
    (
        "failed",
        ("MemoryPoolOutOfMemory", "TransactionOutOfMemory", "OutOfMemory"),
        "Neo4j at {location} has too little memory for a transaction; raise `dbms.memory.transaction.total.max`",
    ),
    (
        "timeout",
        ("TransactionTimedOut", "ConnectionReadTimeout", "ConnectionAcquisitionTimeout"),
        "Neo4j at {location} did not answer in time; look at the server's load",
    ),
    (
        "failed",
        ("Statement.SyntaxError", "Procedure.ProcedureNotFound", "UnknownFunction"),
        "the server at {location} has no vector indexes as Neo4j 5.18 and later have; use such a one",
    ),
    (
        "failed",
        ("BoltHandshakeError", "UnsupportedServerProduct", "ConfigurationError", "BoltSecurityError"),
        (
            "no Neo4j that ragbraid can use answers at {location}; it must be version 5.18 or later, and `graph_url` must "
            "begin with `neo4j+s://` or `bolt+s://` where the server wants encryption"
        ),
    ),
    (
        "unavailable",
        ("ServiceUnavailable", "SessionExpired", "DatabaseUnavailable", "RoutingServiceUnavailable", "OSError"),
        (
            "Neo4j at {location} cannot be reached; check that `graph_url` names its Bolt port (7687, not 7474) and that "
            "the server runs"
        ),
    ),
)
