"""The names of the world's tasks, and its tables: light to import."""

import json
from functools import cache
from importlib.resources import files
from typing import Any, Literal


@cache
def packaged_json(name: str) -> Any:
    """The content of a JSON file in this package."""
    return json.loads(files(__package__).joinpath(f"{name}.json").read_text(encoding="utf-8"))


Half = Literal["all", "calibrated", "unseen"]
"""Which of the tasks of a size: all, those that the looks of the tasks were set on, or the others."""
Size = Literal["small", "large"]
"""Up to 8 base classes, or 30 and more."""


def task_names() -> list[str]:
    """The names of the tasks: the base-to-novel tasks, small ones first, the parts of a large one, then
    `source` and its shifted variants.
    """
    return [row["name"] for role in ("tasks", "parts", "sources") for row in packaged_json("tasks")[role]]


def downstream_names(which: Half = "all", size: Size = "small") -> list[str]:
    """The names of the base-to-novel tasks of a size, without parts of tasks."""
    return [
        row["name"]
        for row in packaged_json("tasks")["tasks"]
        if row.get("size", "small") == size
        and (which == "all" or row.get("unseen", False) == (which == "unseen"))
    ]
