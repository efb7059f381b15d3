"""The schema of role tables."""

from dear.reading.schema import Schema

TABLES = Schema(now=1)
