"""Results of evaluating and exporting a bundle. Light to import, so that commands can show them without
loading torch.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal


@dataclass(frozen=True)
class BundleScores:
    """Accuracy, log-loss and calibration error on labelled images.

    Attributes:
        classes: Number of candidate classes.
        accuracy, top5: Share of the images whose class is ranked first, or among the first five.
        zero_shot: The accuracy of the backbone without the adapter, with the bundle's templates.
        chance: Accuracy of guessing: 1 / classes.
        log_loss: In nats, with the bundle's temperature.
        calibration_error: Expected calibration error (fraction), with the bundle's temperature.
        per_class: Accuracy per class, for the classes that have images.
    """

    data: str
    split: str
    images: int
    classes: int
    accuracy: float
    top5: float
    zero_shot: float
    chance: float
    log_loss: float
    calibration_error: float
    per_class: dict[str, float]

    @property
    def summary(self) -> str:
        """The accuracy beside what it is to be compared with, in percent."""
        return beside(self.accuracy, self.zero_shot, self.chance)


def beside(accuracy: float, zero_shot: float, chance: float) -> str:
    """An accuracy beside zero-shot and chance: fractions, shown in percent."""
    return f"accuracy {100 * accuracy:.2f}% (zero-shot {100 * zero_shot:.2f}%, chance {100 * chance:.2f}%)"


ExportForm = Literal["onnx", "torch-export"]


@dataclass(frozen=True)
class Exported:
    """An exported model.

    Attributes:
        classes: Number of classes built in; None for the image tower alone.
        checked: Number of images on which it was compared with torch, including random ones.
        difference: The largest difference of a logit (or of a feature) on them.
        same_best: On how many of them the best class agrees; None for the image tower alone.
    """

    path: Path
    form: ExportForm
    outputs: tuple[str, ...]
    classes: int | None
    bytes: int
    checked: int
    difference: float
    same_best: int | None
