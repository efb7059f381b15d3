"""Downstream tasks on the Attribute World: rows of tasks.json turned into labelled images and class names."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from dear.data.world.adversarial import adversarial_numbers
from dear.data.world.classes import classes_of, classname
from dear.data.world.factors import bulk
from dear.data.world.images import WorldImages
from dear.errors import UnknownNameError


@dataclass(frozen=True)
class WorldTask:
    """A classification task. The first ceil(n / 2) classes are the base classes, the rest the novel ones."""

    name: str
    title: str
    classnames: tuple[str, ...]
    template: str
    train: WorldImages
    val: WorldImages
    test: WorldImages


def task_names() -> list[str]:
    """The names of all tasks, in the order of tasks.json."""
    return [row["name"] for row in bulk("tasks")["tasks"]]


def downstream_names() -> list[str]:
    """The names of the base-to-novel tasks: all but `source` and its shifted variants."""
    return [row["name"] for row in bulk("tasks")["tasks"] if row["name"].split("-")[0] != "source"]


@cache
def load_task(name: str) -> WorldTask:
    """A task by its name; its images are rendered when loaded.

    Raises UnknownNameError for an unknown name, DataError for `source-adversarial` until its images are
    chosen.
    """
    row = _row(name)
    classes = classes_of(row)
    train, val, test = (_images(row, split) for split in ("train", "val", "test"))
    if row.get("test_from") == "adversarial":
        candidates = adversarial_candidates(name)
        test = candidates.keep(adversarial_numbers(candidates))
    names = tuple(classname(row, values) for values in classes)
    return WorldTask(row["name"], row["title"], names, row["template"], train, val, test)


def adversarial_candidates(name: str = "source-adversarial") -> WorldImages:
    """The candidates for adversarial test images: unshifted images of the classes of `source`."""
    return _images(_row(name), "candidates")


def _row(name: str) -> dict[str, Any]:
    """A task's row; a variant (`like`) inherits from the row it names, including the seed of the classes."""
    rows = {row["name"]: row for row in bulk("tasks")["tasks"]}
    if name not in rows:
        raise UnknownNameError("task", name, rows)
    row = rows[name]
    if "like" not in row:
        return {**row, "image_seed": row["seed"]}
    return {**rows[row["like"]], **row, "seed": rows[row["like"]]["seed"], "image_seed": row["seed"]}


def _images(row: dict[str, Any], split: str) -> WorldImages:
    facts = bulk("tasks")
    counts = facts["per_class"] | {"candidates": facts["adversarial_candidates"]}
    return WorldImages(
        source=f"{row['name']}/{split}",
        seed=row["image_seed"],
        version=facts["version"],
        factors_of_class=tuple(row["factors"]),
        classes=tuple(classes_of(row)),
        per_class=counts[split],
        shift=tuple((kind, float(strength)) for kind, strength in row["shift"]),
    )
