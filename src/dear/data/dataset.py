"""The interface of a data set: images loaded by index, class names, prompt templates, three splits."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

from jaxtyping import Int, UInt8
from torch import Tensor

from dear.data.settings import DataSettings, Sampling
from dear.errors import DataError
from dear.text import fingerprint

Picture = UInt8[Tensor, "3 height width"]
"""An 8-bit RGB picture."""
Pictures = Sequence[UInt8[Tensor, "3 _height _width"]] | UInt8[Tensor, "batch 3 height width"]
"""A batch of 8-bit RGB pictures: one tensor if all have the same size, else a sequence.

An underscore before an axis means that it may differ between pictures.
"""


@runtime_checkable
class Images(Protocol):
    """Labeled images, loaded by index. `load` may return cached tensors: never modify them in place."""

    @property
    def labels(self) -> Int[Tensor, "item"]:
        """The class of each image, counted from 0."""

    @property
    def identity(self) -> str:
        """A string that changes with the images, their order or their labels: a key for caches."""

    def __len__(self) -> int: ...

    def load(self, indices: Int[Tensor, "batch"]) -> Pictures:
        """The pictures at the given indices, in that order."""


@dataclass(frozen=True)
class Dataset:
    """A classification data set.

    Attributes:
        name: short name, for commands and records.
        title: display name, for tables and plots.
        classnames: in label order, as written in a sentence.
        templates: prompts with one {} for the class name.
        train: empty for a test-only data set.
        val: None if the data set has no validation images.
        identity: changes with the images, the class names, the templates or the few-shot sampling rule.
        sampling: how few-shot images are drawn (`dear.data.fewshot`).
        allow_fewer: whether a class with fewer images than shots contributes all of them.
        balance: whether it contributes them repeatedly, so that all classes have as many shots.
        notes: remarks for the user, such as a split made here or images left out.
        benchmark: whether it is a published one, whose split stays as it is.
        left_out: how many test images are left out as copies of images that are trained on.
        world: whether the images are of the Attribute World, which the tiny CLIP was trained for.
        keys: the folders or labels of the classes in the files, in label order, which are also their names
            unless the user names them; empty for images without files.
        contradiction: which pictures have several labels; "" if none has.
    """

    name: str
    title: str
    classnames: tuple[str, ...]
    templates: tuple[str, ...]
    train: Images
    val: Images | None
    test: Images
    identity: str
    sampling: Sampling = "dear"
    allow_fewer: bool = False
    notes: tuple[str, ...] = ()
    world: bool = False
    keys: tuple[str, ...] = ()
    balance: bool = False
    benchmark: bool = False
    left_out: int = 0
    contradiction: str = ""

    def require_single_labels(self) -> Self:
        """This data set. Raises DataError if copies of a picture have several labels."""
        if self.contradiction:
            raise DataError(f"{self.name}: {self.contradiction}")
        return self


def assemble(
    name: str,
    title: str,
    classnames: Sequence[str],
    templates: Sequence[str],
    train: Images,
    val: Images | None,
    test: Images,
    settings: DataSettings = DataSettings(),
    **facts: Any,
) -> Dataset:
    """A data set with the few-shot settings and other ``facts``; its identity is derived from its parts'."""
    splits = [split.identity if split is not None else "" for split in (train, val, test)]
    sampling, allow_fewer, balance = settings.sampling, settings.allow_fewer, settings.balance
    picks = [sampling, str(allow_fewer)] if (sampling, allow_fewer) != ("dear", False) else []
    picks += ["balance"] if balance else []
    identity = fingerprint(*splits, *classnames, "templates", *templates, *picks)
    facts |= {"sampling": sampling, "allow_fewer": allow_fewer, "balance": balance}
    return Dataset(name, title, tuple(classnames), tuple(templates), train, val, test, identity, **facts)
