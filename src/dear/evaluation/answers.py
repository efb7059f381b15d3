"""What a record holds of a method's answers on test images: counts by class, confusions, the most confident
mistakes. [ours] The images themselves are not in it: a report finds them again if they are still there.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from dear.data.dataset import Dataset, Images
from dear.data.fewshot import Subset
from dear.data.images.photos import PhotoImages
from dear.data.images.raster import read_image
from dear.evaluation.diagnosis import most_confident
from dear.evaluation.metrics import Answers

PAIRS = 1000
"""Confusions that a record holds of a part, the most frequent; all of them for up to 32 classes."""
MISTAKES = 12
DIGITS = 16
"""Hexadecimal digits of the SHA-256 of an image file."""


def answers_of(
    part: Sequence[str | int], dataset: Dataset, tested: Images, classes: Sequence[str], answers: Answers
) -> dict[str, Any]:
    """The entry of a record's ``answers`` for a part of the results (docs/reference/records.md).

    Args:
        part: The keys of its scores in the results.
        tested: The test images of the data set, or a subset of them.
        classes: The candidate classes in the order of the labels.
    """
    labels, guesses, count = tested.labels.cpu(), answers.guesses, len(classes)
    wrong = labels != guesses
    pairs = torch.stack([labels[wrong], guesses[wrong]], dim=1)
    different, images = pairs.unique(dim=0, return_counts=True)
    order = images.argsort(descending=True, stable=True)
    kept = [[*different[at].tolist(), int(images[at])] for at in order[:PAIRS]]
    return {
        "part": [*part],
        "classes": [*classes],
        "images": torch.bincount(labels, minlength=count).tolist(),
        "right": torch.bincount(labels[~wrong], minlength=count).tolist(),
        "answered": torch.bincount(guesses, minlength=count).tolist(),
        "confusions": kept,
        "left_out": int(images[order[PAIRS:]].sum()),
        **_place(dataset.test),
        "mistakes": _mistakes(dataset.test, tested, labels, answers),
    }


def _place(images: Images) -> dict[str, str]:
    """Where a report finds the images: the folder of their files, and their identity."""
    folder = {"folder": str(images.folder.resolve())} if isinstance(images, PhotoImages) else {}
    return {"identity": images.identity, **folder}


def _mistakes(
    images: Images, tested: Images, labels: Int[Tensor, "item"], answers: Answers
) -> list[dict[str, Any]]:
    """The wrong answers with the highest probability. Probabilities have six digits."""
    places = tested.indices.cpu() if isinstance(tested, Subset) else torch.arange(len(tested))
    return [
        {
            **_image(images, int(places[at])),
            "label": int(labels[at]),
            "answer": int(answers.guesses[at]),
            "confidence": round(float(answers.confidence[at]), 6),
            "probability": round(float(answers.probability[at]), 6),
        }
        for at in most_confident(answers.confidence, answers.guesses == labels, MISTAKES)
    ]


def _image(images: Images, at: int) -> Mapping[str, Any]:
    """Which of the data set's test images it is; the file and a hash of its content, if it has one."""
    if not isinstance(images, PhotoImages):
        return {"index": at}
    return {
        "index": at,
        "file": images.paths[at],
        "sha256": content_hash(read_image(images.folder / images.paths[at])),
    }


def content_hash(content: bytes) -> str:
    """16 hexadecimal digits that change with the content of a file."""
    return hashlib.sha256(content).hexdigest()[:DIGITS]
