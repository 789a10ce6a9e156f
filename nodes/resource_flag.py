"""The `flag.*` resource providers."""
