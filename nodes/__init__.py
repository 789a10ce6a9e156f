"""Node implementations by family, and the adapters behind the resource protocols."""
