"""The facts that a bundle holds of its fit and its test, as config.json has them. Light to import.

A new fact is a field of `TrainingFacts`: `typed` reads it, `asdict` writes it, and the model card and
`dear info` show it (`dear.adapters.wording`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from dear.adapters.operating import Decided, OperatingPoint
from dear.errors import DataError
from dear.reading.typed import Number, Range, Share

FEWEST_TO_CALIBRATE = 20
"""Groups of images, an image on its own being one, for which a temperature is fitted without being asked for.
"""
CROSS_VALIDATION = "cross-validation"
"""The split of scores that are of training images, each left out in turn."""
ImageCount = Annotated[int, Range(0, 2**31)]
Several = Annotated[int, Range(1, 2**31)]
Gain = Annotated[float, Range(-1, 1)]
"""A difference of two shares."""


@dataclass(frozen=True)
class Epoch:
    """An epoch: its mean loss and, if there were validation images, the accuracy on them."""

    epoch: Several
    loss: Number
    val: Share | None = None


@dataclass(frozen=True)
class TriedMethod:
    """A method that was a candidate.

    Attributes:
        accuracy: Share of left-out images that it classifies correctly; None if it cannot be fitted to these.
        low, high: The interval of the accuracy, at 95%.
        seconds: What it took, with the features that it was the first to need.
        reason: Why it cannot be fitted.
    """

    method: str
    accuracy: Share | None = None
    low: Share = 0.0
    high: Share = 1.0
    seconds: Number = 0.0
    reason: str = ""


@dataclass(frozen=True)
class UnlabeledGain:
    """What images without labels were worth.

    Attributes:
        weight: What an image without a label counts for beside a labeled one; 0 if they are not used, None
            if the method cannot use them.
        before, after: The log-loss of left-out labeled images without them, and with them at the best
            weight.
        accuracy_before, accuracy_after: The same for the share of correct classes.
    """

    images: ImageCount
    weight: Number | None = None
    before: Number = 0.0
    after: Number = 0.0
    accuracy_before: Share = 0.0
    accuracy_after: Share = 0.0


@dataclass(frozen=True)
class NameCost:
    """What a class by its name alone does beside other classes, on ``images`` that were left out.

    Attributes:
        threshold: What is taken from its score.
        taken, found: The share of the images of other classes that become it, and of its own that do.
        most: The largest share that one of the names takes that were tried.
    """

    threshold: Number
    taken: Share
    found: Share
    images: ImageCount
    most: Share = 0.0


@dataclass(frozen=True)
class SteeredScores:
    """A classifier with other weights of features beside the same with its own.

    Attributes:
        weights, own_weights: The weight of each feature; empty if the method learns none.
        own_accuracy: The share of the images that are right by its own weights.
        gained, lost: Images that are right only by the other weights, and only by its own.
        gain_interval: That of their difference as a share of the images, at 95%, by groups.
    """

    weights: Mapping[str, Share]
    own_weights: Mapping[str, Share]
    own_accuracy: Share
    gained: ImageCount
    lost: ImageCount
    gain_interval: tuple[Gain, Gain] | None = None


@dataclass(frozen=True)
class BundleScores:
    """Accuracy, log-loss and calibration error on labeled images. A field with the name of a metric
    (`dear.evaluation.metrics`) holds its value.

    Attributes:
        left_out: Images that are not counted, for the bundle was fitted on them.
        classes: Number of candidate classes.
        accuracy, top5: Share of the images whose class is ranked first, or among the first five.
        zero_shot: The accuracy of the backbone without the adapter, with the bundle's templates.
        gained, lost: Images that are right only with the adapter, and only without it.
        chance: Accuracy of always naming the largest class.
        log_loss: In nats, with the bundle's temperature.
        calibration_error: Expected calibration error (fraction), with the bundle's temperature.
        confidence: The mean probability of the predicted classes.
        confusions: The three most frequent: class, predicted class, number of images.
        per_class, class_images: Accuracy and number of images of each class that has images.
        refused: Share of the images that looks like none of the known classes; None if nothing is refused.
        let_through, others: Share of other images that does not, and how many there are.
        others_decided: How many of these the operating point decides; None without one.
        twins, twins_right: Images that are near-duplicates of training images or of one group with them, and
            how many of these are right: the split leaks.
        groups: How many groups the images are from; an image that is in none counts as one.
        interval, gain_interval: Those of the accuracy and of the gain over zero-shot, at 95%, by groups; None
            if they are of single images.
        steered: What the bundle's own weights of features give, if these scores are by other ones.
        decided: What the bundle's operating point decides of these images; None if it has none, or was
            chosen on these.
    """

    data: str
    split: str
    images: Several
    left_out: ImageCount
    classes: Several
    accuracy: Share = field(metadata={"title": "accuracy", "unit": "%"})
    top5: Share = field(metadata={"title": "top 5", "unit": "%"})
    zero_shot: Share = field(metadata={"title": "zero-shot", "unit": "%"})
    chance: Share = field(metadata={"title": "chance", "unit": "%"})
    log_loss: Number = field(metadata={"title": "log-loss", "unit": "nats"})
    calibration_error: Share = field(metadata={"title": "calibration error", "unit": "%"})
    gained: ImageCount
    lost: ImageCount
    confusions: tuple[tuple[str, str, ImageCount], ...]
    per_class: Mapping[str, Share]
    refused: Share | None = None
    let_through: Share | None = None
    others_decided: ImageCount | None = None
    others: ImageCount = 0
    confidence: Share | None = None
    twins: ImageCount = 0
    twins_right: ImageCount = 0
    groups: ImageCount = 0
    interval: tuple[Share, Share] | None = None
    gain_interval: tuple[Gain, Gain] | None = None
    class_images: Mapping[str, ImageCount] = field(default_factory=dict)
    steered: SteeredScores | None = None
    decided: Decided | None = None

    def __post_init__(self) -> None:
        if self.gained + self.lost > self.images:
            raise DataError("more test images are gained and lost than there are.")


@dataclass(frozen=True)
class TrainingFacts:
    """What a bundle was fitted on and how.

    Attributes:
        data, data_identity: The name of the data set, and the hash of its contents.
        shots: Training images of each class; None if all were used.
        train_images, unlabeled_images, calibration_images: How many images took part in the fit.
        epoch, epochs: The epoch whose parameters these are; all epochs.
        train, overrides, teacher: Settings of training, those that were asked for, and how a teacher was
            trained.
        chosen, candidates: Why the method was chosen, and what was tried; empty if the user named it.
        unlabeled: What images without labels were worth.
        held_out: The share of each class that was kept aside for testing, where `dear` made the split.
        doubted_labels: How many labels look wrong, and took no part in the fit of the temperature.
        uncalibrated: Why the temperature could not be fitted.
        named, name_cost: The classes by name alone, and what such a class takes and finds, if it is known.
        judged_labels, judge: How many labels were reviewed, and by which method if by another.
        is_precise: Whether most of the labels that look wrong are expected to be.
        suspect_labels: How many look wrong, if most of these are expected to be.
        confused: Classes that are often taken for each other: two names, how many left-out images of them are
            taken for the other one, and how many images they have.
        earlier_test: What was measured of an earlier fit of the same method to some of these images, if none
            is left to test on.
        operating: Which images it decides by itself, and what was promised of these.
        environment: Software and machine.
        command: The command line, if it was fitted by one.
    """

    data: str = ""
    data_identity: str = ""
    shots: Several | None = None
    train_images: ImageCount = 0
    unlabeled_images: ImageCount = 0
    calibration_images: ImageCount = 0
    seed: int = 1
    epoch: Several | None = None
    epochs: tuple[Epoch, ...] = ()
    seconds: Number = 0.0
    train: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    teacher: Mapping[str, Any] | None = None
    chosen: str = ""
    candidates: tuple[TriedMethod, ...] = ()
    unlabeled: UnlabeledGain | None = None
    held_out: Share = 0.0
    doubted_labels: ImageCount = 0
    uncalibrated: str = ""
    named: tuple[str, ...] = ()
    name_cost: NameCost | None = None
    judged_labels: ImageCount = 0
    judge: str = ""
    is_precise: bool = True
    suspect_labels: ImageCount = 0
    confused: tuple[tuple[str, str, ImageCount, ImageCount], ...] = ()
    earlier_test: BundleScores | None = None
    operating: OperatingPoint | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
