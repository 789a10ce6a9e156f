"""Neo4j as the place of a knowledge graph: what the `qdrant.*` providers do with their `graph_*` settings."""

from __future__ import annotations

from importlib.util import find_spec
from urllib.parse import urlsplit

from ragbraid.registry.errors import SettingsError
from ragbraid.registry.graph_store import GraphStore

DEFAULT_NAME = "kb"
"""How a knowledge base is called that is given no name and bound to its own role."""
_SCHEMES = ("neo4j", "neo4j+s", "neo4j+ssc", "bolt", "bolt+s", "bolt+ssc")


def neo4j_graph(
    provider: str, name: str, url: str | None, user: str, password: str | None, database: str | None
) -> GraphStore | None:
    """Return the graph of a knowledge base in Neo4j, which is not asked before it is used; None without an address.

    Args:
        provider: whose settings these are, for messages.
        name: the knowledge base; its name tells its graph from others in the same database.
        url: address of the server.
        user: the user there.
        password: its password, where it has one.
        database: the database; None for the user's own.

    Raises:
        SettingsError: the address is malformed, the name is none of its own, or the package `neo4j` is missing.
    """
    if url is None:
        if password is not None or database is not None:
            raise SettingsError(f"{provider}: `graph_password` and `graph_database` need a `graph_url`")
        return None
    _check_address(provider, url)
    if name == DEFAULT_NAME:
        raise SettingsError(
            f"{provider}: graphs of one name in a Neo4j database are one graph, and `{DEFAULT_NAME}` is what every "
            "knowledge base is called that has no `name`",
            hint="give this one a `name` that no other has in that database",
        )
    if find_spec("neo4j") is None:
        raise SettingsError(
            f"{provider}: `graph_url` needs the package `neo4j`, which is not installed",
            hint='install it with `pip install "ragbraid[neo4j]"`, or leave `graph_url` out',
        )
    from ragbraid.nodes.graph_store_neo4j import Neo4jGraphStore
    from ragbraid.nodes.neo4j_connection import Neo4jConnection

    return Neo4jGraphStore(Neo4jConnection(url, user=user, password=password, database=database), name)


def _check_address(provider: str, url: str) -> None:
    """Refuse what is no address, without repeating it: it may hold a password."""
    try:
        parts = urlsplit(url)
        well_formed = parts.scheme in _SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        well_formed = False
    if not well_formed or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise SettingsError(
            f"{provider}: `graph_url` must be an address such as neo4j://localhost:7687; it begins with one of "
            + ", ".join(f"{scheme}://" for scheme in _SCHEMES)
        )
    if parts.username is not None or parts.password is not None:
        raise SettingsError(
            f"{provider}: `graph_url` holds a user or a password; set `graph_user` and `graph_password` instead"
        )
