"""The `fuse.*` nodes."""
