"""What a data set is: images that load by index, class names, prompt templates, three splits."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from jaxtyping import Int, UInt8
from torch import Tensor

from dear.errors import DataError, UnknownNameError

Pictures = Sequence[UInt8[Tensor, "3 _height _width"]] | UInt8[Tensor, "batch 3 height width"]
"""A batch of 8-bit RGB pictures: one tensor where all have one size, else a sequence of any sizes.

An underscore before an axis means that it may differ from picture to picture.
"""


@runtime_checkable
class Images(Protocol):
    """Labelled images, loaded by their indices. What `load` returns may be cached: never write into it."""

    @property
    def labels(self) -> Int[Tensor, "item"]:
        """The class of each image, counted from 0."""

    @property
    def identity(self) -> str:
        """A text that changes when the images, their order or their labels do: the key of any cache."""

    def __len__(self) -> int: ...

    def load(self, indices: Int[Tensor, "batch"]) -> Pictures:
        """The pictures at the given indices, in that order."""


@dataclass(frozen=True)
class Dataset:
    """A classification data set.

    Attributes:
        name: short, for commands and records.
        title: for people: tables and plots.
        classnames: in label order, as they stand in a sentence.
        templates: prompts with one {} for the class name.
        val: None where the data set has no validation images.
        identity: changes when the images, the class names or the templates do.
    """

    name: str
    title: str
    classnames: tuple[str, ...]
    templates: tuple[str, ...]
    train: Images
    val: Images | None
    test: Images
    identity: str


def fingerprint(*parts: str) -> str:
    """16 hexadecimal digits (of SHA-256) for a series of texts; where one ends and the next begins counts."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:16]


def assemble(
    name: str,
    title: str,
    classnames: Sequence[str],
    templates: Sequence[str],
    train: Images,
    val: Images | None,
    test: Images,
) -> Dataset:
    """A data set with its identity made from that of its parts."""
    splits = [split.identity if split is not None else "" for split in (train, val, test)]
    identity = fingerprint(*splits, *classnames, "templates", *templates)
    return Dataset(name, title, tuple(classnames), tuple(templates), train, val, test, identity)


def load_dataset(name_or_path: str) -> Dataset:
    """A task of the Attribute World by its name, or a folder in CoOp's layout.

    Errors: UnknownNameError for a name that is neither; DataError for a path that is no folder or whose
    content is not as it should be.
    """
    # Here and not above: both modules use the classes of this one.
    from dear.data.coop import load_coop
    from dear.data.world.tasks import load_task, task_names

    known = tuple(task_names())
    if name_or_path in known:
        task = load_task(name_or_path)
        return assemble(
            task.name, task.title, task.classnames, (task.template,), task.train, task.val, task.test
        )
    folder = Path(name_or_path).expanduser()
    if folder.is_dir():
        return load_coop(folder)
    if folder.exists():
        raise DataError(f"{name_or_path} is a file. Give the folder of the data set.")
    if any(sign in name_or_path for sign in "/\\."):
        raise DataError(f"the folder {name_or_path} does not exist. Check the path of the data set.")
    raise UnknownNameError("data set", name_or_path, known)
