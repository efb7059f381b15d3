"""Adapters: trained on your images, kept as a bundle, used without a server."""
