"""The `graph.*` nodes: finding things in the knowledge graph of a knowledge base."""
