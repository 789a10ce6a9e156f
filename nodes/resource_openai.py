"""The `openai.*` resource providers."""
