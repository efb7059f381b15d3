"""The names of the world's tasks, and its tables: light to import."""

import json
from functools import cache
from importlib.resources import files
from typing import Any, Literal


@cache
def bulk(name: str) -> Any:
    """The content of a JSON file in this package."""
    return json.loads(files(__package__).joinpath(f"{name}.json").read_text(encoding="utf-8"))


def task_names() -> list[str]:
    """The names of the tasks: the base-to-novel tasks, then `source` and its shifted variants."""
    return [row["name"] for role in ("tasks", "sources") for row in bulk("tasks")[role]]


def downstream_names(which: Literal["all", "calibrated", "unseen"] = "all") -> list[str]:
    """The names of the base-to-novel tasks: those that the looks of the tasks were set on, and the others."""
    rows = bulk("tasks")["tasks"]
    return [row["name"] for row in rows if which == "all" or row.get("unseen", False) == (which == "unseen")]
