"""What the graph store asks of Neo4j, in Cypher 5 and 25 alike: every value is a parameter, labels are a fixed set.

Every record is one node with two labels, `RagbraidRecord` and that of its kind. Its properties are id, kb (the
knowledge base), kind, key, body, text, embed_hash, gen_from, gen_to, a vector under a name that tells its length, and
what `neo4j_readable` adds for people.
"""

from __future__ import annotations

from collections.abc import Mapping

from ragbraid.registry.graph_store import RecordKind

LABELS: Mapping[RecordKind, str] = {
    "entity": "RagbraidEntity",
    "profile": "RagbraidProfile",
    "fact": "RagbraidFact",
    "neighbours": "RagbraidNeighbours",
    "report": "RagbraidReport",
}
SEARCHED: tuple[RecordKind, ...] = ("entity", "profile", "fact", "report")
"""The kinds of records that have vectors."""

SCHEMA = (
    "CREATE CONSTRAINT ragbraid_record_id IF NOT EXISTS FOR (n:RagbraidRecord) REQUIRE n.id IS UNIQUE",
    "CREATE CONSTRAINT ragbraid_graph_kb IF NOT EXISTS FOR (g:RagbraidGraph) REQUIRE g.kb IS UNIQUE",
    "CREATE INDEX ragbraid_record_key IF NOT EXISTS FOR (n:RagbraidRecord) ON (n.kb, n.kind, n.key)",
    "CREATE INDEX ragbraid_record_gen_to IF NOT EXISTS FOR (n:RagbraidRecord) ON (n.kb, n.gen_to)",
    "CREATE INDEX ragbraid_fact_subject IF NOT EXISTS FOR (n:RagbraidFact) ON (n.kb, n.subject)",
    "CREATE INDEX ragbraid_fact_object IF NOT EXISTS FOR (n:RagbraidFact) ON (n.kb, n.object)",
)
AWAIT_INDEXES = "CALL db.awaitIndexes($seconds)"

FIND_GRAPH = "MATCH (g:RagbraidGraph {kb: $kb}) RETURN g.dimension AS dimension"
CREATE_GRAPH = """
MERGE (g:RagbraidGraph {kb: $kb})
ON CREATE SET g.dimension = $dimension
RETURN g.dimension AS dimension
"""
NOTE_GENERATION = "MATCH (g:RagbraidGraph {kb: $kb}) SET g.generation = $generation"
DELETE_GRAPH = "MATCH (g:RagbraidGraph {kb: $kb}) DELETE g"

PUT: Mapping[RecordKind, str] = {
    kind: (
        "UNWIND $rows AS row\n"
        f"MERGE (n:RagbraidRecord:{label} {{id: row.id}})\n"  # the label, no value
        "SET n = row.properties"
    )
    for kind, label in LABELS.items()
}
# From facts to what there is of their ends, and from entities to what there is of their facts, so that the order in
# which they are written does not matter.
LINK: Mapping[RecordKind, tuple[str, ...]] = {
    "fact": (
        """
        UNWIND $ids AS id
        MATCH (f:RagbraidRecord {id: id})
        MATCH (e:RagbraidRecord {kb: f.kb, kind: 'entity', key: f.subject})
        MERGE (e)-[:RAGBRAID_SUBJECT_OF]->(f)
        """,
        """
        UNWIND $ids AS id
        MATCH (f:RagbraidRecord {id: id})
        MATCH (e:RagbraidRecord {kb: f.kb, kind: 'entity', key: f.object})
        MERGE (f)-[:RAGBRAID_OBJECT]->(e)
        """,
    ),
    "entity": (
        """
        UNWIND $ids AS id
        MATCH (e:RagbraidRecord {id: id})
        MATCH (f:RagbraidFact {kb: e.kb, subject: e.key})
        MERGE (e)-[:RAGBRAID_SUBJECT_OF]->(f)
        """,
        """
        UNWIND $ids AS id
        MATCH (e:RagbraidRecord {id: id})
        MATCH (f:RagbraidFact {kb: e.kb, object: e.key})
        MERGE (f)-[:RAGBRAID_OBJECT]->(e)
        """,
    ),
}

