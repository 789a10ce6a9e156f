"""The `load.*` nodes."""
