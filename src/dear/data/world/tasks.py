"""Downstream tasks on the Attribute World: rows of tasks.json turned into labelled images and class names."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dear.data.world.adversarial import adversarial_numbers
from dear.data.world.classes import classes_of, classname
from dear.data.world.images import WorldImages
from dear.data.world.looks import own_strengths, preferred_values
from dear.data.world.names import bulk
from dear.data.world.names import downstream_names as downstream_names
from dear.data.world.names import task_names as task_names
from dear.errors import UnknownNameError


@dataclass(frozen=True)
class WorldTask:
    """A classification task. The first ceil(n / 2) classes are the base classes, the rest the novel ones.

    ``check`` is a fourth split, for measurements while a task is being set: neither trained nor tested on.
    """

    name: str
    title: str
    classnames: tuple[str, ...]
    template: str
    train: WorldImages
    val: WorldImages
    check: WorldImages
    test: WorldImages


def factor_alone(names: Sequence[str]) -> dict[str, str]:
    """The factor that alone tells the classes apart, of those tasks that have one: no habit tells it too."""
    images = {name: load_task(name).train for name in names}
    return {
        name: one.factors_of_class[0]
        for name, one in images.items()
        if len(one.factors_of_class) == 1 and not one.habits
    }


@cache
def load_task(name: str) -> WorldTask:
    """A task by its name; its images are rendered when loaded.

    Raises UnknownNameError for an unknown name, DataError for `source-adversarial` until its images are
    chosen.
    """
    return make_task(_row(name))


def make_task(row: dict[str, Any]) -> WorldTask:
    """A task from a row of tasks.json."""
    classes = classes_of(row)
    train, val, check, test = (_images(row, split) for split in ("train", "val", "check", "test"))
    if row.get("test_from") == "adversarial":
        candidates = adversarial_candidates(row["name"])
        test = candidates.keep(adversarial_numbers(candidates))
    names = tuple(classname(row, values) for values in classes)
    return WorldTask(row["name"], row["title"], names, row["template"], train, val, check, test)


def adversarial_candidates(name: str = "source-adversarial") -> WorldImages:
    """The candidates for adversarial test images: unshifted images of the classes of `source`."""
    return _images(_row(name), "candidates")


def _row(name: str) -> dict[str, Any]:
    """A task's row; a variant (`like`) inherits from the row it names, including the seed of the classes."""
    facts = bulk("tasks")
    version = {"tasks": facts["version"], "sources": facts["source_version"]}
    rows = {row["name"]: {**row, "version": version[role]} for role in version for row in facts[role]}
    if name not in rows:
        raise UnknownNameError("task", name, rows)
    row = rows[name]
    if "like" not in row:
        return {**row, "image_seed": row["seed"]}
    return {**rows[row["like"]], **row, "seed": rows[row["like"]]["seed"], "image_seed": row["seed"]}


def _images(row: dict[str, Any], split: str) -> WorldImages:
    facts = bulk("tasks")
    counts = facts["per_class"] | {"candidates": facts["adversarial_candidates"]}
    classes, seed = classes_of(row), row["seed"]
    return WorldImages(
        source=f"{row['name']}/{split}",
        seed=row["image_seed"],
        version=row["version"],
        factors_of_class=tuple(row["factors"]),
        classes=tuple(classes),
        per_class=counts[split],
        shift=tuple((kind, float(strength)) for kind, strength in row["shift"]),
        own=tuple(
            (kind, own_strengths(kind, float(strongest), len(classes), seed))
            for kind, strongest in row.get("own", ())
        ),
        habits=tuple(
            (factor, preferred_values(factor, len(classes), seed), float(share))
            for factor, share in row.get("habits", ())
        ),
    )
