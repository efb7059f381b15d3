"""Attribute-conditioned retrieval: features by attribute and their nearest neighbors."""
