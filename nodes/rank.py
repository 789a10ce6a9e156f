"""The `rank.*` nodes."""