RETIRE = """
UNWIND $keys AS key
MATCH (n:RagbraidRecord {kb: $kb, kind: $kind, key: key})
WHERE n.gen_from < $generation AND n.gen_to = $forever
SET n.gen_to = $generation
"""
TAKE_BACK = """
MATCH (n:RagbraidRecord {kb: $kb, gen_to: $generation})
WHERE n.gen_from < $generation
WITH n LIMIT $batch
SET n.gen_to = $forever
RETURN count(*) AS changed
"""
DELETE_RETIRED = """
MATCH (n:RagbraidRecord)
WHERE n.kb = $kb AND n.gen_to <= $generation
WITH n LIMIT $batch
DETACH DELETE n
RETURN count(*) AS changed
"""
DELETE_IDS = "UNWIND $ids AS id MATCH (n:RagbraidRecord {id: id}) DETACH DELETE n"
DELETE_RANGE = """
MATCH (n:RagbraidRecord)
WHERE n.id > $after AND n.id < $end
WITH n LIMIT $batch
DETACH DELETE n
RETURN count(*) AS changed
"""

_RECORD = """
RETURN n.id AS id, n.kind AS kind, n.key AS key, n.body AS body, n.text AS text, n.embed_hash AS embed_hash,
       n[$vector] AS vector
"""
READ_KEYS = f"""
UNWIND $keys AS key
MATCH (n:RagbraidRecord {{kb: $kb, kind: $kind, key: key}})
WHERE n.gen_from <= $generation AND n.gen_to > $generation
{_RECORD}
"""
READ_RANGE = f"""
MATCH (n:RagbraidRecord)
WHERE n.id > $after AND n.id < $end AND n.gen_from <= $generation AND n.gen_to > $generation
{_RECORD}
ORDER BY id LIMIT $page
"""
READ_WRITTEN = f"""
MATCH (n:RagbraidRecord)
WHERE n.id > $after AND n.id < $end AND n.gen_from = $generation
{_RECORD}
ORDER BY id LIMIT $page
"""
COUNT = """
MATCH (n:RagbraidRecord)
WHERE n.id > $after AND n.id < $end AND n.gen_from <= $generation AND n.gen_to > $generation
RETURN count(n) AS count
"""

# `queryNodes` cannot filter: it also finds other knowledge bases and generations, and `fetched` counts them.
NEAREST = """
CALL db.index.vector.queryNodes($index, $fetch, $query) YIELD node
WITH count(*) AS fetched, collect(
    CASE WHEN node.kb = $kb AND node.gen_from <= $generation AND node.gen_to > $generation
         THEN {key: node.key, vector: node[$vector]} END
) AS found
RETURN fetched, found
"""
SCAN = """
MATCH (n:RagbraidRecord)
WHERE n.id > $after AND n.id < $end AND n.gen_from <= $generation AND n.gen_to > $generation
  AND n[$vector] IS NOT NULL
WITH n, vector.similarity.cosine(n[$vector], $query) AS score
ORDER BY score DESC, n.key
LIMIT $limit
RETURN n.key AS key, n[$vector] AS vector
"""


def vector_property(dimension: int) -> str:
    """Return the property that holds vectors of a length: knowledge bases with several models may share a database."""
    return f"vector_{dimension:d}"


def vector_index(kind: RecordKind, dimension: int) -> str:
    """Return the name of the index over the vectors of a kind of records."""
    return f"ragbraid_{kind}_{dimension:d}"


def create_vector_index(kind: RecordKind, dimension: int) -> str:
    """Return the command that makes the index over the vectors of a kind; commands take names and lengths as text."""
    return (
        f"CREATE VECTOR INDEX {vector_index(kind, dimension)} IF NOT EXISTS "
        f"FOR (n:{LABELS[kind]}) ON (n.{vector_property(dimension)}) "
        f"OPTIONS {{indexConfig: {{`vector.dimensions`: {dimension:d}, `vector.similarity_function`: 'cosine'}}}}"
    )
