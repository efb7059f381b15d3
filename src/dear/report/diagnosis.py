"""What the page of an evaluation shows: a classifier on labelled images (`dear.adapters.diagnosis`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float, Int
from PIL import Image
from torch import Tensor

from dear.evaluation.diagnosis import Bin, ClassScore


@dataclass(frozen=True)
class Mistake:
    """A wrong answer; ``name`` is the image's file, or its number."""

    picture: Image.Image
    name: str
    said: str
    confidence: float
    right: str
    probability: float


@dataclass(frozen=True)
class Look:
    """Where a head looks on a picture: the picture with its attention over it, by whose attention it is."""

    layer: int
    head: int
    attribute: str
    maps: Mapping[str, Image.Image]


@dataclass(frozen=True)
class Looks:
    """The core heads on one picture."""

    picture: Image.Image
    title: str
    heads: tuple[Look, ...]


@dataclass(frozen=True)
class FeatureMap:
    """Features of some images in the plane, and the classes of these images."""

    points: Mapping[str, Float[Tensor, "item 2"]]
    labels: Int[Tensor, "item"]


@dataclass(frozen=True)
class Diagnosis:
    """A classifier on labelled images.

    Attributes:
        subject: The method and its backbone.
        data, split: What it was measured on.
        numbers: What stands in tiles at the top: name -> as shown.
        classes: Candidate classes in label order.
        confusion: How many images of each class (rows) are given each class (columns).
        scores: By class, for the classes that have images.
        bins: Confidence against accuracy.
        calibration_error: Of these bins, a fraction.
        mistakes: The most confident ones, the most confident first.
        epochs: Of the training: epoch, loss, and val (accuracy on validation images) where known.
        looks: Attention on some pictures.
        features: A map of features, if it was made.
        notes: What is left out, and why.
    """

    subject: str
    data: str
    split: str
    numbers: Mapping[str, str]
    classes: tuple[str, ...]
    confusion: Int[Tensor, "class class"]
    scores: tuple[ClassScore, ...]
    bins: tuple[Bin, ...]
    calibration_error: float
    mistakes: tuple[Mistake, ...] = ()
    epochs: tuple[Mapping[str, Any], ...] = ()
    looks: tuple[Looks, ...] = ()
    features: FeatureMap | None = None
    notes: tuple[str, ...] = field(default=())
