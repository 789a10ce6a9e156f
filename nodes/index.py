"""The `index.*` nodes."""
