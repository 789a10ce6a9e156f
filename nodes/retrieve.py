"""The `retrieve.*` nodes."""
