"""Roles of attention heads: their discovery, role tables, and the attention masks derived from them."""
