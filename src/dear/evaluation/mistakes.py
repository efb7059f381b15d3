"""What a classifier gets wrong: counts by class, confusions, the most confident mistakes. The pages of runs
and of bundles show the same; run records hold it for each part of their results. [ours]
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self, TypeVar

import torch
from jaxtyping import Int
from torch import Tensor

from dear.data.dataset import Images
from dear.data.fewshot import Subset
from dear.data.images.decode import read_image
from dear.data.images.photos import PhotoImages
from dear.errors import without_surrogates
from dear.evaluation.predictions import Predictions
from dear.evaluation.schema import Mistake

Item = TypeVar("Item")
RECORDED_PAIRS = 1000
"""Confusions that a record holds of a part, the most frequent; all of them for up to 32 classes."""
RECORDED_MISTAKES = 12
HASH_DIGITS = 16
"""Hexadecimal digits of the SHA-256 of an image file."""


@dataclass(frozen=True)
class ClassScore:
    """The scores of one class, as fractions.

    Attributes:
        images: How many images it has.
        accuracy: Share of its images that are predicted to be of the class (recall).
        precision: Share of the images predicted to be of the class that are; None if there are none.
        f1: Harmonic mean of the two; 0 if no image is predicted to be of the class.
    """

    name: str
    images: int
    accuracy: float
    precision: float | None
    f1: float


@dataclass(frozen=True)
class Mistakes:
    """What a classifier gets wrong on labelled images.

    Attributes:
        classes: Candidate classes; the counts are in their order.
        images: Images of each class.
        correct: Those that are classified correctly.
        predicted: All images that are predicted to be of the class.
        confusions: Class, prediction and number of images, the most frequent first.
        left_out: Images whose confusions are too rare to be among these.
        examples: Confident mistakes: the most confident of each confusion first, then the second of each.
    """

    classes: tuple[str, ...]
    images: tuple[int, ...]
    correct: tuple[int, ...]
    predicted: tuple[int, ...]
    confusions: tuple[tuple[int, int, int], ...]
    left_out: int = 0
    examples: tuple[Mistake, ...] = ()

    @property
    def misclassified(self) -> int:
        """The number of misclassified images."""
        return sum(self.images) - sum(self.correct)

    @property
    def accuracy(self) -> float:
        """Over all images, a fraction."""
        return sum(self.correct) / max(sum(self.images), 1)

    def class_scores(self) -> tuple[ClassScore, ...]:
        """The scores of the classes that have images, in their order."""
        counts = zip(self.classes, self.images, self.correct, self.predicted, strict=True)
        return tuple(
            ClassScore(
                name,
                images,
                correct / images,
                correct / predicted if predicted else None,
                2 * correct / (images + predicted),
            )
            for name, images, correct, predicted in counts
            if images
        )

    def matrix(self) -> Int[Tensor, "class class"]:
        """How many images of each class (rows) are predicted to be of each class (columns), without those
        left out.
        """
        counts = torch.diag(torch.tensor(self.correct, dtype=torch.int64))
        for label, prediction, images in self.confusions:
            counts[label, prediction] = images
        return counts

    def frequent_pairs(self, most: int = 10) -> list[tuple[str, str, int, float]]:
        """The most frequent confusions: class, prediction, images, and their share of the class's images."""
        return [
            (self.classes[label], self.classes[prediction], images, images / max(self.images[label], images))
            for label, prediction, images in self.confusions[:most]
        ]

    @classmethod
    def from_record(cls, entry: Mapping[str, Any]) -> Self:
        """Those of an entry of a record (`record_entry`), which has been checked."""
        return cls(
            tuple(entry["classes"]),
            tuple(entry["images"]),
            tuple(entry["correct"]),
            tuple(entry["predicted"]),
            confusions=tuple((label, prediction, count) for label, prediction, count in entry["confusions"]),
            left_out=entry["left_out"],
            examples=tuple(Mistake(**example) for example in entry["examples"]),
        )


