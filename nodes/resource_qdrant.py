"""The `qdrant.*` resource providers."""
