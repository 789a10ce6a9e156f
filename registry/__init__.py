"""The vocabulary: contracts, the node decorator, resources, the catalogue, errors."""
