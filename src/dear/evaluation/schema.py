"""The version of the record schema (docs/reference/records.md). Light to import: the report uses it too."""

SCHEMA = 2
