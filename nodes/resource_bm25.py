"""The `bm25.*` resource providers."""
