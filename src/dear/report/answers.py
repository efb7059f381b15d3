"""The answers that run records hold, by data set, part and method: the runs of several seeds together."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from PIL import Image
from torch import Tensor

from dear.data.images.decode import as_image, decode
from dear.data.images.raster import read_image
from dear.data.loading import of_world
from dear.data.world.tasks import WorldImages, load_task
from dear.errors import DataError, DearError
from dear.evaluation.answers import MISTAKES, content_hash
from dear.evaluation.diagnosis import ClassScore, scores_of
from dear.report.diagnosis import Mistake
from dear.report.reading import Record, data_set, data_set_title, method_label, name, protocol

PARTS = {
    "base": "base classes",
    "novel": "novel classes",
    "all": "all classes",
    "source": "the source",
    "targets": "a target",
}
SIDE = 256  # pixels of the short side that a picture is decoded to


@dataclass(frozen=True)
class Wrong:
    """A wrong answer: where its image was, and what a record says of it."""

    task: str
    identity: str | None
    folder: str | None
    facts: Mapping[str, Any]

    @property
    def image(self) -> tuple[str | None, int]:
        """Which image it is."""
        return self.identity, self.facts["index"]

    @property
    def title(self) -> str:
        """The file of the image, or its number counted from 1, as on the page of an evaluation."""
        return str(self.facts.get("file") or f"image {self.facts['index'] + 1}")


@dataclass(frozen=True)
class Answered:
    """What a method answered on a part of a data set's test images. Counts are sums over seeds.

    Attributes:
        data: Name of the data set that was tested on.
        shots: Training images for each class.
        images, right, answered: By class: its images, those that are given it rightly, all that are given it.
        confusions: How many images of a class are given another: class, answer, images; most frequent first.
        left_out: Images whose confusions are too rare to be in the records.
        wrong: The most confident mistakes, each image once, the most confident first.
    """

    protocol: str
    data: str
    title: str
    part: str
    method: str
    shots: int
    seeds: int
    classes: tuple[str, ...]
    images: tuple[int, ...]
    right: tuple[int, ...]
    answered: tuple[int, ...]
    confusions: tuple[tuple[int, int, int], ...]
    left_out: int
    wrong: tuple[Wrong, ...]

    @cached_property
    def scores(self) -> tuple[ClassScore, ...]:
        """By class, for the classes that have images."""
        return scores_of(self.classes, self.images, self.right, self.answered)

    @property
    def accuracy(self) -> float:
        """Over all images, a fraction."""
        return sum(self.right) / max(sum(self.images), 1)

    def matrix(self) -> Int[Tensor, "class class"]:
        """How many images of each class (rows) are given each class (columns), without what is left out."""
        counts = torch.diag(torch.tensor(self.right, dtype=torch.int64))
        for label, answer, images in self.confusions:
            counts[label, answer] = images
        return counts

    def pairs(self, most: int = 10) -> list[tuple[str, str, int, float]]:
        """The most frequent confusions: class, answer, images, and their share of the class's images."""
        return [
            (self.classes[label], self.classes[answer], images, images / max(self.images[label], images))
            for label, answer, images in self.confusions[:most]
        ]

    def mistakes(self) -> tuple[list[Mistake], int]:
        """The mistakes whose images can be read, and how many cannot."""
        found = [
            Mistake(
                picture,
                one.title,
                self.classes[one.facts["answer"]],
                float(one.facts["confidence"]),
                self.classes[one.facts["label"]],
                float(one.facts["probability"]),
            )
            for one in self.wrong
            if (picture := picture_of(one)) is not None
        ]
        return found, len(self.wrong) - len(found)


def answered(records: Iterable[Record]) -> list[Answered]:
    """The answers of some records, in their order; records of earlier versions have none.

    Raises DataError for runs of one method with different test images or classes.
    """
    groups: dict[tuple[str, str, tuple[str, ...], str, int], list[tuple[Record, Mapping[str, Any]]]] = {}
    for record in records:
        for part in record.get("answers") or ():
            names = tuple(str(one) for one in part["part"] if isinstance(one, str))
            key = (protocol(record), data_set(record), names, method_label(record), record.get("shots") or 0)
            groups.setdefault(key, []).append((record, part))
    return [_joined(*key, runs) for key, runs in groups.items()]


def _joined(
    kind: str,
    data: str,
    names: Sequence[str],
    method: str,
    shots: int,
    runs: Sequence[tuple[Record, Mapping[str, Any]]],
) -> Answered:
    record, first = runs[0]
    parts = [part for _, part in runs]
    if any(part["classes"] != first["classes"] or part["images"] != first["images"] for part in parts):
        raise DataError(f"{name(record)}: another seed was tested on other images or classes")
    counts: dict[tuple[int, int], int] = {}
    for part in parts:
        for label, answer, images in part["confusions"]:
            counts[label, answer] = counts.get((label, answer), 0) + images
    tested, title = data, data_set_title(record)
    if len(names) > 1:  # the place of a target's scores ends with its name
        tested = names[1]
        targets = {one["name"]: one for one in record.get("targets") or ()}
        title = str(targets.get(tested, {}).get("title") or tested)
    wrong = [
        Wrong(tested, part.get("identity"), part.get("folder"), one)
        for part in parts
        for one in part["mistakes"]
    ]
    wrong.sort(key=lambda one: -one.facts["confidence"])
    once = {one.image: one for one in reversed(wrong)}  # the most confident of the same image
    return Answered(
        protocol=kind,
        data=tested,
        title=title,
        part=PARTS.get(names[0], names[0]),
        method=method,
        shots=shots,
        seeds=len(runs),
        classes=tuple(first["classes"]),
        images=_sums(parts, "images"),
        right=_sums(parts, "right"),
        answered=_sums(parts, "answered"),
        confusions=tuple(
            sorted(((*pair, images) for pair, images in counts.items()), key=lambda one: (-one[2], one))
        ),
        left_out=sum(part["left_out"] for part in parts),
        wrong=tuple(one for one in wrong if once[one.image] is one)[:MISTAKES],
    )


def _sums(parts: Sequence[Mapping[str, Any]], what: str) -> tuple[int, ...]:
    return tuple(sum(counts) for counts in zip(*(part[what] for part in parts), strict=True))


def picture_of(wrong: Wrong) -> Image.Image | None:
    """The image of a mistake, if it is still what was tested on: a file of the same content, or the same
    image of the Attribute World.
    """
    index, file = wrong.facts["index"], wrong.facts.get("file")
    if file is None or wrong.folder is None:
        images = _of_world(wrong.task)
        if images is None or images.identity != wrong.identity or index >= len(images):
            return None
        return as_image(images.load(torch.tensor([index]))[0])
    path = Path(wrong.folder, file)
    try:
        content = read_image(path)
        if content_hash(content) != wrong.facts.get("sha256"):
            return None
        return as_image(decode(path, SIDE, content))
    except DearError:
        return None


@cache
def _of_world(task: str) -> WorldImages | None:
    return load_task(task).test if of_world([task]) else None