def find_mistakes(
    predictions: Predictions, images: Images, most: int, dtype: torch.dtype = torch.float64
) -> Mistakes:
    """What a method gets wrong on some images, the test images of a data set or a `Subset` of them, with the
    ``most`` most confident of different confusions (`varied`); probabilities are computed in ``dtype``.
    """
    labels, predicted, correct = predictions.labels, predictions.predicted, predictions.correct
    pairs = torch.stack([labels[~correct], predicted[~correct]], dim=1)
    distinct, counts = pairs.unique(dim=0, return_counts=True)
    confusions = torch.cat([distinct, counts[:, None]], dim=1)
    confusions = confusions[counts.argsort(descending=True, stable=True)]
    count = len(predictions.classes)
    return Mistakes(
        predictions.classes,
        images=tuple(torch.bincount(labels, minlength=count).tolist()),
        correct=tuple(torch.bincount(labels[correct], minlength=count).tolist()),
        predicted=tuple(torch.bincount(predicted, minlength=count).tolist()),
        confusions=tuple((label, prediction, images) for label, prediction, images in confusions.tolist()),
        examples=_most_confident(predictions, images, most, dtype),
    )


def _most_confident(
    predictions: Predictions, images: Images, most: int, dtype: torch.dtype
) -> tuple[Mistake, ...]:
    labels, predicted, correct = predictions.labels, predictions.predicted, predictions.correct
    probabilities = predictions.probabilities(dtype)
    confidence = probabilities.gather(1, predicted[:, None])[:, 0]
    ranked = torch.where(correct, -1.0, confidence).argsort(descending=True, stable=True)
    ranked = ranked[~correct[ranked]]
    confusions = zip(labels[ranked].tolist(), predicted[ranked].tolist(), strict=True)
    examples = []
    for row in varied(zip(ranked.tolist(), confusions, strict=True), most):
        index, whole = row, images
        while isinstance(whole, Subset):
            index, whole = int(whole.indices[index]), whole.images
        label = int(labels[row])
        shares = float(confidence[row]), float(probabilities[row, label])
        file = whole.paths[index] if isinstance(whole, PhotoImages) else None
        examples.append(Mistake(index, label, int(predicted[row]), *shares, file))
    return tuple(examples)


def varied(ranked: Iterable[tuple[Item, tuple[int, int]]], most: int) -> list[Item]:
    """Up to ``most`` of some ranked items, each with its confusion: the first of each confusion, then the
    second of each, and so on; without that, one frequent confusion would take all the room.
    """
    counts = Counter[tuple[int, int]]()
    rounds = list[tuple[int, Item]]()
    for item, confusion in ranked:
        rounds.append((counts[confusion], item))
        counts[confusion] += 1
    return [item for _, item in sorted(rounds, key=lambda entry: entry[0])][:most]


def record_entry(part: Sequence[str | int], mistakes: Mistakes, images: Images) -> dict[str, Any]:
    """The entry of a record's ``mistakes`` for a part of the results (docs/reproduce.md): rare
    confusions are only counted, probabilities have six digits.

    Args:
        part: The keys of its scores in the results.
        images: The test images of the data set, by which a report finds those of the mistakes.
    """
    rare = mistakes.confusions[RECORDED_PAIRS:]
    while isinstance(images, Subset):
        images = images.images
    photos = images if isinstance(images, PhotoImages) else None
    entry = asdict(
        replace(
            mistakes,
            confusions=mistakes.confusions[:RECORDED_PAIRS],
            left_out=sum(count for *_, count in rare),
            examples=tuple(_rounded(example, photos) for example in mistakes.examples),
        )
    )
    entry["examples"] = [
        {name: value for name, value in example.items() if value is not None} for example in entry["examples"]
    ]
    folder = {} if photos is None else {"folder": without_surrogates(str(photos.folder.resolve()))}
    plain = {name: [*value] if isinstance(value, tuple) else value for name, value in entry.items()}
    plain["confusions"] = [[*confusion] for confusion in plain["confusions"]]
    return {"part": [*part], **plain, "identity": images.identity, **folder}


def _rounded(mistake: Mistake, photos: PhotoImages | None) -> Mistake:
    sha256 = None
    if photos is not None:
        sha256 = content_hash(read_image(photos.folder / photos.paths[mistake.index]))
    return replace(
        mistake,
        file=mistake.file and without_surrogates(mistake.file),
        confidence=round(mistake.confidence, 6),
        probability=round(mistake.probability, 6),
        sha256=sha256,
    )


def content_hash(content: bytes) -> str:
    """16 hexadecimal digits that change with the content of a file."""
    return hashlib.sha256(content).hexdigest()[:HASH_DIGITS]
