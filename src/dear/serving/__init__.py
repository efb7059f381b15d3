"""Serve an adapted model: the HTTP API, its web page, and the limits that protect them."""
