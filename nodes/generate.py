"""The `generate.*` nodes."""
