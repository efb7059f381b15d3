"""How a role table is named: by a file, or by a kind of table in the package. Without torch."""

from pathlib import Path
from typing import Any

from dear.errors import RoleTableError
from dear.reading.files import ReadingError
from dear.reading.plain import read_json

KINDS = ("discovered", "ground-truth", "published")
"""Kinds of packaged tables (the first words of their sources), in order of preference."""


def check_table(name_or_path: str) -> None:
    """Raise the error of `named_table` for a file that is missing or no JSON. A command calls it first, so
    that the error comes before torch is loaded.
    """
    if name_or_path not in KINDS:
        read_table(Path(name_or_path))


def read_table(path: Path) -> Any:
    """The content of a table's file. Raises RoleTableError for one that is missing or no JSON."""
    try:
        return read_json(path)
    except ReadingError as error:
        raise RoleTableError(f"{path} is not a role table: {error.reason}.") from error
