"""The `fastembed.*` resource providers."""
