"""The `rerank.*` nodes."""
