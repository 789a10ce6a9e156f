"""The `chunk.*` nodes."""
