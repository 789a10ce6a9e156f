"""The `packaged.*` resource providers."""
