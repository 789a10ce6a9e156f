"""The `plan.*` nodes: questions as logical forms, solved step by step."""
