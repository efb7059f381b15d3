"""Adapters: trained on your images, saved as a bundle, usable without a server."""
