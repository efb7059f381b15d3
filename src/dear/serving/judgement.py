"""What is measured of a bundle. Light to import, so that commands can show it without loading torch."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Judgement:
    """Accuracy, log-loss and calibration error on labelled images.

    Attributes:
        classes: How many classes were told apart.
        accuracy, top5: Share of the images whose class is the best, or among the best five.
        log_loss: In nats, with the bundle's temperature.
        calibration_error: Expected calibration error (fraction), with the bundle's temperature.
        per_class: Accuracy by class, of the classes that have images.
    """

    data: str
    split: str
    images: int
    classes: int
    accuracy: float
    top5: float
    log_loss: float
    calibration_error: float
    per_class: dict[str, float]
